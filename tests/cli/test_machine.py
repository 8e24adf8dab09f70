"""The choice of device, dtype and cores, and the memory check, on machines of all kinds, which are simulated."""

import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.cli import machine

CPU = torch.device("cpu")
HALF, FULL = torch.bfloat16, torch.float32


def test_auto_is_the_stored_dtype_if_it_is_native_and_else_float32(each_processor):
    for stored in (FULL, HALF, torch.float16):
        assert machine.pick_dtype("auto", CPU, stored) == (HALF if stored == HALF and each_processor else FULL)
    assert machine.pick_dtype("auto", CPU) == machine.pick_dtype("auto", CPU, HALF), "training"
    for name, dtype in machine.DTYPES_BY_NAME.items():
        assert machine.pick_dtype(name, CPU, torch.float16) == dtype


@pytest.fixture
def with_cards(monkeypatch) -> Callable[..., None]:
    """Simulate NVIDIA cards of one capability."""

    def simulate(capability: tuple[int, int], count: int = 1, works: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: works)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)

    return simulate


ADA = (8, 9)


def test_a_missing_device_is_refused_and_auto_is_the_best_one(with_cards):
    with_cards(ADA, count=2, works=False)
    assert machine.pick_device("auto") == CPU, "the driver may be too old for PyTorch"
    for name in ("abacus", "cpu:1", "", "cuda", "mps"):
        with pytest.raises(ValueError, match=f"^device is '{name}': PyTorch finds only cpu"):
            machine.pick_device(name)
    with_cards(ADA, count=2)
    assert [machine.pick_device(name) for name in ("auto", "cuda:1")] == [torch.device("cuda"), torch.device("cuda:1")]
    with pytest.raises(ValueError, match="finds only cuda, cuda:0, cuda:1, cpu"):
        machine.pick_device("cuda:2")


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 9), (12, 1)])
def test_the_16_bits_of_a_card_are_bfloat16_from_ampere_on(with_cards, capability):
    with_cards(capability)
    assert machine.pick_device("auto") == torch.device("cuda")
    half = HALF if capability >= (8, 0) else torch.float16
    assert machine.pick_dtype("auto", torch.device("cuda")) == half
    assert machine.pick_dtype("int8", torch.device("cuda")) == half
    assert machine.pick_dtype("auto", torch.device("cuda"), FULL) == FULL


def test_a_card_that_this_build_of_pytorch_cannot_use_is_named(with_cards, monkeypatch):
    """PyPI's PyTorch for Windows is built for the CPU only."""
    with_cards(ADA, count=0, works=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(machine.shutil, "which", {"nvidia-smi": r"C:\Windows\system32\nvidia-smi.exe"}.get)
    with pytest.warns(UserWarning, match=r"^the NVIDIA card is not used: .* built for the CPU only: install .*pytorch"):
        assert machine.pick_device("auto") == CPU
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=r"^device is .* finds only cpu .*; this PyTorch was built for the CPU"):
            machine.pick_device(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine.pick_device("cpu") == CPU
        monkeypatch.setattr(machine.shutil, "which", lambda name: None)
        assert machine.pick_device("auto") == CPU


@pytest.mark.parametrize("capability", ["arm_bf16", "avx512_bf16", "other"])
@pytest.mark.parametrize("has_onednn", [False, True])
def test_bfloat16_is_native_only_with_the_library_that_multiplies_it(monkeypatch, capability, has_onednn):
    """An M2 has the instructions, but PyTorch for macOS has no oneDNN: there bfloat16 is 10 to 50 times slower."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_onednn)
    monkeypatch.setattr(machine, "CPU", machine.this_processor())
    native = has_onednn and capability != "other"
    assert machine.pick_dtype("auto", CPU) == (HALF if native else FULL)


def test_memory_is_checked_only_if_the_system_reports_it(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  3000 kB\n")
    assert machine.free_memory(CPU) == 3_072_000
    machine.check_memory(3_072_000, "this")
    with pytest.raises(ValueError, match=r"this needs about 4\.0 GB of memory, but 4 MB are free on cpu"):
        machine.check_memory(4_000_000_000, "this")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "no memory here")
    machine.check_memory(10**18, "this")


V2, V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("0::/", {}, 3_072_000),  # no container
        ("0::/", {V2: {"": (2000, 500)}}, 1500),
        ("0::/", {V2: {"": ("max", 500)}}, 3_072_000),
        ("0::/", {V2: {"": (9_000_000, 500)}}, 3_072_000),  # the machine has less
        ("0::/", {V2: {"": (2000, 2500)}}, 0),  # lowered below the use
        ("0::/user/job/step", {V2: {"user/job/step": ("max", 7), "user/job": (900, 100), "user": (4000, 9)}}, 800),
        ("0::/user/job/step", {V2: {"user/job/step": (600, 7), "user": (4000, 3950)}}, 50),
        ("0::/a/path/of/the/host", {V2: {"": (2000, 1999)}}, 1),  # seen from within a container
        ("0::/../../outside", {V2: {"": (2000, 500)}}, 1500),
        ("5:cpu,cpuacct:/a\n4:memory:/docker/1", {V1: {"memory/docker/1": (2000, 300), "memory": (10**19, 4)}}, 1700),
        ("4:memory:/docker/1\n0::/", {V1: {"memory": (2000, 300)}}, 1700),
        ("4:hugetlb,memory:/a\n0::/a", {V1: {"memory/a": (2000, 300)}, V2: {"a": (1600, 0)}}, 1600),
        ("7:cpuset:/a", {V1: {"memory/a": (2000, 300)}}, 3_072_000),  # of another process
    ],
)
def test_free_memory_is_the_smallest_of_the_machine_and_of_each_group_around_the_process(tmp_path, groups, files, free):
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  3000 kB\n")
    write(tmp_path / "proc/self/cgroup", f"{groups}\n")
    for (limit, use), found in files.items():
        for path, (limited, used) in found.items():
            write(tmp_path / "sys/fs/cgroup" / path / limit, f"{limited}\n")
            write(tmp_path / "sys/fs/cgroup" / path / use, f"{used}\n")
    assert machine.free_memory(CPU, tmp_path) == free


@pytest.mark.parametrize(("names", "prefix", "folder"), [(V2, "", ""), (V1, "total_", "memory")])
def test_pages_of_files_that_were_read_count_as_free(tmp_path, names, prefix, folder):
    """Or else nothing would be free after a text of the size of the limit was read."""
    write(tmp_path / "proc/meminfo", "MemAvailable:  3000 kB\n")
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n" if folder else "0::/\n")
    for name, content in (*zip(names, ("2000\n", "1900\n")), ("memory.stat", "anon 5\nactive_file 0\n")):
        write(tmp_path / "sys/fs/cgroup" / folder / name, content)
    assert machine.free_memory(CPU, tmp_path) == 100
    facts = f"{prefix}inactive_file 600\n{prefix}active_file 200\n{prefix}inactive_anon 70\n"
    write(tmp_path / "sys/fs/cgroup" / folder / "memory.stat", facts)
    assert machine.free_memory(CPU, tmp_path) == 900


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def test_without_proc_the_memory_of_the_machine_counts_where_it_is_known(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: Path(os.devnull, "missing").stat())
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1_000, "SC_PAGE_SIZE": 16_384}.__getitem__, raising=False)
    assert machine.free_memory(CPU) == 16_384_000, "macOS"
    monkeypatch.delattr(os, "sysconf")
    assert machine.free_memory(CPU) is None, "Windows"


def test_memory_that_pytorch_keeps_for_itself_is_free(monkeypatch):
    """Each model that was timed leaves its peak in the allocator; what it left must not count against the next one."""
    total, in_use = 12_000, 500
    for peak in (0, 3_000, 9_000):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, peak=peak: (total - in_use - peak, total))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device, peak=peak: in_use + peak)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: in_use)
        assert machine.free_memory(torch.device("cuda")) == total - in_use
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: total)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: in_use)
    assert machine.free_memory(torch.device("mps")) == total - in_use


@pytest.mark.parametrize(
    ("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("6400000 100000", 8), ("max 100000", None)]
)
def test_the_quota_of_a_container_limits_the_threads_of_a_program(monkeypatch, quota, cores):
    monkeypatch.setattr(Path, "read_text", lambda path, **_: {"/sys/fs/cgroup/cpu.max": quota}[path.as_posix()])
    threads = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with machine.available_cores():
        assert threads == [], "OMP_NUM_THREADS is set"
    monkeypatch.delenv("OMP_NUM_THREADS")
    threads.clear()
    with machine.available_cores():
        assert threads == ([cores] if cores else [])
    assert threads[-1] == 8, "as with IPython's %run, which goes on in the process"


@pytest.mark.parametrize(
    ("loadavg", "states", "free"),
    [
        ("0.1 0.2 0.3 1/80 99", "R", 8),
        ("9.9 0.2 0.3 4/80 99", "R", 5),
        ("0.1 0.2 0.3 4/80 99", "RSR", 6),
        ("0.1 0.2 0.3 1/80 99", "RRR", 8),
        ("0.1 0.2 0.3 90/99 99", "R", 1),
        ("0.00 0.00 0.00 0/0 0", "R", 8),
        ("", "R", 8),
        (None, "", 8),
    ],
)
def test_free_cores_are_those_that_no_other_process_keeps_busy(monkeypatch, tmp_path, loadavg, states, free):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    if loadavg is not None:
        (tmp_path / "loadavg").write_text(loadavg, encoding="ascii")
    for number, state in enumerate(states):
        task = tmp_path / "self/task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a) S b) {state} 1 2 3\n", encoding="ascii")
    assert machine.free_cores(tmp_path) == free
    assert 1 <= machine.free_cores() <= 8


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_the_memory_that_a_step_frees_is_used_in_the_next_one():
    """Else the system clears every page again, with a page fault for each of the 20,000."""
    resource = pytest.importorskip("resource")
    machine.keep_freed_memory()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(12):
        step = [torch.empty(5 * 10**6).fill_(1) for _ in range(4)]
        del step
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert faults < 4 * 20_000, "the first steps need memory, and their blocks may not fit the next ones"
