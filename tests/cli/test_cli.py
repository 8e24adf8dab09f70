import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from script_helpers import ROOT

from model.cli import Parser, explain_out_of_memory, run_script


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
        (ValueError("dim is 3: make it even"), "dim is 3: make it even"),
        (ValueError("first\n  second"), "first second"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory"),
        (OSError("disk went away"), "disk went away"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, error, line):
    code, out, err = outcome(capsys, raising(error))
    assert code == 2
    assert out == "so far\n"  # stdout keeps the text so far, without the error
    assert err.startswith("script.py: error: ")
    assert err.rstrip("\n").endswith(line)
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [KeyError("bug"), RuntimeError("shapes cannot be multiplied")])
def test_an_unexpected_exception_keeps_its_traceback(error):
    with pytest.raises(type(error), match=str(error)):
        run_script(raising(error), "script.py")


@pytest.mark.skipif(sys.platform == "win32", reason="TerminateProcess cannot be handled")
def test_sigterm_leaves_no_temporary_file(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, ROOT / "train.py", "--data", "-", "--out_dir", tmp_path / "run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as script:
        while not list(tmp_path.glob("ropewalk-stdin-*")):  # until it waits for text on stdin
            assert script.poll() is None
            time.sleep(0.05)
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 7 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("std::bad_alloc"),
        None,
    ],
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


def test_a_closed_pipe_is_not_an_error():
    program = "from model.cli import run_script\nrun_script(lambda: print('many words\\n' * 200000), 'script.py')"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as script:
        assert script.stdout.readline() == b"many words\n"
        script.stdout.close()
        assert script.stderr.read() == b""
        assert script.wait(timeout=300) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batchsize=3"], "'--batchsize': did you mean '--batch_size'?"),
        (["--vocab", "3"], "did you mean '--vocab_size'?"),  # no abbreviations
        (["--q"], "'--q': try --help"),
        (["one", "two"], "'two'"),
        (["--vocab_size"], "--vocab_size: expected one argument"),
        (["--vocab_size", "x"], "--vocab_size: invalid int value: 'x'"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(capsys, arguments, words):
    parser = Parser(prog="script.py")
    parser.add_argument("config", nargs="?")
    parser.add_argument("--vocab_size", type=int)
    parser.add_argument("--batch_size", type=int)
    code, out, err = outcome(capsys, lambda: parser.parse_args(arguments))
    assert (code, out) == (2, "")
    assert err.startswith("script.py: error: ")
    assert err.count("\n") == 1
    assert words in err


WORK = """
import sys
from model.cli import run_script
def main():
    print(sys.stdin.read(), 'the work')
    print('a note', file=sys.stderr)
run_script(main, 'x.py')
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_closed_streams_are_replaced_by_the_null_device():
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, WORK]
    assert subprocess.check_output(command, cwd=ROOT) == b" the work\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_full_disk_under_stdout_is_one_line_and_under_stderr_no_error():
    command = [sys.executable, "-c", WORK]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert done.stderr.splitlines()[1:] == [b"x.py: error: [Errno 28] No space left on device"]
        assert subprocess.check_output(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=full) == b" the work\n"
