"""How a program starts and ends: exit codes, signals, and one line for a user's mistake."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from script_helpers import ROOT

from model.cli import explain_out_of_memory, print_note, run_script


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
    signal.raise_signal(signal.SIGINT)  # ignored after a script has ended


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\n  second"), "first second"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory"),
        (OSError("disk went away"), "disk went away"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, error, line):
    """stdout keeps the text so far, without the error."""
    assert outcome(capsys, raising(error)) == (2, "so far\n", f"script.py: error: {line}\n")


def test_a_closed_standard_input_is_an_empty_one(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as after ``<&-``
    assert outcome(capsys, lambda: len(sys.stdin.buffer.read())) == (0, "", "")


@pytest.mark.parametrize("closed", [("stdout",), ("stderr",), ("stdin", "stdout", "stderr")])
def test_what_is_written_to_a_closed_stream_is_discarded(monkeypatch, closed):
    for name in closed:  # as after ``>&-`` and ``2>&-``
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: print("text") or print("note", file=sys.stderr), "script.py")
    assert ended.value.code == 0


def test_a_mistake_in_the_users_own_code_keeps_its_traceback(tmp_path, monkeypatch):
    """It is no mistake of a user of the programs, and the traceback says in which line it is."""
    (tmp_path / "mine.py").write_text("def network():\n    raise ValueError('a and b differ')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="a and b differ") as raised:
        run_script(lambda: importlib.import_module("mine").network(), "script.py")
    assert raised.traceback[-1].path == tmp_path / "mine.py"
    with pytest.raises(ValueError, match="Expecting value"):  # of a library
        run_script(lambda: json.loads("["), "script.py")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_a_message_that_cannot_be_written_does_not_end_a_program(monkeypatch):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "__stderr__", full)
        monkeypatch.setattr(sys, "stderr", full)
        with pytest.raises(SystemExit) as ended:
            run_script(lambda: print_note("██ 🪢"), "script.py")
    assert ended.value.code == 0


@pytest.mark.parametrize("error", [KeyError("bug"), RuntimeError("shapes cannot be multiplied")])
def test_an_unexpected_exception_keeps_its_traceback(error):
    with pytest.raises(type(error), match=str(error)):
        run_script(raising(error), "script.py")


@pytest.mark.skipif(sys.platform == "win32", reason="TerminateProcess cannot be handled")
def test_sigterm_while_a_text_is_read_leaves_nothing(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, ROOT / "train.py", "--data", "-", "--out_dir", tmp_path / "run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as script:
        while not (tmp_path / "run" / ".lock").exists():  # then it waits for text on stdin
            assert script.poll() is None
            time.sleep(0.05)
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 128 + signal.SIGTERM
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("out of memory"), RuntimeError("CUDA error: out of memory"), None]
)
def test_running_out_of_memory_is_one_line_with_the_advice_of_the_script(capsys, error):
    def run_out() -> None:
        if error:
            raise error
        torch.empty(2**60)

    def advising() -> None:
        with explain_out_of_memory("lower --batch_size", torch.device("cuda:1")):
            run_out()

    for main, line in (
        (run_out, "this machine has too little free memory: close other programs, or use smaller settings"),
        (advising, "cuda:1 has too little free memory: lower --batch_size"),
    ):
        assert outcome(capsys, main) == (2, "", f"script.py: error: {line}\n")


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
        assert (done.returncode, done.stderr) == (2, b"script.py: error: [Errno 28] No space left on device\n")
