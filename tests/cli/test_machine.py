"""The choice of device, dtype and cores, and the memory check, on machines of all kinds, which are simulated."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from model import kernels
from model.cli import machine
from model.cli.machine import (
    check_memory,
    free_memory,
    keep_freed_memory,
    pick_device,
    pick_dtype,
    use_available_cores,
)

CPU = torch.device("cpu")
HALF, FULL = torch.bfloat16, torch.float32


def test_auto_is_the_stored_dtype_if_it_is_native_and_else_float32(each_processor):
    for stored in (FULL, HALF, torch.float16):
        assert pick_dtype("auto", CPU, stored) == (HALF if stored == HALF and each_processor else FULL)
    assert pick_dtype("auto", CPU) == pick_dtype("auto", CPU, HALF), "training"


def test_an_explicit_dtype_is_used_on_every_processor(each_processor):
    for name, dtype in machine.DTYPES_BY_NAME.items():
        assert pick_dtype(name, CPU, torch.float16) == dtype


class Card(NamedTuple):
    """An NVIDIA card, and the architectures that PyTorch was built for."""

    capability: tuple[int, int]
    architectures: list[str]


@pytest.fixture
def with_cards(monkeypatch) -> Callable[..., None]:
    def simulate(*cards: Card, is_available: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: cards[0].architectures)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: cards[index].capability)

    return simulate


CUDA_12 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
PASCAL, VOLTA, TURING, ADA, HOPPER, BLACKWELL = (6, 1), (7, 0), (7, 5), (8, 9), (9, 0), (12, 1)


def test_a_missing_device_is_refused_and_auto_is_the_best_one(with_cards):
    with_cards(Card(ADA, CUDA_12), is_available=False)
    assert pick_device("auto") == torch.device("cpu")
    for name in ("abacus", "cpu:1", "", "cuda", "mps"):
        with pytest.raises(ValueError, match=f"^device is '{name}': PyTorch finds only cpu"):
            pick_device(name)
    two = [Card(ADA, CUDA_12)] * 2
    with_cards(*two, is_available=False)
    assert pick_device("auto") == torch.device("cpu"), "the driver may be too old for PyTorch"
    with_cards(*two)
    assert [pick_device(name) for name in ("auto", "cuda:1")] == [torch.device("cuda"), torch.device("cuda:1")]
    with pytest.raises(ValueError, match="finds only cuda, cuda:0, cuda:1, cpu"):
        pick_device("cuda:2")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("capability", [TURING, (8, 0), (8, 7), ADA, HOPPER, BLACKWELL])
def test_a_card_that_pytorch_has_kernels_for_is_used(with_cards, capability):
    with_cards(Card(capability, CUDA_12))
    assert pick_device("auto") == torch.device("cuda")
    with_cards(Card(capability, ["gfx90a", "gfx1100"]))  # AMD's
    assert pick_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(
    "card",
    [Card(PASCAL, CUDA_12), Card(VOLTA, CUDA_12), Card(BLACKWELL, ["sm_80", "sm_90a"]), Card(TURING, ["compute_80"])],
)
def test_a_card_without_kernels_leaves_the_cpu_with_a_note(with_cards, card):
    """torch.cuda.is_available() says True for it, and its first kernel raises."""
    with_cards(card)
    with pytest.warns(
        UserWarning, match=rf"cuda:0 has capability {card.capability[0]}.{card.capability[1]} and is not"
    ):
        assert pick_device("auto") == torch.device("cpu")
    with pytest.warns(UserWarning, match="cuda:0"), pytest.raises(ValueError, match="finds only cpu"):
        pick_device("cuda")


def test_kernels_that_are_compiled_on_the_machine_run_on_later_cards(with_cards):
    with_cards(Card(BLACKWELL, ["sm_80", "compute_90"]))
    assert pick_device("auto") == torch.device("cuda")


M2 = {"arm_bf16": True, "architecture": "aarch64", "neon": True}
GRAVITON = {"arm_bf16": True, "architecture": "aarch64", "neon": True, "sve": True}
AVX2 = {"avx2": True, "architecture": "x86_64"}


@pytest.mark.parametrize(
    ("capabilities", "has_onednn", "native"),
    [
        (M2, False, False),
        (GRAVITON, True, True),
        (AVX2, True, False),
        ({"avx512_bf16": True}, False, False),
        ({}, True, False),
    ],
)
def test_bfloat16_is_native_only_with_the_library_that_multiplies_it(monkeypatch, capabilities, has_onednn, native):
    """An M2 has the instructions, but PyTorch for macOS has no oneDNN: there bfloat16 is 10 to 50 times slower."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_onednn)
    monkeypatch.setattr(kernels, "CPU", kernels.this_processor())
    assert pick_dtype("auto", CPU) == (HALF if native else FULL)


def test_memory_is_checked_only_if_the_system_reports_it(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  3000 kB\n")
    assert free_memory(CPU) == 3_072_000
    check_memory(3_072_000, "this")
    with pytest.raises(ValueError, match=r"this needs about 4\.0 GB of memory, but 4 MB are free on cpu"):
        check_memory(4_000_000_000, "this")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "no memory here")
    check_memory(10**18, "this")


def test_without_proc_the_memory_of_the_machine_counts_where_it_is_known(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: Path(os.devnull, "missing").stat())
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1_000, "SC_PAGE_SIZE": 16_384}.__getitem__, raising=False)
    assert free_memory(CPU) == 16_384_000, "macOS"
    monkeypatch.delattr(os, "sysconf")
    assert free_memory(CPU) is None, "Windows"


def test_memory_that_pytorch_keeps_for_itself_is_free(monkeypatch):
    """Each model that was timed leaves its peak in the allocator; what it left must not count against the next one."""
    total, in_use = 12_000, 500
    for peak in (0, 3_000, 9_000):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, peak=peak: (total - in_use - peak, total))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device, peak=peak: in_use + peak)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: in_use)
        assert free_memory(torch.device("cuda")) == total - in_use
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: total)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: in_use + peak)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: in_use)
    assert free_memory(torch.device("mps")) == total - in_use


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("6400000 100000", 8),
        ("max 100000", None),
        ("", None),
    ],
)
def test_the_quota_of_a_container_limits_the_threads(monkeypatch, quota, cores):
    monkeypatch.setattr(Path, "read_text", lambda path, **_: {"/sys/fs/cgroup/cpu.max": quota}[path.as_posix()])
    threads = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    use_available_cores()
    assert threads == [], "OMP_NUM_THREADS is set"
    monkeypatch.delenv("OMP_NUM_THREADS")
    use_available_cores()
    assert threads == ([cores] if cores else [])


def test_freed_memory_is_kept_with_what_the_c_library_allows(monkeypatch):
    """Setting only the trim option would be slower than setting none: it ends glibc's adaptive threshold."""

    def options(largest_threshold: int) -> dict[int, int]:
        accepted = {}

        def mallopt(option: int, value: int) -> int:
            if option == machine.M_MMAP_THRESHOLD and value > largest_threshold:
                return 0
            accepted[option] = value
            return 1

        monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
        keep_freed_memory()
        return accepted

    trim = {machine.M_TRIM_THRESHOLD: 2**31 - 1}
    assert options(2**40) == {machine.M_MMAP_THRESHOLD: 2**30} | trim
    assert options(2**25) == {machine.M_MMAP_THRESHOLD: 2**25} | trim, "glibc before 2.36"
    assert options(0) == {}
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # a C library without mallopt
    keep_freed_memory()
