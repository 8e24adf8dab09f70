"""Where a run computes, and in what precision."""

import torch

from ..cli.device import check_device


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA, then MPS, then the CPU. Raises ValueError for a device this machine or PyTorch lacks."""
    check_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(name)
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= count.get(device.type, 0):
        raise ValueError(f"device is {name!r}: this machine has no such device that PyTorch can use; try cpu")
    return device


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are fast: on CUDA from Ampere on, and on CPUs with instructions for them."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"))
    return False


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
