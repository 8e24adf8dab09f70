import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from model.cli import Parser, explain_out_of_memory, run_script

ROOT = Path(__file__).parents[2]


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
    assert outcome(capsys, lambda: 0) == (0, "", "")
    assert outcome(capsys, lambda: 3) == (3, "", "")


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


def test_ctrl_c_exits_with_130_and_prints_nothing(capsys):
    code, _, err = outcome(capsys, raising(KeyboardInterrupt()))
    assert code == 130
    assert err == ""


def test_ctrl_c_after_main_has_returned_is_ignored():
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: 0, "x.py")
    signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 0


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
        RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_running_out_of_memory_is_one_line_with_the_advice_of_the_script(capsys, error):
    def advising() -> None:
        with explain_out_of_memory("lower --batch_size", torch.device("cuda:1")):
            raise error

    for main, line in (
        (raising(error), "this machine has too little free memory: close other programs, or use smaller settings"),
        (advising, "cuda:1 has too little free memory: lower --batch_size"),
    ):
        code, _, err = outcome(capsys, main)
        assert (code, err) == (2, f"script.py: error: {line}\n")


def test_pytorchs_own_allocation_error_is_recognized():
    with pytest.raises(ValueError, match="too little free memory: lower it"), explain_out_of_memory("lower it"):
        torch.empty(2**60)


def test_a_closed_pipe_is_not_an_error():
    program = "from model.cli import run_script\nrun_script(lambda: print('many words\\n' * 200000), 'script.py')"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as script:
        assert script.stdout.readline() == b"many words\n"
        script.stdout.close()
        assert script.stderr.read() == b""
        assert script.wait(timeout=300) == 0


def parser() -> Parser:
    parser = Parser(prog="script.py")
    parser.add_argument("config", nargs="?")
    parser.add_argument("--vocab_size", type=int)
    parser.add_argument("--batch_size", type=int)
    return parser


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--batchsize", "3"], ["--batchsize", "did you mean '--batch_size'?"]),
        (["--batchsize=3"], ["'--batchsize'", "did you mean '--batch_size'?"]),
        (["--vocab", "3"], ["--vocab", "did you mean '--vocab_size'?"]),  # no abbreviations
        (["--q"], ["'--q'", "--help"]),
        (["one", "two"], ["'two'"]),
        (["--vocab_size"], ["--vocab_size", "expected one argument"]),
        (["--vocab_size", "x"], ["--vocab_size", "'x'"]),
        (["--vocab_size=--"], ["--vocab_size=--", "cannot be given"]),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(capsys, arguments, parts):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("script.py: error: ")
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_closed_streams_are_replaced_by_the_null_device(tmp_path):
    program = "import sys\nfrom model.cli import run_script\n"
    program += "def main():\n    print(sys.stdin.read(), 'the work')\n    print('a note', file=sys.stderr)\n"
    (tmp_path / "x.py").write_text(f"{program}run_script(main, 'x.py')\n", encoding="utf-8")
    command = f"exec {sys.executable} {tmp_path / 'x.py'} <&- 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, b" the work\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_full_disk_under_stdout_is_one_line():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "study", "rotate"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == ["study: error: [Errno 28] No space left on device"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_full_disk_under_stderr_does_not_end_the_script():
    program = "import sys\nfrom model.cli import run_script\n"
    program += "def main():\n    print('a note', file=sys.stderr)\n    print('the work')\nrun_script(main, 'x.py')"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, b"the work")
