"""What this machine computes with: device, dtype, threads and memory."""

import ctypes
import os
import re
from pathlib import Path

import torch

from .. import kernels

DTYPES_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
THREADS_PAY_FROM = 4_000_000  # weights that a step of generation multiplies; benchmarks/busy.py compares
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA, then MPS, then the CPU. Raises ValueError for a device this machine or PyTorch lacks."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        raise ValueError(f"device is {name!r}: give auto, cpu, cuda, cuda:N or mps")
    if name == "auto":
        name = best_device()
    device = torch.device(name)
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= count.get(device.type, 0):
        raise ValueError(f"device is {name!r}: this machine has no such device that PyTorch can use; try cpu")
    return device


def best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 products: CUDA from Ampere on, and the CPUs that say so."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and kernels.CPU.bfloat16


def pick_dtype(name: str, device: torch.device, stored: torch.dtype = torch.bfloat16) -> torch.dtype:
    """The dtype called ``name``; ``auto`` is ``stored`` where the device multiplies it natively, else float32.

    To generate, ``stored`` is the dtype of the weights in the file: what is exact stays exact. To train it is bfloat16,
    for the products under autocast. ``int8`` is for matrices: this is then what all else is computed in.
    """
    if name not in ("auto", "int8"):
        return DTYPES_BY_NAME[name]
    stored = torch.bfloat16 if name == "int8" else stored
    native = {torch.bfloat16: has_native_bfloat16(device), torch.float16: device.type != "cpu"}
    return stored if native.get(stored) else torch.float32


def keep_freed_memory() -> None:
    """Have the C library keep what one step frees for the next one, where it is glibc.

    By default it gives large blocks back, and the system clears each page anew: 7% of a step's time (16 x 256 tokens,
    5.2M parameters, two cores), and half of what neither the products nor attention take.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (TypeError, OSError, AttributeError):  # no library without a name, as on Windows; or one without mallopt
        return
    mallopt(M_MMAP_THRESHOLD, 2**30)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def count_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(device: torch.device, weights_per_step: int | None = None) -> int:
    """Set how many threads PyTorch computes with, and return it. What the user has set (OMP_NUM_THREADS) stays.

    ``weights_per_step`` is the work of a step of generation: parameters times rows. Below THREADS_PAY_FROM a second
    thread gains nothing, and costs everything when something else runs: each of its few microseconds of work ends in
    waiting for the other thread. None, for training, takes a thread per core. It is not timed, nor changed on the way:
    with another number of threads float32 logits differ by 5e-7, and the text would depend on the clock.
    """
    small = weights_per_step is not None and weights_per_step < THREADS_PAY_FROM
    if device.type == "cpu" and small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return torch.get_num_threads()


def available_memory() -> int | None:
    """Bytes that can be had without swapping, None where the system does not report them."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError, AttributeError):  # macOS does not know the name, Windows not the function
        return None


def check_memory(needed: int, what: str) -> None:
    """Ask before allocating. Raises ValueError when ``needed`` bytes are more than there are."""
    available = available_memory()
    if available is not None and needed > available:
        wanted = min(needed, 10**24) / 1e9  # a float may not be larger than 10**308; an int from a file may
        raise ValueError(f"{what} needs about {wanted:.1f} GB, {available / 1e9:.1f} GB are free: give less")
