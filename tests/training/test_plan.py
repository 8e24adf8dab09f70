import os
from pathlib import Path

import pytest

from model import ModelArgs, Transformer
from model.cli import toml_text
from model.training.config import CONFIG_FILE, DataArgs, TrainArgs
from model.training.distributed import Ranks
from model.training.plan import SINGLE_PROCESS, check_processes
from model.training.resolve import resolve
from model.weights import save_model

SMALL = {"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 300, "max_seq_len": 8}


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "default.toml").write_text("dim = 32\nn_heads = 4\nlr = 0.5\n", encoding="utf-8")


def plan(config=None, resume=False, ranks=SINGLE_PROCESS, **flags):
    return resolve(config and Path(config), Path("default.toml"), flags, resume, ranks)


def write_run(directory: str, **settings) -> Path:
    """Write the files that a run has before its first checkpoint."""
    path = Path(directory)
    path.mkdir(parents=True)
    data = {name: settings.pop(name) for name in ("data", "tokenizer") if name in settings}
    model = ModelArgs(**SMALL | {name: settings.pop(name) for name in ("vocab_size",) if name in settings})
    (path / CONFIG_FILE).write_text(
        toml_text(DataArgs(**data), model, TrainArgs(out_dir=path, **settings)), encoding="utf-8"
    )
    return path


def test_flags_override_the_file_and_the_file_overrides_the_defaults():
    assert plan().train.lr == 0.5
    assert plan().train.muon_lr == TrainArgs().muon_lr
    Path("mine.toml").write_text("dim = 64\n", encoding="utf-8")
    mine = plan("mine.toml", n_heads=2)
    assert (mine.model_args.dim, mine.model_args.n_heads, mine.train.lr) == (64, 2, TrainArgs().lr)


def test_max_steps_overrides_the_minutes_of_the_default_config():
    for name in ("default.toml", "mine.toml"):
        Path(name).write_text("dim = 32\nn_heads = 4\nn_layers = 1\nminutes = 2.5\n", encoding="utf-8")
    assert plan().train.minutes == 2.5
    assert plan(max_steps=9).train.minutes is None
    assert plan(max_steps=9, minutes=1.0).train.minutes == 1.0
    assert plan("mine.toml", max_steps=9).train.minutes == 2.5


def test_a_new_run_gets_an_unused_directory_and_nothing_is_written():
    assert plan().directory == Path("runs/default")
    Path("runs/default").mkdir(parents=True)
    Path("runs/default-2").mkdir()
    assert plan().directory == Path("runs/default-3")
    assert plan().train.out_dir == Path("runs/default-3")
    assert plan(out_dir=Path("elsewhere")).directory == Path("elsewhere")
    assert not Path("elsewhere").exists()


@pytest.mark.parametrize(
    ("config", "data", "name"),
    [
        ("mine.toml", ("a/b.txt",), "mine"),
        (None, ("books/dickens.txt.gz",), "dickens"),
        (None, ("books/",), "books"),
        (None, ("stories/*.jsonl.gz", "more.txt"), "stories"),
        (None, ("https://example.org/a%20b/tale.txt?x=1#sha256=00",), "tale"),
        (None, ("-",), "text"),
        (None, ("*.txt",), "text"),
        (None, ("package/__init__.py", "package/sizing.py"), "package"),
        (None, ("one/tale.txt", "other/tale.txt"), "tale"),
        (None, ("..",), "text"),
        (None, ("红楼梦.txt",), "红楼梦"),
        (None, ("a b&c.txt",), "a-b-c"),
        (None, None, "default"),
    ],
)
def test_a_run_is_named_after_its_config_or_its_text(config, data, name):
    Path("mine.toml").write_text("dim = 64\n", encoding="utf-8")
    assert plan(config, **({"data": data} if data else {})).directory == Path("runs") / name


def test_fine_tuning_keeps_explicit_learning_rates_and_lowers_default_ones(published):
    Path("tune.toml").write_text('init_from = "published"\nlr = 0.5\n', encoding="utf-8")
    assert (plan("tune.toml").train.lr, plan("tune.toml").train.muon_lr) == (0.5, 0.006)
    Path("mine.toml").write_text("lr = 0.04\nmuon_lr = 0.3\n", encoding="utf-8")
    tuned = plan("mine.toml", init_from=published, muon_lr=0.25).train
    assert (tuned.lr, tuned.muon_lr) == (0.012, 0.25)
    write_run("run", lr=0.5, init_from=published)
    assert plan(resume=True, out_dir=Path("run")).train.lr == 0.5  # not lowered again


@pytest.mark.parametrize("file", ["training_state.safetensors", "model.safetensors", "config.json"])
def test_a_model_is_not_overwritten(file):
    Path("taken").mkdir()
    Path("taken", file).touch()
    with pytest.raises(ValueError, match=f"taken holds {file}: give another --out_dir, or --resume"):
        plan(out_dir=Path("taken"))


def test_a_run_killed_before_its_first_checkpoint_may_be_started_again():
    write_run("run")
    assert plan(out_dir=Path("run")).directory == Path("run")


def test_an_out_dir_that_is_not_utf8_is_refused_before_it_is_made():
    with pytest.raises(ValueError, match="is not UTF-8"):
        plan(out_dir=Path("caf\udce9"))
    assert [path.name for path in Path().iterdir()] == ["default.toml"]


def test_the_error_for_an_unwritable_out_dir_names_it(monkeypatch):
    Path("file").touch()
    with pytest.raises(ValueError, match="out_dir is file, a file: give a directory"):
        plan(out_dir=Path("file"))
    with pytest.raises(ValueError, match="file cannot be written to"):
        plan(out_dir=Path("file/below"))
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match="cannot be written to: give another --out_dir"):
        plan(out_dir=Path("a/b/c"))


def test_resume_uses_the_saved_settings_and_lists_the_changes():
    write_run("run", lr=0.25, max_steps=100)
    same = plan(resume=True, out_dir=Path("run"))
    assert (same.model_args.dim, same.train.lr, same.changes, same.resume) == (16, 0.25, (), True)
    changed = plan(resume=True, out_dir=Path("run"), max_steps=200, batch_size=4, lr=0.125)
    assert changed.changes == ("batch_size 32 -> 4", "max_steps 100 -> 200", "lr 0.25 -> 0.125")
    assert (changed.train.max_steps, changed.train.batch_size) == (200, 4)


def test_resume_with_the_command_that_started_the_run_changes_nothing():
    Path("c.toml").write_text(
        'tokenizer = "char"\ndim = 16\nn_layers = 1\nn_heads = 2\nmax_seq_len = 8\nlr = 0.5\n', encoding="utf-8"
    )
    write_run("run", tokenizer="char", vocab_size=77, lr=0.5)
    resumed = plan("c.toml", resume=True, out_dir=Path("run"), vocab_size=2048)
    assert (resumed.changes, resumed.model_args.vocab_size) == ((), 77)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("dim", 32, "dim 16 -> 32"),
        ("max_seq_len", 4, "max_seq_len 8 -> 4"),
        ("rope_theta", 5e5, "rope_theta 10000.0 -> 500000.0"),
        ("vocab_size", 301, "vocab_size 300 -> 301"),
        ("tokenizer", "char", "tokenizer bpe -> char"),
        ("optimizer", "adamw", "optimizer muon -> adamw"),
        ("init_from", Path("other"), "init_from  -> other"),
    ],
)
def test_resume_with_a_different_model_is_an_error_that_shows_the_difference(name, value, shown):
    write_run("run")
    with pytest.raises(ValueError, match=rf"run cannot be resumed with .*{shown}"):
        plan(resume=True, out_dir=Path("run"), **{name: value})


def test_resume_without_a_directory_takes_the_newest_run():
    for age, name in enumerate(("new", "old", "older")):
        path = write_run(f"runs/{name}") / CONFIG_FILE
        os.utime(path, (1e9 - age, 1e9 - age))
    assert plan(resume=True).directory == Path("runs/new")


def test_resume_without_an_existing_run_is_an_error():
    with pytest.raises(ValueError, match="there is no run in runs/"):
        plan(resume=True)
    with pytest.raises(ValueError, match="nowhere holds no run"):
        plan(resume=True, out_dir=Path("nowhere"))


@pytest.fixture
def published() -> Path:
    save_model(Transformer(ModelArgs(**SMALL, rope_theta=123.0)), "published", ids={})
    return Path("published")


def test_fine_tuning_takes_architecture_and_tokenizer_from_the_model(published):
    tuned = plan(init_from=published)
    assert (tuned.model_args.dim, tuned.model_args.rope_theta, tuned.data.tokenizer) == (16, 123.0, "published")
    assert (tuned.train.lr, tuned.train.muon_lr) == (0.15, 0.006)
    assert plan(init_from=published, max_seq_len=4).model_args.max_seq_len == 4
    assert plan(init_from=published, tokenizer="my.model", dim=16).data.tokenizer == "my.model"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dim": 32}, "dim is 32, but published has 16: leave dim out, because init_from sets it"),
        ({"max_seq_len": 9}, "max_seq_len is 9, but published has a context of 8: give at most that"),
        (
            {"tokenizer": "bpe"},
            "tokenizer is bpe, which would train a new one, but the weights in published are for the",
        ),
    ],
)
def test_fine_tuning_cannot_change_the_architecture_or_the_tokenizer(published, flags, message):
    with pytest.raises(ValueError, match=message):
        plan(init_from=published, **flags)


def test_several_processes_need_a_divisible_batch_size_and_no_stdin():
    assert plan(fsdp=True).train.fsdp  # also allowed for one process, which may resume a run of several
    four = Ranks(rank=1, world_size=4)
    assert plan(batch_size=8, ranks=four).train.batch_size == 8
    with pytest.raises(ValueError, match="batch_size is 6, for 4 processes: give a multiple"):
        plan(batch_size=6, ranks=four)
    with pytest.raises(ValueError, match="- is a pipe"):
        plan(data=("-",), ranks=four)


def test_a_width_alone_is_enough_and_the_heads_are_chosen():
    Path("mine.toml").write_text("minutes = 1.0\n", encoding="utf-8")
    assert plan("mine.toml", dim=100).needs_choice
    assert plan("mine.toml", dim=100).model_args.dim == 100
    with pytest.raises(ValueError, match="n_heads 7"):
        plan("mine.toml", dim=100, n_heads=7)


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/63"])
def test_a_pipe_is_refused_for_several_processes_unless_its_tokens_are_kept(name):
    several = Ranks(rank=1, world_size=2)
    assert plan(data=("a.txt", name)).data.data[1] == name
    for spec in ({"data": ("a.txt", name)}, {"val_data": (name,)}):
        with pytest.raises(ValueError, match=f"{name} is a pipe, which only one of several processes can read"):
            plan(ranks=several, **spec)
    write_run("out", data=(name,))
    assert plan(resume=True, ranks=several, out_dir=Path("out"), start_text="A").keeps_text
    with pytest.raises(ValueError, match="which only one of several processes can read"):
        plan(resume=True, ranks=several, out_dir=Path("out"), val_fraction=0.5)


def test_the_batch_is_shared_by_the_processes():
    check_processes(TrainArgs(batch_size=12), 3)
    with pytest.raises(ValueError, match="batch_size is 12, for 5 processes"):
        check_processes(TrainArgs(batch_size=12), 5)


@pytest.mark.parametrize("architecture", [{}, SMALL])
def test_a_batch_size_that_is_still_to_be_chosen_is_no_obstacle(architecture):
    three = Ranks(rank=0, world_size=3)
    chosen_later = plan(minutes=1.0, micro_batch_size=5, ranks=three, **architecture)
    assert chosen_later.needs_choice
    assert "batch_size" not in chosen_later.settings
    with pytest.raises(ValueError, match=r"^micro_batch_size is -3: give at least 1$"):
        plan(minutes=1.0, micro_batch_size=-3, **architecture)


def test_a_short_run_is_checked_with_its_short_context():
    plan = resolve(None, Path(__file__).parents[2] / "configs" / "demo.toml", {"minutes": 0.5, "data": ("a",)}, False)
    assert plan.needs_choice
    assert plan.model_args.max_seq_len == 128
