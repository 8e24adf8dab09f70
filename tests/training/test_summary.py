"""The announcement, the warnings and the summary of a run: correct numbers, and advice on what to do."""

from dataclasses import replace
from shlex import quote, split

import pytest
from training_helpers import trainer

from model.cli import quantity
from model.text.token_cache import cache_home
from model.training.run_directory import Progress
from model.training.summary import (
    RunFacts,
    announcement,
    duration,
    first_words,
    overfitting_warning,
    run_facts,
    summary,
)
from model.training.trainer import Trainer


def facts_of(run: Trainer) -> RunFacts:
    return run_facts(run.model, run.args, run.dataset, run.device, run.ranks)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (90, "1:30"), (3599.7, "1:00:00"), (36_061, "10:01:01")]
)
def test_a_duration_is_in_hours_minutes_and_seconds(seconds, text):
    assert duration(seconds) == text


def test_epochs_are_tokens_divided_by_the_tokens_of_the_text(tmp_path):
    run = facts_of(trainer(tmp_path, batch_size=5))  # 5 x 8 tokens a step, of a text of 500
    assert run.epochs_after(20) == "1.6 epochs"
    assert run.epochs_after(12_500) == "1,000 epochs"


@pytest.mark.parametrize(
    ("val_loss", "best", "train_loss", "reason"),
    [
        (1.31, 1.02, 1.0, "validation is 1.310, and was 1.020 at step 300"),
        (10.16, 10.16, 0.08, "the training loss is 0.080, validation 10.160"),
        (1.04, 1.02, 1.0, None),
        (1.02, 1.02, 0.9, None),
        (None, None, 0.1, None),
        (1.0, 1.0, None, None),
    ],
)
def test_the_overfitting_warning_gives_the_losses_and_advice(val_loss, best, train_loss, reason):
    warning = overfitting_warning(Progress(step=600, val_loss=val_loss, best_val_loss=best, best_step=300), train_loss)
    if reason is None:
        assert warning is None
    else:
        assert warning.startswith("the run overfits: ")
        assert reason in warning
        assert "more text" in warning


def facts(tmp_path, unigram_loss, **settings):
    return replace(facts_of(trainer(tmp_path, **settings)), unigram_loss=unigram_loss)


def test_the_summary_notes_a_loss_that_is_no_better_than_a_unigram_model(tmp_path):
    run = facts(tmp_path, unigram_loss=6.2)
    worse = Progress(step=1, tokens=64, val_loss=10.16, best_val_loss=10.16)
    assert "no better than a unigram model" in summary(run, worse)
    assert "no better than a unigram model" not in summary(run, replace(worse, val_loss=6.1, best_val_loss=6.1))


def test_the_summary_has_the_numbers_of_the_run_and_the_next_command(tmp_path):
    progress = Progress(step=4, tokens=256, train_seconds=2.0, wall_seconds=7.4, best_val_loss=0.6931472, best_step=3)
    output = summary(facts(tmp_path, unigram_loss=2.5), progress)
    for number in ("4,784", "4 steps", "256 tokens", "0.51 epochs", "7 seconds", "128 tokens/s"):
        assert number in output
    for number in ("0.6931 nats per token", "1.000 bits per byte", "at step 3", "2.5000"):
        assert number in output
    assert f"python generate.py {quote(str(tmp_path))}" in output


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("First Citizen:\nBefore we", "First Citizen:"),
        ("\n\n  Once upon a time, there", "Once upon a"),
        ("天下大势，分久必合，合久必分。", "天下大势"),
        ("吾輩は猫である。名前はまだ無い。", "吾輩は猫である"),
        ("import os\n", "import os"),
        ("--- a list\n", "a list"),
        ("x" * 70, "x" * 8),
        ("Donaudampfschifffahrtsgesellschaft und mehr", "Donaudam"),
        (" \n", ""),
        ("", ""),
    ],
)
def test_the_next_command_has_a_prompt_from_the_beginning_of_the_text(tmp_path, text, prompt):
    assert first_words(text) == prompt
    output = summary(facts(tmp_path, unigram_loss=2.5), Progress(step=4, tokens=256), text=text)
    command = output.splitlines()[-1].split(maxsplit=1)[1]
    prompt_flag = ["--prompt", prompt] if prompt else []
    assert split(command) == ["python", "generate.py", str(tmp_path), *prompt_flag]


def test_quantities_of_one_are_singular(tmp_path):
    run = facts(tmp_path, unigram_loss=2.5, max_steps=1)
    run = replace(run, model=replace(run.model, n_layers=1, n_heads=1, n_kv_heads=1))
    text = announcement(run)
    for words in ("1 layer of width 16, 1 head,", ", 1 step: 64 tokens,"):
        assert words in text
    assert "1 step, 1 token, " in summary(run, Progress(step=1, tokens=1, wall_seconds=1.2))
    assert ", 1 second" in summary(run, Progress(step=1, tokens=1, wall_seconds=1.2))
    assert run.epochs_after(500 / 64) == "1 epoch"
    assert [quantity(count, "box", "boxes") for count in (0, 1, 1000)] == ["0 boxes", "1 box", "1,000 boxes"]


def test_the_announcement_gives_sizes_memory_losses_and_length(tmp_path, monkeypatch):
    monkeypatch.setattr("model.training.summary.free_memory", lambda device: 3 * 10**9)
    text = announcement(facts(tmp_path, unigram_loss=2.345, max_steps=50, minutes=1.5))
    for number in ("4,784 parameters", "2 layers of width 16", "401 MB at the peak", "3.0 GB free", "1 MB on disk"):
        assert number in text
    for number in ("500 tokens", "100 for validation", "0.99 bytes", "vocabulary of 11", "2.398", "2.345"):
        assert number in text
    for number in ("8 x 8 tokens per step", "50 steps", "3,200 tokens", "6.4 epochs", "1:30 at most"):
        assert number in text
    assert "1:30 in all" in announcement(facts(tmp_path, unigram_loss=2.345, max_steps=None, minutes=1.5))


def test_the_announcement_names_the_directory_of_the_tokens(tmp_path):
    run = facts(tmp_path, unigram_loss=2.5)
    assert f"cached in {cache_home()} (" in announcement(run)
    assert f"cached in {tmp_path} (" in announcement(replace(run, dataset=replace(run.dataset, entry=tmp_path)))


def test_the_announcement_of_a_resumed_run_gives_the_step_and_the_changes(tmp_path):
    output = announcement(facts(tmp_path, unigram_loss=2.5), steps_done=7, changes=("lr 0.1 -> 0.2",))
    assert "after step 7; lr 0.1 -> 0.2" in output
    assert "after step" not in announcement(facts(tmp_path, unigram_loss=2.5))


@pytest.mark.parametrize(
    ("val_loss", "train_loss", "overfits"),
    [(1.04, 0.9, True), (1.03, 0.9, False), (1.0, 0.69, True), (1.0, 0.7, False)],
)
def test_overfitting_is_a_rise_above_3_percent_or_a_training_loss_below_70_percent(val_loss, train_loss, overfits):
    assert bool(overfitting_warning(Progress(val_loss=val_loss, best_val_loss=1.0), train_loss)) == overfits
