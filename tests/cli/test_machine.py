"""The choice of device and dtype, and the memory check, on machines of all kinds."""

import os
from pathlib import Path

import pytest
import torch

from model.cli import machine
from model.cli.machine import available_memory, check_memory, keep_freed_memory, pick_device, pick_dtype

CPU = torch.device("cpu")
HALF, FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_auto_is_the_stored_dtype_if_it_is_native_and_else_float32(each_processor, stored):
    assert pick_dtype("auto", CPU, stored) == (HALF if stored == HALF and each_processor else FULL)


def test_an_explicit_dtype_is_used_on_every_processor(each_processor):
    for name, dtype in machine.DTYPES_BY_NAME.items():
        assert pick_dtype(name, CPU, torch.float16) == dtype


def test_auto_trains_in_bfloat16_if_it_is_native(each_processor):
    assert pick_dtype("auto", CPU) == (HALF if each_processor else FULL)


@pytest.mark.parametrize("name", ["abacus", "cuda:77", "cuda:99999999999999999999", "cpu:1", "", "cuda:-1"])
def test_a_missing_device_is_refused_with_its_name(name):
    with pytest.raises(ValueError, match=f"^device is {name!r}: "):
        pick_device(name)


def test_memory_is_checked_only_if_the_system_reports_it(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  3000 kB\n")
    assert available_memory() == 3_072_000
    check_memory(3_072_000, "this")
    with pytest.raises(ValueError, match=r"this needs about 4\.0 GB, but 0\.0 GB are free"):
        check_memory(4_000_000_000, "this")
    with pytest.raises(ValueError, match=r"this needs about 1000000000000000\.0 GB"):
        check_memory(10**400, "this")

    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert available_memory() is None
    check_memory(10**18, "this")


def test_keeping_freed_memory_does_nothing_without_glibc(monkeypatch):
    def absent(name):
        raise TypeError("Windows has no library without a name")

    for library in (absent, lambda name: object()):
        monkeypatch.setattr("ctypes.CDLL", library)
        keep_freed_memory()


def test_device_numbers_up_to_the_number_of_devices_are_accepted(monkeypatch):
    for name in ("cuda", "cuda:0", "mps"):
        with pytest.raises(ValueError, match=f"^device is '{name}': this machine has no such device"):
            pick_device(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [pick_device(name) for name in ("cuda", "cuda:1")] == [torch.device("cuda"), torch.device("cuda:1")]
    with pytest.raises(ValueError, match=r"^device is 'cuda:2': this machine has no such device"):
        pick_device("cuda:2")
