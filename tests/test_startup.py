"""How the scripts set up the threads: before torch is loaded, and by the size of the work."""

import gc
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.cli import machine, run_script
from model.cli.machine import choose_threads
from model.scripts import startup

ROOT = Path(__file__).parent.parent
SCRIPTS = ["train.py", "generate.py", "convert.py", "study.py", "evaluate.py"]
CPU = torch.device("cpu")


@pytest.fixture
def environment(monkeypatch):
    """Starts a script with these variables and that many running processes; gives what was added to the variables."""

    def load(running: int, **variables: str) -> dict[str, str]:
        monkeypatch.setattr(os, "environ", dict(variables))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"0.5 0.4 0.3 {running}/321 12345\n")
        assert startup.choose_waiting() == (running > 2)
        return {name: value for name, value in os.environ.items() if name not in variables}

    return load


def test_threads_spin_briefly_and_sleep_where_the_machine_is_busy(environment):
    assert environment(running=1) == environment(running=2) == {"GOMP_SPINCOUNT": "10000"}
    assert environment(running=3) == environment(running=9) == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_a_moments_work_is_no_busy_machine(environment, monkeypatch):
    assert environment(running=9) == startup.WHEN_BUSY
    running = iter([9, 9, 9, 2, 9])
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"0.5 0.4 0.3 {next(running)}/321 12345\n")
    assert not startup.machine_is_busy()


@pytest.mark.parametrize("name", startup.USER_SETTINGS)
def test_what_the_user_has_set_wins(environment, name):
    assert environment(running=1, **{name: "7"}) == environment(running=9, **{name: "7"}) == {}


def test_a_system_that_does_not_tell_is_taken_for_quiet(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert not startup.machine_is_busy()


def test_what_a_script_sets_reaches_the_threads():
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "study.py", "--help"], cwd=ROOT, env=own | {"OMP_DISPLAY_ENV": "VERBOSE"},
                          capture_output=True, text=True, encoding="utf-8", check=True)  # fmt: skip
    if "GOMP_SPINCOUNT" in done.stderr:  # libgomp says what it has read; other libraries have other variables
        assert "GOMP_SPINCOUNT = '10000'" in done.stderr or "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


def test_a_mistake_costs_little_more_than_loading_torch():
    """What takes long to import is imported by the one run that uses it: sharding brings sympy, plots a library."""
    program = "import sys, model.scripts.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert not {"torch.distributed.fsdp", "sympy", "matplotlib", "transformers", "torch._dynamo"} & {
        *done.stdout.split()
    }


def test_only_the_projects_own_scripts_are_set_up(tmp_path, monkeypatch):
    assert {path.name for path in ROOT.glob("*.py")} == set(startup.SCRIPTS)
    for started in (*(str(ROOT / name) for name in startup.SCRIPTS), "/usr/bin/ropewalk", "ropewalk.exe"):
        assert startup.is_own_script(started), started
    for started in ("", "-c", "-m", str(ROOT / "mine.py"), str(tmp_path / "train.py"), "/usr/bin/pytest"):
        assert not startup.is_own_script(started), started
    monkeypatch.chdir(ROOT)
    assert startup.is_own_script("train.py")
    monkeypatch.chdir(tmp_path)
    assert not startup.is_own_script("train.py")


def test_a_program_that_imports_the_library_stays_as_it_is(tmp_path):
    (tmp_path / "torch.py").write_text(
        "raise SystemExit(str((gc.isenabled(), os.environ == before)))", encoding="utf-8"
    )
    program = "import builtins, gc, os, sys; builtins.gc, builtins.os, builtins.before = gc, os, dict(os.environ); "
    program += f"sys.path.insert(0, {str(tmp_path)!r}); sys.path.append({str(ROOT)!r}); import model"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.stderr.strip() == "(True, True)"


@pytest.fixture
def threads(monkeypatch):
    """What PyTorch is told, without telling it."""
    told = [8]
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_small_work_gets_one_thread_and_large_work_all(threads):
    assert choose_threads(CPU, machine.THREADS_PAY_FROM) == 8
    assert choose_threads(CPU) == 8  # training
    assert choose_threads(torch.device("cuda"), 10) == 8
    assert choose_threads(CPU, machine.THREADS_PAY_FROM - 1) == 1


def test_the_users_number_of_threads_stays(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert choose_threads(CPU, 10) == 8


def start_with(torch: str, script: str, folder: Path) -> subprocess.Popen:
    """A script that finds a module of this source instead of torch."""
    (folder / "torch.py").write_text(torch, encoding="utf-8")
    command = f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); sys.argv = [{str(ROOT / script)!r}]; "
    command += f"sys.path.insert(1, {str(ROOT)!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
    return subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(sys.platform == "win32", reason="there Ctrl-C reaches a whole group of processes")
@pytest.mark.parametrize("script", SCRIPTS)
def test_ctrl_c_while_everything_is_imported_leaves_no_traceback(tmp_path, script):
    child = start_with("import os, time\nos.write(1, b'importing')\ntime.sleep(60)\n", script, tmp_path)
    child.stdout.read(len("importing"))
    child.send_signal(signal.SIGINT)
    assert child.communicate()[1] == b""
    assert child.returncode == 130


@pytest.mark.parametrize("script", SCRIPTS)
def test_garbage_is_collected_from_the_work_on_and_not_while_everything_is_imported(tmp_path, script):
    child = start_with("import gc\nraise SystemExit(f'enabled: {gc.isenabled()}')\n", script, tmp_path)
    assert child.communicate()[1].strip() == b"enabled: False"

    seen = []
    gc.disable()
    try:
        with pytest.raises(SystemExit):
            run_script(lambda: seen.append(gc.isenabled()), script)
    finally:
        gc.enable()
        gc.unfreeze()
    assert seen == [True]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_each_script_also_starts_as_a_module(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"model.scripts.{Path(script).stem}", run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {script}" in capsys.readouterr().out
