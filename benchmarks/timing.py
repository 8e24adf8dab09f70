"""What the benchmarks share: contenders that take turns, and the speed of the memory."""

import platform
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from model.cli.machine import CPU

Measurement = Callable[[], float]  # measures once; returns seconds or tokens/s


def alternate(
    contenders: dict[str, Measurement], turns: int, summarize: Callable[[list[float]], float] = statistics.median
) -> dict[str, float]:
    """A figure for each contender. They take turns, so that other load slows all down. The first turn is a warm-up."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, measure in contenders.items():
            figure = measure()
            if turn > 0:
                figures[name].append(figure)
    return {name: summarize(values) for name, values in figures.items()}


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def memory_rate(repeats: int = 9, device: torch.device | str = "cpu") -> float:
    """Bytes/s that the device reads: the fastest of several sums over more bytes than fit into a cache."""
    block = torch.ones(64 * 2**20 if str(device) == "cpu" else 256 * 2**20, device=device)
    return block.nbytes / min(seconds(lambda: block.sum().item()) for _ in range(repeats))


def machine() -> str:
    """The processor, its threads, the speed of its memory, and the version of PyTorch, in one line."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):  # only Linux has this file
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        fields = dict(re.findall(r"^(.*?)\t*: (.*)$", cpuinfo, re.MULTILINE))
        name = f"{fields.get('model name', name)} (family {fields.get('cpu family')}, model {fields.get('model')})"
    threads, rate = torch.get_num_threads(), memory_rate() / 1e9
    return f"{name}, {threads} threads, {CPU}; memory reads {rate:.0f} GB/s; torch {torch.__version__}"
