"""train.py from the command line. Most tests run it in this process, to save the seconds of importing PyTorch."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from script_helpers import file_size_limit
from training_helpers import metrics, torchrun

import train
from model.cli import machine
from model.training import choice
from model.training.choice import LADDER
from model.training.estimate import count_parameters
from model.training.trainer import Trainer
from model.weights import load_model, load_tokenizer, save_model

ROOT = Path(__file__).parents[2]
SETTINGS = {"tokenizer": "char", "dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 16, "batch_size": 4}
SETTINGS |= {"max_steps": 4, "eval_every": 2, "sample_every": 0, "eval_tokens": 100}
TEXT = "".join(f"{n} and {n} are {n + n}.\n" for n in range(200))


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "free_memory", lambda device: 64 * 10**9)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    config = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SETTINGS.items())
    Path("small.toml").write_text(config, encoding="utf-8")


def all_files() -> dict[Path, bytes]:
    """The content of all files in the folder, except the cache, which a failing run may fill."""
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.parts[0] != "cache"}


@pytest.fixture
def run(start):
    """``run(*flags)`` -> (exit code, stdout, stderr)."""
    return lambda *flags: start(train, *flags)


@pytest.fixture
def trained(run):
    """``trained(*flags)`` is the stderr of a run that ends well."""

    def call(*flags: object) -> str:
        code, _, err = run(*flags)
        assert code == 0, err
        return err

    return call


def rows(text: str) -> dict[str, str]:
    """The rows of the terminal output by their names."""
    return {line[:14].strip(): line[15:] for line in text.splitlines()}


def steps(directory: str) -> list[int]:
    return [line["step"] for line in metrics(directory)]


def settings_of(directory: str) -> dict:
    return tomllib.loads(Path(directory, "config.toml").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("each_processor")
def test_a_run_directory_is_complete(trained):
    Path("tagged.txt").write_text("\n<|endoftext|>\n".join(TEXT.splitlines()), encoding="utf-8")
    err = trained("small.toml", "--data", "tagged.txt", "--out_dir", "out")
    assert rows(err)["documents"] == "200 documents, the longest of 21 tokens, separated by '<|endoftext|>'"
    assert rows(err)["next"] == "python generate.py out"
    names = {path.name for path in Path("out").iterdir()}
    assert names >= {"config.toml", "config.json", "model.safetensors", "tokenizer.model", "metrics.jsonl"}
    assert not [path for path in Path().rglob("*") if path.suffix in (".pt", ".pkl", ".tmp")]
    assert settings_of("out")["doc_separator"] == "<|endoftext|>"
    assert steps("out") == [1, 2, 3, 4]
    keys = set().union(*metrics("out"))
    assert keys == {"step", "train_loss", "val_loss", "val_bits_per_byte", "lr", "grad_norm", "tokens_per_second"}
    tokenizer = load_tokenizer("out")
    assert load_model("out").args.vocab_size == tokenizer.vocab_size == 259 + len(set(TEXT) - {"\n"})
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_text_and_runs_are_accepted_as_arguments_without_a_flag(trained):
    Path("more.txt").write_text(TEXT[::-1], encoding="utf-8")
    trained("text.txt", "more.txt", *(f"--{name}={value}" for name, value in SETTINGS.items()))
    assert settings_of("runs/text")["data"] == ["text.txt", "more.txt"]
    trained("--max_steps", "5", "--resume", "runs/text")
    assert steps("runs/text") == [1, 2, 3, 4, 5]
    trained("small.toml", "text.txt")
    assert steps("runs/small") == [1, 2, 3, 4]


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("spec", ["story.txt", "-"])
def test_a_run_is_resumed_from_its_directory_wherever_that_and_its_text_are(start, run, trained, monkeypatch, spec):
    Path("story.txt").write_text(TEXT, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("model.training.trainer.Trainer", interrupted)  # before its first step
        assert start(train, "small.toml", "--data", spec, "--out_dir", "out", stdin=TEXT.encode()).code == 130
    Path("story.txt").unlink()
    Path("out").rename("moved")
    trained("--resume", "moved", "--eval_every", "3")
    trained("small.toml", "--data", "text.txt", "--out_dir", "straight", "--eval_every", "3")
    assert Path("moved/model.safetensors").read_bytes() == Path("straight/model.safetensors").read_bytes()
    Path("moved/tokens.bin").unlink()
    assert "moved/tokens.json and tokens.bin are damaged" in run("--resume", "moved").err


# What --resume does to a finished run without one of its files: the words of its refusal, None if it goes on.
MISSING = {
    "config.toml": "out holds a model, but config.toml is missing",
    "training_state.safetensors": "`python train.py --init_from out --data TEXT` trains the model further",
    "model.safetensors": None,
    "config.json": None,
    "metrics.jsonl": None,
    ".lock": None,
    "tokens.json": "out/tokens.json is missing",
    "tokens.bin": "out/tokens.json and tokens.bin are damaged",
    "tokenizer.model": "out has lost its tokenizer.model or tokenizer.json: restore the file",
}


def test_each_missing_file_of_a_run_is_named_or_written_again(run, trained):
    trained("small.toml", "--data", "text.txt", "--out_dir", "complete")
    for name, words in MISSING.items():
        shutil.rmtree("out", ignore_errors=True)
        shutil.copytree("complete", "out")
        Path("out", name).unlink()
        if name == "tokenizer.model":
            Path("out/tokenizer.json").unlink(missing_ok=True)
        before = {path: path.read_bytes() for path in Path("out").iterdir()}
        code, _, err = run("--resume", "out", "--max_steps", "6")
        assert (code, words or "run directory") == (2 if words else 0, words or "run directory"), err
        if words:
            assert (words in err, err.count("\n")) == (True, 1), err
            assert {path: path.read_bytes() for path in Path("out").iterdir()} == before
        else:
            assert Path("out", name).exists()
            assert max(steps("out")) == 6


def test_a_full_disk_ends_the_run_with_one_line_and_leaves_the_last_checkpoint_unchanged(run, trained):
    trained("small.toml", "--data", "text.txt", "--out_dir", "out")
    before = {path: path.read_bytes() for path in Path("out").glob("*.safetensors")}
    with file_size_limit(4000):
        code, _, err = run("--resume", "--out_dir", "out", "--max_steps", "10")
    assert code == 2
    assert re.fullmatch(r"train.py: error: out/\S+: .*File too large.*", err.splitlines()[-1])
    assert {path: path.read_bytes() for path in Path("out").glob("*.safetensors")} == before
    assert not list(Path("out").glob(".*.tmp"))
    trained("--resume", "--out_dir", "out", "--max_steps", "10")
    assert steps("out") == list(range(1, 11))


@pytest.mark.usefixtures("each_processor")
def test_fine_tuning_starts_from_the_weights_and_the_tokenizer_of_the_model(run, trained):
    trained("small.toml", "text.txt", "--out_dir", "base", "--max_steps", "60", "--eval_every", "60")
    tune = ["text.txt", "--init_from", "base", "--sample_every", "0", "--eval_tokens", "100"]
    err = trained(*tune, "--out_dir", "tuned", "--max_steps", "1", "--lr", "1e-9")
    base, tuned = (load_model(name) for name in ("base", "tuned"))
    assert tuned.args == base.args
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(base.parameters(), tuned.parameters()))
    assert load_tokenizer("tuned").encode(TEXT) == load_tokenizer("base").encode(TEXT)
    first, last = metrics("tuned")[0], metrics("base")[-1]
    assert first["val_loss"] == pytest.approx(last["val_loss"], rel=0.01)
    assert f"before the first step: validation {first['val_loss']:.3f} nats per token" in err
    trained("--resume", "--out_dir", "tuned", "--max_steps", "2")
    assert steps("tuned") == [0, 1, 2]  # step 0 is the validation before the first step
    save_model(base, "copy")
    assert "copy has no tokenizer" in run(*tune, "--init_from", "copy").err


@pytest.mark.slow
def test_two_processes_make_one_run(capfd, monkeypatch):
    flags = ["small.toml", "--data", "text.txt", "--out_dir", "out", "--sample_every", "4", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    assert torchrun(2, lambda: os._exit(train.main())) == [0, 0]
    out, err = capfd.readouterr()
    assert steps("out") == [1, 2, 3, 4]
    assert out.count("--- sample at step 4 ---") == 1
    assert err.count("validation     ") == 1


@pytest.mark.slow
def test_torchrun_starts_a_sharded_run_whose_size_is_chosen_for_the_minutes():
    """Started as a user starts it, so that the variables and the signals are torchrun's own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    flags = ["text.txt", "--out_dir", "out", "--fsdp", "--minutes", "0.01", "--max_steps", "3", "--device", "cpu"]
    flags += ["--sample_every", "1"]
    done = subprocess.run([*command, ROOT / "train.py", *flags], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert steps("out")[0] == 1
    assert (settings_of("out")["dim"], settings_of("out")["fsdp"]) == (load_model("out").args.dim, True)
    assert done.stderr.count("validation     ") == 1
    assert done.stdout == "", "no samples, because no process has room for the whole model"


@pytest.mark.slow
def test_the_run_goes_on_if_nobody_reads_the_output():
    command = [sys.executable, ROOT / "train.py", "small.toml", "--data", "text.txt", "--sample_every", "1"]
    unread = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    unread.stdout.close()
    unread.stderr.close()
    assert unread.wait(100) == 0
    assert steps("runs/small") == [1, 2, 3, 4]


def test_a_run_of_almost_no_minutes_still_ends_with_a_validation_and_a_summary(trained):
    err = trained("small.toml", "--data", "text.txt", "--out_dir", "out", "--minutes", "1e-7")
    assert rows(err)["trained"].startswith("1 step, 64 tokens")
    assert rows(err)["validation"].startswith("5.")
    assert load_model("out")
    trained("--resume", "--out_dir", "out", "--minutes", "10", "--max_steps", "2")
    assert steps("out") == [1, 2]


def test_a_run_that_is_stopped_finishes_its_step_and_says_how_to_resume_it(run, monkeypatch):
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda *arguments: signal.raise_signal(signal.SIGTERM) or step(*arguments))
    code, _, err = run("small.toml", "text.txt", "--out_dir", "out")
    assert code == 128 + signal.SIGTERM
    assert re.search(r"stopped by +SIGTERM; step 1 is saved", err)
    assert "python train.py --resume out" in err
    assert steps("out") == [1]


@pytest.fixture
def _fixed_speed(monkeypatch):
    """So that the choice does not depend on a clock."""
    monkeypatch.setattr(choice, "measure_speed", lambda run, model, *rest: 3e9 / count_parameters(model).hidden)


MINUTES = ["--data", "text.txt", "--tokenizer", "char", "--minutes"]


@pytest.mark.usefixtures("_fixed_speed")
def test_with_minutes_alone_a_model_is_chosen_printed_and_saved(trained):
    """The saved settings include the choice, so that the run can be resumed and repeated."""
    err = trained(*MINUTES, "0.02", "--out_dir", "first", "--seed", "4")
    settings = settings_of("first")
    assert (settings["dim"], settings["n_layers"], settings["minutes"]) == (*LADDER[0][:2], 0.02)
    assert f"{settings['n_layers']} layers of width {settings['dim']}" in rows(err)["model"]
    assert load_model("first").args.dim == settings["dim"]
    trained("first/config.toml", "--out_dir", "again")
    assert settings_of("again") | {"out_dir": "first"} == settings
    trained("--resume", "--out_dir", "first", "--minutes", "0.03")


@pytest.mark.parametrize("lengths", [[*range(40), 150], [1, 30]])
@pytest.mark.parametrize("model", [["--tokenizer", "char", "--max_seq_len", "1024"], ["--init_from", "base"]])
def test_conversations_of_unequal_lengths_are_planned_and_trained_by_minutes(run, trained, monkeypatch, lengths, model):
    """Without any limit a plan is for 15 minutes, or for a few passes over so little text."""
    monkeypatch.setattr(choice, "LADDER", [(16, 1, 2, 2), (24, 1, 2, 2)])
    answers = [{"prompt": "Say words.", "completion": "word " * length + "end."} for length in lengths]
    Path("chats.jsonl").write_text("\n".join(map(json.dumps, answers)), encoding="utf-8")
    trained("small.toml", "--data", "text.txt", "--out_dir", "base", "--max_seq_len", "1024")
    command = ["--data", "chats.jsonl", *model]
    for minutes in ([], ["--minutes", "0.01"]):
        code, out, err = run(*command, *minutes, "--plan")
        assert code == 0, err
        assert re.search(r"about [\d,]+ steps?, [\d.,]+ epochs", rows(out)["expected"])
    assert "nats per token" in rows(trained(*command, *minutes, "--out_dir", "out"))["validation"]


@pytest.mark.usefixtures("each_processor", "_fixed_speed")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([*MINUTES, "3"], r"10\.\d epochs, in 00:"),  # 10 epochs of 3 KB take seconds of the minutes
        ([*MINUTES, "3", "--max_steps", "5"], "about 5 steps"),
        (["small.toml", "text.txt"], "about 4 steps"),
        (["text.txt", "--init_from", "base", "--minutes", "1"], "epochs, in "),
    ],
)
def test_the_command_that_a_plan_prints_has_the_same_plan_and_nothing_is_written(run, trained, flags, expected):
    if "base" in flags:
        trained("small.toml", "--data", "text.txt", "--out_dir", "base", "--rope_theta", "500.0")
    before = all_files()
    planned = rows(run(*flags, "--plan").out)
    assert re.search(expected, planned["expected"])
    assert "bytes each, vocabulary of" in planned["text"]
    code, out, _ = run(*shlex.split(planned["command"])[2:], "--plan")
    assert code == 0
    for name in ("model", "memory", "text", "training", "command"):
        assert rows(out)[name] == planned[name]
    assert all_files() == before
