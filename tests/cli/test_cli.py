"""How a program starts and ends: exit codes, signals, and one line for a user's mistake."""

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from script_helpers import ROOT

from model.cli import print_note, run_script, user_path
from model.cli.script import STOP_SIGNALS

FREE_SPACE = "free some space there, or write to another disk"


def outcome(capsys, main) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_script(main, "script.py")
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def raising(error: BaseException):
    def main() -> int:
        print("so far")
        raise error

    return main


def test_the_exit_code_is_the_result_of_main(capsys):
    assert outcome(capsys, lambda: None) == (0, "", "")
    assert outcome(capsys, lambda: 3) == (3, "", "")
    assert outcome(capsys, raising(KeyboardInterrupt())) == (130, "so far\n", "")


def process_state() -> list[object]:
    signals = [signal.getsignal(number) for number in STOP_SIGNALS]
    return [*signals, sys.stdin, sys.stdout, sys.stderr, sys.stdout.errors, warnings.formatwarning]


ENDS = (None, SystemExit(3), KeyboardInterrupt(), ValueError("mistake"), OSError("disk"), KeyError("bug"))


@pytest.mark.parametrize("error", ENDS)
@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_a_program_that_ends_inside_another_one_leaves_the_process_as_it_was(monkeypatch, error, handler):
    """As with IPython's %run, where Ctrl-C must end a loop afterwards."""
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)  # so that it is replaced, as at the start of a process

    def main() -> None:
        assert sys.stderr is not before[-3]
        if error:
            raise error

    for number in STOP_SIGNALS[1:]:
        signal.signal(number, handler)
    before = process_state()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as startup.py does
    with pytest.raises(KeyError if isinstance(error, KeyError) else SystemExit):
        run_script(main, "script.py")
    assert process_state() == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_no_signal_interrupts_the_end_of_python():
    program = "import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT)); "
    program += "from model.cli import run_script; run_script(lambda: print('done'), 'script.py')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b"")


def test_a_warning_that_is_an_error_is_one_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, _, err = outcome(capsys, lambda: warnings.warn("3 files\nskipped", stacklevel=1))
    assert (code, err) == (2, "script.py: error: 3 files skipped\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_ends_a_program_unless_its_parent_ignores_it(capsys, name):
    """A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP."""
    number = getattr(signal, name, None) or pytest.skip("not on Windows")
    assert outcome(capsys, lambda: signal.raise_signal(number)) == (128 + number, "", "")
    signal.signal(number, signal.SIG_IGN)
    assert outcome(capsys, lambda: signal.raise_signal(number)) == (0, "", "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\n  second"), "first second"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory"),
        (OSError("disk went away"), "disk went away"),
        (OSError(errno.ENOSPC, "Disk is full", "a.txt"), f"a.txt: Disk is full: {FREE_SPACE}"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, error, line):
    """stdout keeps the text so far, without the error."""
    assert outcome(capsys, raising(error)) == (2, "so far\n", f"script.py: error: {line}\n")


def test_a_bug_and_a_mistake_in_the_users_own_code_keep_their_traceback(tmp_path, monkeypatch):
    """Neither is a mistake of a user of the programs, and the traceback says in which line it is."""
    (tmp_path / "mine.py").write_text("def network():\n    raise ValueError('a and b differ')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for main, words in (
        (raising(KeyError("bug")), "bug"),
        (raising(RuntimeError("shapes cannot be multiplied")), "shapes cannot be multiplied"),
        (lambda: json.loads("["), "Expecting value"),  # of a library
        (lambda: importlib.import_module("mine").network(), "a and b differ"),
    ):
        with pytest.raises((KeyError, RuntimeError, ValueError), match=words) as raised:
            run_script(main, "script.py")
    assert raised.traceback[-1].path == tmp_path / "mine.py"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_a_message_that_cannot_be_written_does_not_end_a_program(monkeypatch, capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "__stderr__", full)
        monkeypatch.setattr(sys, "stderr", full)
        assert outcome(capsys, lambda: print_note("██ 🪢"))[0] == 0


OUT_OF_MEMORY = [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")]


@pytest.mark.parametrize("main", [*map(raising, OUT_OF_MEMORY), lambda: torch.empty(2**60)])
def test_running_out_of_memory_is_one_line_with_advice(capsys, main):
    line = "script.py: error: this machine has too little free memory: close other programs, or use smaller settings\n"
    code, _, err = outcome(capsys, main)
    assert (code, err) == (2, line)


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_and_a_full_disk_is_one_line():
    program = "from model.cli import run_script\nrun_script(lambda: print('many words 🪢\\n' * 200000), 'script.py')"
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONIOENCODING": "cp1252"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        assert script.stdout.readline().split() == [b"many", b"words", b"?"]
        script.stdout.close()
        assert script.stderr.read() == b""
        assert script.wait(timeout=300) == 0
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert done.stderr == f"script.py: error: [Errno 28] No space left on device: {FREE_SPACE}\n".encode()


@pytest.mark.parametrize("page", ["https://huggingface.co/org/name", "https://hf.co/org/name/tree/main?x=1"])
def test_a_path_may_begin_with_a_tilde_or_be_the_address_of_a_models_page(page):
    assert user_path("~/x") == Path.home() / "x"
    assert user_path(page) == Path("org/name")
    assert user_path("https://example.org/a/b") == Path("https://example.org/a/b")
