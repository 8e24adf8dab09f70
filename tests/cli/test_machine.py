"""The choice of device and dtype, and the memory check, on machines of all kinds."""

from pathlib import Path

import pytest
import torch

from model.cli import machine
from model.cli.machine import check_memory, free_memory, keep_freed_memory, pick_device, pick_dtype

CPU = torch.device("cpu")
HALF, FULL = torch.bfloat16, torch.float32


def test_auto_is_the_stored_dtype_if_it_is_native_and_else_float32(each_processor):
    for stored in (FULL, HALF, torch.float16):
        assert pick_dtype("auto", CPU, stored) == (HALF if stored == HALF and each_processor else FULL)
    assert pick_dtype("auto", CPU) == pick_dtype("auto", CPU, HALF), "training"


def test_an_explicit_dtype_is_used_on_every_processor(each_processor):
    for name, dtype in machine.DTYPES_BY_NAME.items():
        assert pick_dtype(name, CPU, torch.float16) == dtype


def test_a_missing_device_is_refused_and_auto_is_the_best_one(monkeypatch):
    assert pick_device("auto") == torch.device("cpu")
    for name in ("abacus", "cpu:1", "", "cuda", "mps"):
        with pytest.raises(ValueError, match=f"^device is '{name}': PyTorch finds only cpu"):
            pick_device(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == torch.device("cpu"), "the driver may be too old for PyTorch"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [pick_device(name) for name in ("auto", "cuda:1")] == [torch.device("cuda"), torch.device("cuda:1")]
    with pytest.raises(ValueError, match="finds only cuda, cuda:0, cuda:1, cpu"):
        pick_device("cuda:2")


def test_memory_is_checked_only_if_the_system_reports_it(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  3000 kB\n")
    assert free_memory(CPU) == 3_072_000
    check_memory(3_072_000, "this")
    with pytest.raises(ValueError, match=r"this needs about 4\.0 GB of memory, but 4 MB are free on cpu"):
        check_memory(4_000_000_000, "this")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "no memory here")
    check_memory(10**18, "this")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000, 9_000))
    assert free_memory(torch.device("cuda")) == 3_000, "on a GPU the free memory counts, not the total"


def test_keeping_freed_memory_does_nothing_without_glibc(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # a C library without mallopt
    keep_freed_memory()
