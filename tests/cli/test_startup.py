"""Thread settings of the scripts: the waiting is set before torch is loaded, the number by the size of the work."""

import startup

import ast
import os
import signal
import subprocess
import sys

import pytest
import torch
from script_helpers import ROOT, run_python

from model.cli.machine import MIN_WEIGHTS_FOR_THREADS, choose_threads

PROGRAMS = ["train", "generate", "chat", "convert a b", "evaluate", "study rotate"]
CPU = torch.device("cpu")


CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_variables_that_the_user_has_set_are_kept(name):
    program = "import os, startup; print({k: v for k, v in os.environ.items() if k.startswith(('OMP_', 'GOMP_'))})"
    assert run_python("-c", program, env=CLEAN | {name: "7"}).stdout.strip() == str({name: "7"})


def test_programs_set_libgomps_variables_and_import_nothing_that_few_runs_need():
    """FSDP imports sympy, plots import matplotlib: both take longer than everything else but torch."""
    files = [ROOT / f"{name}.py" for name in ("train", "generate", "chat", "convert", "evaluate")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    program = f"import startup, sys; import {', '.join(sorted(modules))}; print(*sys.modules)"
    done = run_python("-c", program, env=CLEAN | {"OMP_DISPLAY_ENV": "VERBOSE"}, check=True)
    slow = {"torch.distributed.fsdp", "sympy", "matplotlib", "transformers", "torch._dynamo", "jinja2"}
    assert not slow & {*done.stdout.split()}
    if "GOMP_SPINCOUNT" in done.stderr:  # libgomp prints its settings; other OpenMP libraries have other variables
        assert "GOMP_SPINCOUNT = '20000'" in done.stderr or "GOMP_SPINCOUNT = '300'" in done.stderr


@pytest.mark.parametrize(("running", "cores", "expected"), [(1, 2, 20_000), (2, 2, 300), (4, 8, 20_000), (5, 8, 300)])
def test_threads_spin_less_beside_a_busy_process_for_every_two_cores(running, cores, expected):
    assert startup.spins(f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked 0\n", cores) == expected
    assert startup.spins("cpu 1 2 3\n", cores) == startup.spins("", cores) == 20_000


def test_importing_the_library_does_not_change_the_program(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(str(os.environ == before))", encoding="utf-8")
    program = "import builtins, os, sys; builtins.os, builtins.before = os, dict(os.environ); "
    program += f"sys.path.insert(0, {str(tmp_path)!r}); sys.path.append({str(ROOT)!r}); from model import Transformer"
    assert run_python("-c", program, cwd=tmp_path).stderr.strip() == "True"


def test_small_models_decode_with_one_thread_and_large_ones_with_all(monkeypatch):
    numbers = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    choose_threads(CPU, 10)
    assert numbers == [], "OMP_NUM_THREADS is set"
    monkeypatch.delenv("OMP_NUM_THREADS")
    choose_threads(CPU, MIN_WEIGHTS_FOR_THREADS)
    choose_threads(torch.device("cuda"), 10)
    assert numbers == []
    choose_threads(CPU, MIN_WEIGHTS_FOR_THREADS - 1)
    assert numbers == [1]


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows Ctrl-C reaches the whole process group")
def test_ctrl_c_during_imports_prints_no_traceback(tmp_path):
    """In all programs, which are started together."""
    (tmp_path / "torch.py").write_text("import os, time\nos.write(1, b'importing')\ntime.sleep(60)\n", encoding="utf-8")
    children = []
    for program, *words in map(str.split, PROGRAMS):
        command = f"import runpy, sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
        command += f"runpy.run_module({program!r}, run_name='__main__')"
        arguments = [sys.executable, "-c", command, *words]
        children.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for child in children:
        child.stdout.read(len("importing"))
        child.send_signal(signal.SIGINT)
        assert child.communicate()[1] == b""
        assert child.returncode == 130


@pytest.mark.parametrize(
    ("command", "mistakes"),
    [
        ("train.py", {"--dimm 8": "did you mean '--dim'?", "--dropout 2": "dropout is 2.0: give a number from 0"}),
        ("generate.py", {"--promt x": "did you mean '--prompt'?", "--top_p 2": "top_p is 2.0: give a number"}),
        ("chat.py", {"--systm x": "did you mean '--system'?", "--context 0": "context is 0: give a whole number"}),
        ("evaluate.py", {"--strid 8": "did you mean '--stride'?", "--documents": "--documents is for JSON"}),
        ("convert.py", {"a b --too hf": "did you mean '--to'?", "a b --to gguf": "to is 'gguf': give one of hf"}),
        ("runs.py", {"--plott x": "did you mean '--plot'?", "--minutes": "--minutes and --plot are for curves"}),
        ("-m study", {"rotat": "did you mean 'rotate'?"}),
    ],
)
def test_help_and_mistyped_flags_do_not_wait_for_pytorch(tmp_path, command, mistakes):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = run_python(*command.split(), "--help", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert command in done.stdout
    for arguments, message in mistakes.items():
        done = run_python(*command.split(), *arguments.split(), env=environment)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
