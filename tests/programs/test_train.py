"""train.py from the command line. Most tests run it in this process, to save the seconds of importing PyTorch."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from script_helpers import file_size_limit, run_in_process
from training_helpers import torchrun

import train
from model.training import choice
from model.training.choice import LADDER
from model.training.estimate import count_parameters
from model.weights import load_model, load_tokenizer, save_model

ROOT = Path(__file__).parents[2]
SETTINGS = {"tokenizer": "char", "dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 16, "batch_size": 4}
SETTINGS |= {"max_steps": 4, "eval_every": 2, "sample_every": 0, "eval_tokens": 100}
TEXT = "".join(f"{n} and {n} are {n + n}.\n" for n in range(200))


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("model.cli.machine.free_memory", lambda device: 64 * 10**9)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    config = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SETTINGS.items())
    Path("small.toml").write_text(config, encoding="utf-8")


def run(*argv: str) -> int:
    return run_in_process(train.main, "train.py", *argv)


def all_files() -> dict[Path, bytes]:
    """The content of all files in the folder, except the cache, which a failing run may fill."""
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.parts[0] != "cache"}


def error_of(capsys, *argv: str) -> str:
    """Run a command that must fail with one line and change no file; returns the message."""
    before = all_files()
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("train.py: error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert all_files() == before
    return err.removeprefix("train.py: error: ")


def stderr_of(capsys, *argv: str) -> str:
    """Run a command that must succeed; returns its stderr."""
    assert run(*argv) == 0
    return capsys.readouterr().err


def rows(text: str) -> dict[str, str]:
    """The rows of the terminal output by their names."""
    return {line[:14].strip(): line[15:] for line in text.splitlines()}


def metrics(directory: str) -> list[dict]:
    return [json.loads(line) for line in Path(directory, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def steps(directory: str) -> list[int]:
    return [line["step"] for line in metrics(directory)]


def test_a_recognized_separator_is_printed_and_saved_with_the_run(capsys):
    Path("tagged.txt").write_text("\n<|endoftext|>\n".join(TEXT.splitlines()), encoding="utf-8")
    err = stderr_of(capsys, "small.toml", "--data", "tagged.txt", "--out_dir", "out", "--sample_every", "4")
    assert rows(err)["documents"] == "200 documents, separated by '<|endoftext|>'"
    settings = tomllib.loads(Path("out/config.toml").read_text(encoding="utf-8"))
    assert settings["doc_separator"] == "<|endoftext|>"
    assert settings["start_text"] == "", "each line is a document, which is enough of them"
    stderr_of(capsys, "--resume", "--out_dir", "out", "--max_steps", "6")
    assert steps("out") == [1, 2, 3, 4, 5, 6]
    assert (
        rows(stderr_of(capsys, "small.toml", "--data", "tagged.txt", "--doc_separator", ""))["documents"]
        == "1 document"
    )


@pytest.mark.usefixtures("each_processor")
def test_a_run_directory_is_complete(capsys):
    err = stderr_of(capsys, "small.toml", "--data", "text.txt", "--out_dir", "out")
    assert "python generate.py out" in err
    names = {path.name for path in Path("out").iterdir()}
    assert names >= {"config.toml", "config.json", "model.safetensors", "tokenizer.model", "metrics.jsonl"}
    assert steps("out") == [1, 2, 3, 4]
    keys = set().union(*metrics("out"))
    assert keys == {"step", "train_loss", "val_loss", "val_bits_per_byte", "lr", "grad_norm", "tokens_per_second"}
    tokenizer = load_tokenizer("out")
    assert load_model("out").args.vocab_size == tokenizer.vocab_size == 259 + len(set(TEXT))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert not list(Path("out").glob(".*.tmp"))
    assert not list(Path().rglob("*.pt")) + list(Path().rglob("*.pkl")) + list(Path().rglob("*.bin.tmp"))


def test_text_and_runs_are_accepted_as_arguments_without_a_flag(capsys):
    Path("more.txt").write_text(TEXT[::-1], encoding="utf-8")
    small = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    stderr_of(capsys, "text.txt", "more.txt", *small)
    config = Path("runs/text/config.toml").read_text(encoding="utf-8")
    assert 'data = ["text.txt", "more.txt"]' in config
    stderr_of(capsys, "small.toml", "text.txt")
    stderr_of(capsys, "--max_steps", "5", "--resume", "runs/text")
    assert steps("runs/text") == [1, 2, 3, 4, 5]
    assert steps("runs/small") == [1, 2, 3, 4]


@pytest.mark.parametrize("spec", ["story.txt", "-"])
def test_a_run_is_resumed_from_its_directory_wherever_that_and_its_text_are(capsys, monkeypatch, spec):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode()), encoding="utf-8"))
    Path("story.txt").write_text(TEXT, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(train, "Trainer", interrupted)  # before its first step
        assert run("small.toml", "--data", spec, "--out_dir", "out") == 130
    Path("story.txt").unlink()
    Path("out").rename("moved")
    stderr_of(capsys, "--resume", "moved", "--eval_every", "3")
    stderr_of(capsys, "small.toml", "--data", "text.txt", "--out_dir", "straight", "--eval_every", "3")
    assert Path("moved/model.safetensors").read_bytes() == Path("straight/model.safetensors").read_bytes()
    Path("moved/tokens.bin").unlink()
    assert "moved/tokens.bin has 0 bytes" in error_of(capsys, "--resume", "moved", "--max_steps", "9")


def test_two_concurrent_runs_get_different_directories_or_are_refused(capsys, monkeypatch):
    """The second one starts while the first one has prepared its text."""
    codes = []

    def prepare_and_start_another(*args):
        text = prepare_text(*args)
        monkeypatch.setattr(train, "prepare_text", prepare_text)
        codes.append(run("small.toml", "--data", "text.txt", "--seed", "7", *out_dir))
        return text

    prepare_text = train.prepare_text
    for out_dir, code in ([], 0), (["--out_dir", "out"], 2):
        monkeypatch.setattr(train, "prepare_text", prepare_and_start_another)
        err = stderr_of(capsys, "small.toml", "--data", "text.txt", *out_dir)
        assert codes.pop() == code
        assert ("out is in use by another trainer" in err) == bool(code)
    for name, seed in ("runs/small", 1337), ("runs/small-2", 7), ("out", 1337):
        settings = tomllib.loads(Path(name, "config.toml").read_text(encoding="utf-8"))
        assert (settings["out_dir"], settings["seed"]) == (name, seed)
        assert steps(name) == [1, 2, 3, 4]


def test_a_full_disk_ends_the_run_with_one_line_and_leaves_the_last_checkpoint_unchanged(capsys):
    stderr_of(capsys, "small.toml", "--data", "text.txt", "--out_dir", "out")
    before = {path: path.read_bytes() for path in Path("out").glob("*.safetensors")}
    with file_size_limit(4000):
        assert run("--resume", "--out_dir", "out", "--max_steps", "10") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"^train.py: error: .*File too large", line)
    assert {path: path.read_bytes() for path in Path("out").glob("*.safetensors")} == before
    assert not list(Path("out").glob(".*.tmp"))
    stderr_of(capsys, "--resume", "--out_dir", "out", "--max_steps", "10")
    assert steps("out") == list(range(1, 11))


def test_running_out_of_memory_ends_the_run_with_advice(capsys, monkeypatch):
    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 7 GiB")

    monkeypatch.setattr("model.training.loss.NextTokenLoss.forward", run_out_of_memory)
    assert run("small.toml", "--data", "text.txt", "--out_dir", "out", "--device", "cpu") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("error: cpu has too little free memory: lower --micro_batch_size, or train a smaller model")


@pytest.mark.usefixtures("each_processor")
def test_fine_tuning_starts_from_the_weights_and_the_tokenizer_of_the_model(capsys):
    stderr_of(capsys, "small.toml", "text.txt", "--out_dir", "base", "--max_steps", "60", "--eval_every", "60")
    tune = ["text.txt", "--init_from", "base", "--sample_every", "0", "--eval_tokens", "100"]
    frozen = ["--max_steps", "1", "--lr", "1e-9"]
    err = stderr_of(capsys, *tune, "--out_dir", "tuned", *frozen)
    assert "lr 1e-09, " in err
    base, tuned = (load_model(name) for name in ("base", "tuned"))
    assert tuned.args == base.args
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(base.parameters(), tuned.parameters()))
    assert load_tokenizer("tuned").encode(TEXT) == load_tokenizer("base").encode(TEXT)
    first, last = metrics("tuned")[0], metrics("base")[-1]
    assert first["val_loss"] == pytest.approx(last["val_loss"], rel=0.01)
    assert f"before the first step: validation {first['val_loss']:.3f} nats per token" in err
    stderr_of(capsys, "--resume", "--out_dir", "tuned", "--max_steps", "2")
    assert steps("tuned") == [0, 1, 2]  # step 0 is the validation before the first step
    save_model(base, "copy")
    assert "copy has no tokenizer" in error_of(capsys, *tune, "--init_from", "copy")


@pytest.mark.usefixtures("each_processor")
def test_two_processes_make_one_run(capfd, monkeypatch):
    flags = ["--data", "text.txt", "--out_dir", "out", "--sample_every", "4", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["train.py", "small.toml", *flags])
    assert torchrun(2, lambda: os._exit(train.main())) == [0, 0]
    out, err = capfd.readouterr()
    assert steps("out") == [1, 2, 3, 4]
    assert out.count("--- sample at step 4 ---") == 1
    assert err.count("validation     ") == 1


def script(*argv: str) -> subprocess.Popen:
    """Start train.py as a process."""
    command = [sys.executable, ROOT / "train.py", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def test_the_run_goes_on_if_nobody_reads_the_output():
    unread = script("small.toml", "--data", "text.txt", "--sample_every", "1", "--out_dir", "out")
    unread.stdout.close()
    unread.stderr.close()
    assert unread.wait(100) == 0
    assert steps("out") == [1, 2, 3, 4]


def test_a_run_of_almost_no_minutes_still_ends_with_a_validation_and_a_summary(capsys):
    err = stderr_of(capsys, "small.toml", "--data", "text.txt", "--out_dir", "out", "--minutes", "1e-7")
    assert "trained        1 step, 64 tokens" in err
    assert "validation     5." in err
    assert load_model("out")
    assert run("--resume", "--out_dir", "out", "--minutes", "10", "--max_steps", "2") == 0
    assert steps("out") == [1, 2]
    assert run("--resume", "--out_dir", "out", "--max_steps", "1") == 0
    assert steps("out") == [1, 2], "more than max_steps"


def test_after_sigterm_the_step_ends_the_state_is_saved_and_the_run_can_be_resumed():
    running = script("small.toml", "--data", "text.txt", "--out_dir", "out", "--max_steps", "1000000")
    while not (Path("out/metrics.jsonl").exists() and Path("out/metrics.jsonl").stat().st_size) and not running.poll():
        time.sleep(0.01)
    running.terminate()
    _, err = running.communicate(timeout=300)
    assert running.returncode == 128 + signal.SIGTERM, err
    assert "stopped by SIGTERM" in err
    assert "python train.py --resume out" in err
    last = steps("out")[-1]
    assert run("--resume", "--out_dir", "out", "--max_steps", str(last + 1)) == 0
    assert steps("out") == list(range(1, last + 2))


@pytest.fixture
def speed(monkeypatch):
    """A fixed speed, so that the choice does not depend on a clock."""
    monkeypatch.setattr(choice, "measure_speed", lambda run, model, *rest: 3e9 / count_parameters(model).hidden)


def test_with_minutes_alone_a_model_is_chosen_printed_and_saved(capsys, speed):
    """The saved settings include the choice, so that the run can be resumed and repeated."""
    err = stderr_of(
        capsys, "--data", "text.txt", "--tokenizer", "char", "--minutes", "0.02", "--out_dir", "first", "--seed", "4"
    )
    settings = tomllib.loads(Path("first/config.toml").read_text(encoding="utf-8"))
    assert (settings["dim"], settings["n_layers"], settings["minutes"]) == (*LADDER[0][:2], 0.02)
    assert f"{settings['n_layers']} layers of width {settings['dim']}" in err
    assert re.search(r"expected       about [\d,]+ steps?, .* epochs, in .* at [\d,]+ tokens/s", err)
    assert load_model("first").args.dim == settings["dim"]
    stderr_of(capsys, "first/config.toml", "--out_dir", "again")
    repeated = tomllib.loads(Path("again/config.toml").read_text(encoding="utf-8"))
    assert repeated | {"out_dir": "first"} == settings
    assert run("--resume", "--out_dir", "first", "--minutes", "0.03") == 0


@pytest.mark.usefixtures("each_processor")
def test_plan_prints_the_announcement_and_writes_nothing(capsys, speed):
    before = all_files()
    assert run("--data", "text.txt", "--tokenizer", "char", "--minutes", "3", "--plan") == 0
    out = capsys.readouterr().out
    for row in ("model", "memory", "text", "training", "expected", "command"):
        assert re.search(rf"^{row} ", out, re.MULTILINE)
    assert "bytes each, vocabulary of" in out
    assert re.search(r"expected .* 1\d\.\d epochs, in 00:", out), "12 epochs of 3 KB take seconds of the minutes"
    assert run("small.toml", "--data", "text.txt", "--plan") == 0
    assert run("--data", "text.txt", "--tokenizer", "char", "--minutes", "3", "--max_steps", "5", "--plan") == 0
    assert "about 5 steps" in capsys.readouterr().out
    assert all_files() == before
    assert not Path("runs").exists()


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_the_command_of_a_fine_tuning_plan_is_complete(capsys, speed):
    stderr_of(capsys, "small.toml", "--data", "text.txt", "--out_dir", "base", "--rope_theta", "500.0")
    assert run("text.txt", "--init_from", "base", "--minutes", "1", "--plan") == 0
    planned = rows(capsys.readouterr().out)
    assert run(*shlex.split(planned["command"])[2:], "--plan") == 0
    repeated = rows(capsys.readouterr().out)
    for name in ("model", "text", "training", "command"):
        assert repeated[name] == planned[name]
