"""Thread settings of the scripts: the waiting is set before torch is loaded, the number by the size of the work."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from script_helpers import ROOT, run_python

import startup
from model.cli import machine
from model.cli.machine import choose_threads

PROGRAMS = ["train", "generate", "convert", "evaluate", "study"]
CPU = torch.device("cpu")


@pytest.fixture
def environment(monkeypatch):
    """``environment(running, **variables)``: the variables that a script adds while ``running`` processes run."""

    def start_script(running: int, **variables: str) -> dict[str, str]:
        monkeypatch.setattr(os, "environ", dict(variables))
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"0.5 0.4 0.3 {running}/321 12345\n")
        startup.choose_waiting()
        return {name: value for name, value in os.environ.items() if name not in variables}

    return start_script


def test_waiting_threads_spin_briefly_or_sleep_if_the_machine_is_busy(environment):
    assert environment(running=1) == environment(running=2) == {"GOMP_SPINCOUNT": "10000"}
    assert environment(running=3) == environment(running=9) == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_a_short_burst_of_load_does_not_make_the_machine_busy(environment, monkeypatch):
    assert environment(running=9) == startup.WHEN_BUSY
    running = iter([9, 9, 9, 2, 9])
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"0.5 0.4 0.3 {next(running)}/321 12345\n")
    assert not startup.machine_is_busy()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "no load here")
    assert not startup.machine_is_busy()


@pytest.mark.parametrize("name", startup.USER_SETTINGS)
def test_variables_that_the_user_has_set_are_kept(environment, name):
    assert environment(running=1, **{name: "7"}) == environment(running=9, **{name: "7"}) == {}


def test_libgomp_reads_the_variables_that_a_script_sets():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    env["OMP_DISPLAY_ENV"] = "VERBOSE"
    done = run_python("-m", "study", "--help", env=env, check=True)
    if "GOMP_SPINCOUNT" in done.stderr:  # libgomp prints its settings; other OpenMP libraries have other variables
        assert "GOMP_SPINCOUNT = '10000'" in done.stderr or "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


def test_packages_that_few_runs_need_are_not_imported_at_the_start():
    """FSDP imports sympy, plots import matplotlib: both take longer than everything else but torch."""
    program = "import sys; import convert, evaluate, generate, study, train; print(*sys.modules)"
    done = run_python("-c", program, check=True)
    slow = {"torch.distributed.fsdp", "sympy", "matplotlib", "transformers", "torch._dynamo", "jinja2"}
    assert not slow & {*done.stdout.split()}


def test_importing_the_library_does_not_change_the_program(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(str(os.environ == before))", encoding="utf-8")
    program = "import builtins, os, sys; builtins.os, builtins.before = os, dict(os.environ); "
    program += f"sys.path.insert(0, {str(tmp_path)!r}); sys.path.append({str(ROOT)!r}); import model"
    assert run_python("-c", program, cwd=tmp_path).stderr.strip() == "True"


def test_small_models_decode_with_one_thread_and_large_ones_with_all(monkeypatch):
    numbers = [8]  # in place of PyTorch's, so that the test does not change it
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "8")  # is respected
        assert choose_threads(CPU, 10) == 8
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert choose_threads(CPU, machine.MIN_WEIGHTS_FOR_THREADS) == 8
    assert choose_threads(CPU) == 8  # training
    assert choose_threads(torch.device("cuda"), 10) == 8
    assert choose_threads(CPU, machine.MIN_WEIGHTS_FOR_THREADS - 1) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows Ctrl-C reaches the whole process group")
@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_during_imports_prints_no_traceback(tmp_path, program):
    (tmp_path / "torch.py").write_text("import os, time\nos.write(1, b'importing')\ntime.sleep(60)\n", encoding="utf-8")
    command = f"import runpy, sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
    command += f"runpy.run_module({program!r}, run_name='__main__')"
    child = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.read(len("importing"))
    child.send_signal(signal.SIGINT)
    assert child.communicate()[1] == b""
    assert child.returncode == 130
