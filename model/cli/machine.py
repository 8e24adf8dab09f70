"""What this machine computes with: device, dtype and memory."""

import ctypes
import re

import torch


def check_device(name: str) -> None:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"device is {name!r}: give auto, cpu, cuda, cuda:N or mps")


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


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


def keep_freed_memory() -> None:
    """Have the C library keep what one step frees for the next one, where it is glibc.

    By default it gives large blocks back, and the system clears each page anew: 7% of a step's time (16 x 256 tokens,
    5.2M parameters, two cores), and half of what neither the products nor attention take.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


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
