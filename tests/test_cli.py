import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model.cli import Parser, run_script
from model.scripts import command

ROOT = Path(__file__).parent.parent


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


def test_a_good_end(capsys):
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
        (UnicodeEncodeError("ascii", "é.txt", 0, 1, "why"), "(ascii) lacks 'é.txt': set PYTHONUTF8=1"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, error, line):
    code, out, err = outcome(capsys, raising(error))
    assert code == 2
    assert out == "so far\n"  # text that was said stays on stdout, and the complaint is not among it
    assert err.startswith("script.py: error: ")
    assert err.rstrip("\n").endswith(line)
    assert err.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback():
    with pytest.raises(KeyError):
        run_script(raising(KeyError("bug")), "script.py")


def test_ctrl_c_is_no_error(capsys):
    code, _, err = outcome(capsys, raising(KeyboardInterrupt()))
    assert code == 130
    assert err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="TerminateProcess asks nobody")
def test_ctrl_c_after_the_end_of_the_work_changes_nothing():
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: 0, "x.py")
    signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 0


def test_sigterm_leaves_no_temporary_file(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, ROOT / "train.py", "--data", "-", "--out_dir", tmp_path / "run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as script:
        while not list(tmp_path.glob("ropewalk-stdin-*")):  # it reads, and nobody writes
            assert script.poll() is None
            time.sleep(0.05)
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_one_line(capsys):
    code, _, err = outcome(capsys, raising(MemoryError()))
    assert code == 2
    assert err.count("\n") == 1
    assert "the memory that is free is not enough" in err


def test_a_reader_who_leaves_early_is_no_error():
    program = "from model.cli import run_script\nrun_script(lambda: print('many words\\n' * 200000), 'script.py')"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as script:
        assert script.stdout.readline() == b"many words\n"
        script.stdout.close()
        assert script.stderr.read() == b""
        assert script.wait(timeout=300) == 0


def parser() -> Parser:
    made = Parser(prog="script.py")
    made.add_argument("config", nargs="?")
    made.add_argument("--vocab_size", type=int)
    made.add_argument("--batch_size", type=int)
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batchsize", "3"], ["--batchsize", "did you mean '--batch_size'?"]),
        (["--batchsize=3"], ["'--batchsize'", "did you mean '--batch_size'?"]),
        (["--vocab", "3"], ["--vocab", "did you mean '--vocab_size'?"]),  # half a name is not a name
        (["--q"], ["'--q'", "--help"]),
        (["one", "two"], ["'two'"]),
        (["--vocab_size"], ["--vocab_size", "expected one argument"]),
        (["--vocab_size", "x"], ["--vocab_size", "'x'"]),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("script.py: error: ")
    assert captured.err.count("\n") == 1
    for part in said:
        assert part in captured.err


def test_good_flags_are_read():
    found = parser().parse_args(["my.toml", "--vocab_size", "3"])
    assert (found.config, found.vocab_size, found.batch_size) == ("my.toml", 3, None)


def test_two_dashes_are_a_value_like_any_other(capsys):
    made = parser()
    made.add_argument("--prompt")
    made.add_argument("--stop", action="append")
    made.add_argument("--file", type=Path)
    made.add_argument("--data", nargs="+", action="extend")
    made.add_argument("--to", choices=("hf", "meta"))
    words = ["--prompt=--", "--stop=x", "--stop=--", "--file=--", "--data", "a", "b", "--data=--"]
    found = made.parse_args(words)
    assert (found.prompt, found.stop, found.file) == ("--", ["x", "--"], Path("--"))
    assert found.data == ["a", "b", "--"]
    assert made.parse_args(["--prompt", "x", "--", "my.toml"]).config == "my.toml"
    with pytest.raises(SystemExit):
        made.parse_args(["--to=--"])
    assert "--to: invalid choice: '--'" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_what_a_full_disk_under_stdout_cannot_hold_is_one_line():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, ROOT / "study.py", "rotate"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == ["study.py: error: [Errno 28] No space left on device"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_what_a_full_disk_under_stderr_cannot_hold_costs_no_work():
    program = "import sys\nfrom model.cli import run_script\n"
    program += "def main():\n    print('a note', file=sys.stderr)\n    print('the work')\nrun_script(main, 'x.py')"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, b"the work")


def test_an_unknown_script_of_the_installed_command_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ropewalk", "trian", "--data", "x"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert (ended.value.code, capsys.readouterr().err) == (
        2,
        "ropewalk: error: unknown script 'trian': did you mean 'train'?\n",
    )


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_the_installed_command_alone_shows_its_scripts(capsys, monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["ropewalk", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert (ended.value.code, capsys.readouterr().out) == (0, command.USAGE + "\n")
