"""The settings of a run: their ranges, where their values come from, and the mistakes found before the text is read."""

import math
import os
from pathlib import Path

import pytest
import torch

from model import ModelArgs, Transformer
from model.cli import toml_text
from model.config import Range, setting_fields
from model.training.config import CONFIG_FILE, DEFAULT_STEPS, DataArgs, TrainArgs
from model.training.distributed import Machine, Ranks, product_dtype
from model.training.run import Run, resolve
from model.weights import save_model

RANGES = [
    (cls, name, field.kind, field.range)
    for cls in (DataArgs, TrainArgs)
    for name, field in setting_fields(cls).items()
    if field.kind in (int, float)
]


def test_every_setting_has_a_help_text_and_every_number_a_range():
    assert all(len(field.help) > 10 for field in setting_fields(DataArgs, TrainArgs).values())
    assert all(bounds != Range() for *_, bounds in RANGES)


@pytest.mark.parametrize(("cls", "name", "kind", "bounds"), RANGES, ids=lambda value: str(value))
def test_a_number_is_accepted_at_the_limits_of_its_range_and_refused_beyond(cls, name, kind, bounds):
    high = min(bounds.high, 2**63 - 1)
    for value in (bounds.low, high):
        assert getattr(cls(**{name: kind(value)}), name) == value
    step = 1 if kind is int else 1e-9
    wrong = [bounds.low - step, high * 1.001 + step, math.nan] if kind is float else [bounds.low - 1, high + 1]
    for value in wrong:
        with pytest.raises(ValueError, match=rf"^{name} is {value}: give [^;]*\d".replace("+", r"\+")):
            cls(**{name: value})


def test_all_problems_are_reported_at_once():
    with pytest.raises(ValueError, match=r"val_fraction is 1.*data is empty"):
        DataArgs(data=(), val_fraction=1)


def test_fraction_done_is_by_steps_or_by_the_clock_whichever_is_larger():
    assert TrainArgs().fraction_done(DEFAULT_STEPS // 4, 1e9) == 0.25
    assert TrainArgs(max_steps=10).fraction_done(5, 1e9) == 0.5
    assert TrainArgs(minutes=2).fraction_done(10**9, 30) == 0.25
    assert TrainArgs(minutes=2, max_steps=10).fraction_done(5, 30) == 0.5
    assert TrainArgs(minutes=2, max_steps=10).fraction_done(5, 90) == 0.75


def test_compile_is_refused_before_the_text_is_read_where_nothing_can_compile(monkeypatch):
    settings = {"data": ("missing.txt",), "compile": True, "device": "cpu"}
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(ValueError, match=r"^compile needs a C\+\+ compiler.* 'no-compiler' .*, or give --no-compile$"):
        resolve(None, settings, False, Ranks())
    monkeypatch.setattr(Run, "machine", lambda run, ranks: Machine(torch.device("cuda")))
    monkeypatch.setattr("model.fast.step.has_triton", lambda: False)
    with pytest.raises(ValueError, match=r"^compile on a GPU needs Triton.*: install triton .*, or give --no-compile$"):
        resolve(None, settings, False, Ranks())
    assert not resolve(None, settings | {"compile": False}, False, Ranks()).train.compile
    monkeypatch.setattr("model.fast.step.has_triton", lambda: True)
    assert resolve(None, settings, False, Ranks()).train.compile


def test_a_micro_batch_on_an_apple_gpu_has_at_most_32768_tokens():
    args = TrainArgs(batch_size=64)
    assert args.micro_batch_rows(1024, "cpu") == args.micro_batch_rows(1024, "cuda") == 64
    assert args.micro_batch_rows(1024, "mps") == 32
    assert args.micro_batch_rows(1024, "mps", world_size=4) == 16
    assert args.micro_batch_rows(100_000, "mps") == 1


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)])
def test_fsdp_never_takes_float16(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert product_dtype(TrainArgs(), torch.device("cuda")) == dtype
    sharded = product_dtype(TrainArgs(fsdp=True), torch.device("cuda"))
    assert sharded == (torch.float32 if dtype == torch.float16 else dtype)
    with pytest.raises(ValueError, match=r"dtype is float16, .* fsdp .*: give float32 or bfloat16, or leave fsdp out"):
        TrainArgs(fsdp=True, dtype="float16")


SMALL = {"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 300, "max_seq_len": 8}


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def resolved(config=None, resume=False, ranks=None, **flags):
    return resolve(config and Path(config), flags, resume, ranks or Ranks())


def write_run(directory: str, tokenizer: str = "bpe", vocab_size: int = 300, data=("a.txt",), **settings) -> Path:
    """Write the files that a run has before its first checkpoint."""
    path = Path(directory)
    path.mkdir(parents=True)
    model = ModelArgs(**SMALL | {"vocab_size": vocab_size})
    text = toml_text(DataArgs(data=data, tokenizer=tokenizer), model, TrainArgs(out_dir=path, **settings))
    (path / CONFIG_FILE).write_text(text, encoding="utf-8")
    return path


def test_new_minutes_of_a_resumed_run_replace_its_last_step():
    """Of a small text the first minutes had chosen it, so that the run would end at once."""
    write_run("run", minutes=10.0, max_steps=100)
    resumed = resolved(resume=True, out_dir=Path("run"), minutes=20.0).train
    assert (resumed.minutes, resumed.step_limit) == (20.0, math.inf)
    same = resolved(resume=True, out_dir=Path("run")).train
    assert (same.minutes, same.max_steps) == (10.0, 100), "bit for bit the same run"
    both = resolved(resume=True, out_dir=Path("run"), minutes=20.0, max_steps=200).train
    assert (both.minutes, both.max_steps) == (20.0, 200)


def test_a_text_without_a_config_takes_minutes_or_steps():
    chosen = resolved(data=("a.txt",))
    assert (chosen.train.minutes, "dim" in chosen.decided, chosen.needs_choice) == (2.5, False, True)
    assert resolved(data=("a.txt",), minutes=7.0).train.minutes == 7.0
    by_steps = resolved(data=("a.txt",), max_steps=9)
    assert (by_steps.train.minutes, by_steps.train.max_steps, by_steps.needs_choice) == (None, 9, False)


@pytest.mark.parametrize(
    ("config", "data", "name"),
    [
        ("mine.toml", ("a/b.txt",), "mine"),
        (None, ("books/dickens.txt.gz", "more.txt"), "dickens"),
        (None, ("https://example.org/a%20b/tale.txt?x=1#sha256=00",), "tale"),
        (None, ("-",), "stdin"),
        (None, ("..",), "text"),
        (None, ("a b&c.txt",), "a-b-c"),
        (None, None, "python-docs"),
    ],
)
def test_a_run_is_named_after_its_config_or_its_text(config, data, name):
    Path("mine.toml").write_text("dim = 64\n", encoding="utf-8")
    assert resolved(config, **({"data": data} if data else {})).directory == Path("runs") / name


def test_a_run_is_resumed_with_the_command_that_started_it_and_its_saved_settings_except_those_that_are_given():
    Path("c.toml").write_text('tokenizer = "char"\ndim = 16\nmax_steps = 7\nbatch_size = 4\n', encoding="utf-8")
    write_run("run", tokenizer="char", vocab_size=77, lr=0.25, max_steps=100)
    resumed = resolved("c.toml", resume=True, out_dir=Path("run"), vocab_size=2048, max_steps=200)
    assert (resumed.resume, resumed.needs_choice) == (True, False)
    found = resumed.values()
    expected = {"dim": 16, "vocab_size": 77, "lr": 0.25, "max_steps": 200, "batch_size": 4}
    assert {name: found[name] for name in expected} == expected


def test_resume_without_a_directory_takes_the_newest_run():
    with pytest.raises(ValueError, match="there is no run in runs/"):
        resolved(resume=True)
    for age, name in enumerate(("new", "old", "older")):
        path = write_run(f"runs/{name}") / CONFIG_FILE
        os.utime(path, (1e9 - age, 1e9 - age))
    assert resolved(resume=True).directory == Path("runs/new")
    with pytest.raises(ValueError, match="nowhere holds no run"):
        resolved(resume=True, out_dir=Path("nowhere"))


@pytest.fixture
def published() -> Path:
    save_model(Transformer(ModelArgs(**SMALL, rope_theta=123.0)), "published")
    return Path("published")


def test_fine_tuning_takes_architecture_and_tokenizer_from_the_model(published):
    tuned = resolved(init_from=published)
    assert (tuned.model.dim, tuned.model.rope_theta, tuned.data.tokenizer) == (16, 123.0, "published")
    assert resolved(init_from=published, tokenizer="my.model", dim=16).data.tokenizer == "my.model"
    save_model(Transformer(ModelArgs(**SMALL | {"max_seq_len": 4096})), "long")
    assert resolved(init_from=Path("long")).model.max_seq_len == 1024
    assert resolved(init_from=Path("long"), max_seq_len=2048).model.max_seq_len == 2048


@pytest.mark.parametrize(
    ("flags", "optimizer", "lr"),
    [
        ({}, "muon", 0.02),
        ({"optimizer": "adamw"}, "adamw", 0.003),
        ({"init_from": Path("published")}, "adamw", 0.0003),
        ({"init_from": Path("published"), "optimizer": "muon"}, "muon", 0.002),
        ({"init_from": Path("published"), "lr": 0.5}, "adamw", 0.5),
        ({"resume": True, "out_dir": Path("run")}, "adamw", 0.02),  # not lowered again
    ],
)
@pytest.mark.usefixtures("published")
def test_fine_tuning_lowers_the_default_learning_rate(flags, optimizer, lr):
    write_run("run", lr=0.02, init_from=Path("published"))
    train = resolved(**{"data": ("a.txt",)} | flags).train
    assert (train.optimizer, train.lr) == (optimizer, lr)


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ({"data": ("b.txt",)}, 'data ["a.txt"] -> ["b.txt"]'),
        ({"doc_separator": "%"}, 'doc_separator None -> "%"'),
        ({"dim": 32}, "dim 16 -> 32"),
        ({"optimizer": "adamw"}, 'optimizer "muon" -> "adamw"'),
        ({"init_from": Path("b")}, 'init_from None -> "b"'),
        ({"eval_tokens": 99}, "eval_tokens 8192 -> 99"),  # else the best model would be replaced by a worse one
    ],
)
def test_a_run_is_not_resumed_with_another_text_model_optimizer_or_validation(setting, change):
    write_run("run")
    with pytest.raises(ValueError, match="run cannot be resumed with ") as error:
        resolved(resume=True, out_dir=Path("run"), **setting)
    assert change in str(error.value)


def test_the_batch_size_is_a_multiple_of_the_processes_unless_it_is_chosen():
    three = Ranks(world_size=3)
    assert resolved(ranks=three, data=("a.txt",), minutes=1.0).needs_choice
    for settings in ({"minutes": 1.0, "batch_size": 7}, {"max_steps": 9}):
        with pytest.raises(ValueError, match=r"batch_size is \d+, for 3 processes: give a multiple of 3"):
            resolved(ranks=three, data=("a.txt",), **settings)
