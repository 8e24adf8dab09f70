"""Device, dtype, number of threads and memory."""

import ctypes
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch

DTYPES_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAIN_MEMORY = torch.device("cpu")
BUILT_FOR_CPU = (
    "this PyTorch was built for the CPU only: install the one for CUDA, with the command that "
    "https://pytorch.org/get-started/locally/ gives"
)
MIN_WEIGHTS_FOR_THREADS = 5_000_000  # per decoding step (benchmarks/README.md)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


class Processor(NamedTuple):
    """The features of a CPU that the rules look at."""

    bfloat16: bool = False  # has instructions that multiply bfloat16: AVX512-BF16, AMX, or those of ARM
    amx: bool = False  # has AMX, which PyTorch's fused attention and oneDNN use
    avx2: bool = False  # has AVX2: an x86 processor, the only kind on which products were measured
    avx512: bool = False  # has AVX-512; without it torch.compile converts eight-bit numbers one by one


def this_processor() -> Processor:
    """The features of this machine's CPU; a feature that PyTorch does not report counts as absent.

    Products in bfloat16 also need oneDNN, which PyTorch for macOS lacks.
    """
    capabilities = torch.cpu.get_capabilities()
    has_onednn = torch.backends.mkldnn.is_available()
    amx = has_onednn and bool(capabilities.get("amx_tile") and capabilities.get("amx_bf16"))
    bfloat16 = amx or (has_onednn and any(capabilities.get(name) for name in ("avx512_bf16", "bf16", "arm_bf16")))
    avx512 = all(capabilities.get(name) for name in ("avx512_f", "avx512_bw", "avx512_vl"))
    return Processor(bfloat16, amx, bool(capabilities.get("avx2")), avx512)


CPU = this_processor()


def pick_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is CUDA, else MPS, else the CPU. Raises ValueError if it is missing.

    An NVIDIA card counts as missing, with a warning, if PyTorch was built for the CPU only, as PyPI's for Windows.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0  # the driver may be too old for PyTorch
    cuda = ["cuda", *(f"cuda:{index}" for index in range(count))] if count else []
    mps = ["mps"] if torch.backends.mps.is_available() else []
    available = [*cuda, *mps, "cpu"]
    has_unused_card = torch.version.cuda is None and not cuda and shutil.which("nvidia-smi") is not None
    if name == "auto":
        if has_unused_card:
            warnings.warn(f"the NVIDIA card is not used: {BUILT_FOR_CPU}", stacklevel=2)
        return torch.device(available[0])
    if name not in available:
        advice = f"; {BUILT_FOR_CPU}" if has_unused_card else ""
        raise ValueError(f"device is {name!r}: PyTorch finds only {', '.join(available)} on this machine{advice}")
    return torch.device(name)


def native_dtype(device: torch.device) -> torch.dtype:
    """The dtype of 16 bits that the device has instructions for, else float32.

    That is bfloat16 on CPUs that report it and on NVIDIA cards from Ampere on. Those from Volta to Turing, as Colab's
    T4 and the RTX 20 series, have float16 only, which has more digits and a smaller range.
    """
    if device.type == "cpu" and CPU.bfloat16:
        return torch.bfloat16
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= (7, 0):
            return torch.bfloat16 if capability >= (8, 0) else torch.float16
    return torch.float32


def pick_dtype(name: str, device: torch.device, stored: torch.dtype = torch.bfloat16) -> torch.dtype:
    """The dtype called ``name``; ``auto`` is ``stored`` if the device multiplies it natively, else float32.

    For generation, ``stored`` is the dtype of the weights in the file, so that they are not rounded. For training it is
    bfloat16, the dtype of products under autocast. Some cards take float16 instead (``native_dtype``). For ``int8``,
    the result is the dtype of everything but matrices.
    """
    if name in DTYPES_BY_NAME:
        return DTYPES_BY_NAME[name]
    if name == "int8" or stored == torch.bfloat16:
        return native_dtype(device)
    return stored if stored == torch.float16 and device.type != "cpu" else torch.float32


def keep_freed_memory() -> None:
    """Make glibc keep the memory that one step frees for the next step.

    By default glibc returns large blocks to the system, which then clears every page again. That took a quarter of the
    processor time of a training step of the demo, and a tenth with 6.0 million parameters and 16 x 256 tokens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (TypeError, OSError, AttributeError):  # Windows, or a C library without mallopt
        return
    # glibc before 2.36 refuses a threshold above 32 MB. If it refuses both, the trim option is left alone, because
    # setting it ends the adaptive threshold, and then every large block is mapped again in each step.
    if mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_THRESHOLD, 2**25):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use ``count`` threads in the ``with`` block, and restore their number at its end."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def available_cores() -> Iterator[None]:
    """Limit PyTorch's threads to the cores in the quota of its container (cgroup 2), which PyTorch itself ignores.

    OMP_NUM_THREADS, if set, is respected. At the end the number is restored, also if the ``with`` block has changed it,
    because IPython's %run and runpy go on in the process.
    """
    before = torch.get_num_threads()
    with threads(before):
        with suppress(OSError, ValueError):  # no cgroup, or no quota: "max 100000"
            quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split())
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(max(1, min(quota // period, before)))
        yield


def choose_threads(device: torch.device, weights_per_step: int) -> None:
    """Let PyTorch decode small models with one thread. OMP_NUM_THREADS, if set, is respected.

    ``weights_per_step`` is parameters times rows of a decoding step. Below MIN_WEIGHTS_FOR_THREADS a second thread
    gains nothing, and makes decoding far slower while another process is busy, because after every few microseconds of
    work one thread waits for the other. The number is not chosen by timing: with another number of threads float32
    logits differ by 5e-7, so the text would depend on the clock.
    """
    small = weights_per_step < MIN_WEIGHTS_FOR_THREADS
    if device.type == "cpu" and small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def free_cores(proc: Path = Path("/proc")) -> int:
    """The cores that no other process keeps busy now, at least 1; all cores if the system is not Linux.

    Linux counts the threads that have a core or wait for one. Those of this process are subtracted. They are counted
    first: if one falls asleep meanwhile, the result is larger by one, and not smaller.
    """
    cores, busy = os.cpu_count() or 1, 0
    with suppress(OSError, ValueError, IndexError):
        states = [file.read_text("ascii", "replace").rpartition(") ")[2][0] for file in proc.glob("self/task/*/stat")]
        running = (proc / "loadavg").read_text("ascii").split()[3]  # such as 3/812: of 812 threads, 3 run
        busy = max(0, int(running.partition("/")[0]) - states.count("R"))
    return max(1, cores - busy)


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated on this device without swapping; None if the system does not report them.

    On a GPU this includes what PyTorch has freed and keeps for itself. On a Mac's CPU it is the memory of the machine,
    more than is free. On Linux it is what the machine and the container have left. ``root`` has ``proc`` and ``sys``.
    """
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    with suppress(OSError):  # macOS and Windows do not have the file
        numbers = re.findall(r"MemAvailable: +(\d+) kB", (root / "proc/meminfo").read_text(encoding="ascii"))
        return min([*(1024 * int(number) for number in numbers), *free_in_cgroups(root)], default=None)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows
        return None


CGROUPS = "sys/fs/cgroup"


def free_in_cgroups(root: Path) -> Iterator[int]:
    """What each control group that this process is in has left of its limit, from its own up to the outermost one.

    A container, a batch system and systemd limit memory by them, and the kernel enforces the limits of all nested ones.
    A container sees only its own as the outermost one, whatever path the kernel names.
    """
    with suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8")
        for controllers, path in re.findall(r"^\d+:([^:]*):/(.*)$", groups, re.MULTILINE):
            if not controllers:  # version 2
                top, limit, use, prefix = root / CGROUPS, "memory.max", "memory.current", ""
            elif "memory" in controllers.split(","):
                top, limit, use = root / CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
                prefix = "total_"
            else:
                continue
            for group in (top / path, *(top / parent for parent in Path(path).parents)):
                with suppress(OSError, ValueError):  # no such group here, or "max"
                    yield free_in_cgroup(group / limit, group / use, group / "memory.stat", prefix)


def free_in_cgroup(limit: Path, use: Path, stat: Path, prefix: str) -> int:
    """What a control group has left of its limit. Raises OSError without such a group, ValueError without a limit.

    Its use includes pages of files, which the kernel drops if memory is short, so they count as free.
    """
    left = int(limit.read_text(encoding="ascii")) - int(use.read_text(encoding="ascii"))
    with suppress(OSError):
        pages = re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", stat.read_text(encoding="ascii"), re.MULTILINE)
        left += sum(map(int, pages))
    return max(0, left)


def check_memory(
    needed: int,
    purpose: str,
    advice: str = "use smaller values",
    device: torch.device = MAIN_MEMORY,
    free: int | None = None,
) -> None:
    """Raise ValueError if ``needed`` bytes are not free. Called before they are allocated.

    ``free`` is the free memory of the device if it is known already.
    """
    free = free_memory(device) if free is None else free
    if free is not None and needed > free:
        raise ValueError(
            f"{purpose} needs about {readable_size(needed)} of memory, but {readable_size(free)} are free on {device}: "
            f"{advice}"
        )


def readable_size(size: int) -> str:
    """A human-readable size: megabytes rounded up, or gigabytes."""
    return f"{math.ceil(size / 1e6):,} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
