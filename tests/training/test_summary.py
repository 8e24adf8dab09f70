"""The announcement, the warnings and the summary of a run, as the terminal shows them."""

from dataclasses import replace
from pathlib import Path
from shlex import split

import pytest
import torch
from training_helpers import ARGS, dataset, trainer

from model.cli import quantity
from model.training.config import TrainArgs
from model.training.sizing import Forecast
from model.training.state import Progress
from model.training.summary import (
    RunFacts,
    announcement,
    duration,
    first_words,
    overfitting_warning,
    run_facts,
    summary,
)

RUN = Path("runs/my run")
FACTS = RunFacts(
    args=TrainArgs(batch_size=8, max_steps=50, minutes=1.5, init_from=Path("base"), network="sliding:Sliding"),
    model=ARGS,
    parameters=4_784,
    dataset=replace(dataset(), entry=Path("cache/tokens-1")),
    device=torch.device("cpu"),
    dtype=torch.float32,
    processes=1,
    unigram_loss=2.345,
)


def test_the_announcement(monkeypatch):
    monkeypatch.setattr("model.training.summary.free_memory", lambda device: 3 * 10**9)
    forecast = Forecast(2400.0, 48, 1.25, ends_early=True)
    assert announcement(FACTS, RUN, 7, ["lr 0.1 -> 0.2", "max_steps 40 -> 50"], forecast).splitlines() == [
        "model          4,784 parameters: 2 layers of width 16, 2 heads, on cpu in float32, 1 thread",
        "memory         about 401 MB at the peak, 3.0 GB free; 1 MB on disk",
        "text           500 tokens to train on, 100 for validation, 0.99 bytes each, vocabulary of 11; "
        "cached in cache/tokens-1 (1 MB)",
        "baselines      2.398 nats per token for uniform guesses, 2.345 for token frequencies",
        "training       8 x 8 tokens per step, 50 steps: 3,200 tokens, 6.4 epochs, 1:30 at most, dropout 0",
        "directory      runs/my run",
        "expected       about 1.25 nats per token, 1.80 bits per byte, after 48 steps, 6.1 epochs, at 2,400 tokens/s, "
        "ending after about 0:01: more steps are hardly worth their time",
        "fine-tuning    base, lr 0.003, muon_lr 0.02",
        "resuming       after step 7; lr 0.1 -> 0.2; max_steps 40 -> 50",
    ]


def test_the_summary():
    progress = Progress(
        step=400, tokens=25_600, train_seconds=2.0, wall_seconds=7.4, val_loss=2.5, best_val_loss=2.4, best_step=300
    )
    warning = (
        "the run overfits: validation is 2.500, and was 2.400 at step 300; more text, fewer minutes or steps, "
        "--dropout 0.2, or a smaller --dim or --n_layers help"
    )
    assert summary(FACTS, RUN, progress, train_loss=2.3, text="First Citizen:\nBefore we").splitlines() == [
        "parameters     4,784",
        "trained        400 steps, 25,600 tokens, 51 epochs, 7 seconds",
        "speed          12,800 tokens/s",
        "validation     2.4000 nats per token, 3.462 bits per byte (best, at step 300); unigram model 2.3450",
        "note           no better than a unigram model: train longer, on more text, or with other --lr and --muon_lr",
        f"overfitting    {warning}",
        "run directory  runs/my run",
        "next           python generate.py 'runs/my run' --network sliding:Sliding --prompt 'First Citizen:'",
    ]


def test_the_facts_are_those_of_the_run(tmp_path):
    run = trainer(tmp_path, batch_size=5)  # 5 x 8 tokens a step, of a text of 500
    facts = run_facts(run.model, run.args, run.dataset, run.device, run.ranks)
    assert (facts.parameters, facts.model, facts.dtype, facts.processes) == (4_784, ARGS, torch.float32, 1)
    assert 1.5 < facts.unigram_loss < 2.5
    assert facts.epochs_after(20) == "1.6 epochs"
    assert facts.epochs_after(12_500) == "1,000 epochs"
    assert facts.epochs_after(12.5) == "1 epoch"


def expected(forecast: Forecast, **changes) -> str:
    lines = announcement(replace(FACTS, **changes), RUN, forecast=forecast).splitlines()
    return next(line for line in lines if line.startswith("expected"))


def test_the_forecast_warns_if_the_run_teaches_little():
    assert "too little to learn much from: give more text or more minutes" in expected(Forecast(2400.0, 500, 2.2))
    few_steps = expected(Forecast(2400.0, 9, 1.2))
    assert few_steps.endswith("fewer than 100 steps teach little: give more minutes, or a smaller --batch_size")
    assert "teach" not in expected(Forecast(2400.0, 500, 1.2))
    assert "nats" not in expected(Forecast(2400.0, 500, None))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (90, "1:30"), (3599.7, "1:00:00"), (36_061, "10:01:01")]
)
def test_a_duration_is_in_hours_minutes_and_seconds(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("val_loss", "best", "train_loss", "reason"),
    [
        (1.31, 1.02, 1.0, "validation is 1.310, and was 1.020 at step 300"),
        (10.16, 10.16, 0.08, "the training loss is 0.080, validation 10.160"),
        (1.04, 1.0, 0.9, "validation is 1.040"),
        (1.03, 1.0, 0.9, None),
        (1.0, 1.0, 0.69, "the training loss is 0.690"),
        (1.0, 1.0, 0.7, None),
        (None, None, 0.1, None),
        (1.0, 1.0, None, None),
    ],
)
def test_overfitting_is_a_rise_above_3_percent_or_a_training_loss_below_70_percent(val_loss, best, train_loss, reason):
    warning = overfitting_warning(Progress(step=600, val_loss=val_loss, best_val_loss=best, best_step=300), train_loss)
    assert (warning is None) == (reason is None)
    assert warning is None or warning.startswith(f"the run overfits: {reason}")


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
def test_the_next_command_has_a_prompt_from_the_beginning_of_the_text(text, prompt):
    assert first_words(text) == prompt
    command = summary(FACTS, RUN, Progress(step=4, tokens=256), text=text).splitlines()[-1].split(maxsplit=1)[1]
    prompt_flag = ["--prompt", prompt] if prompt else []
    assert split(command) == ["python", "generate.py", str(RUN), "--network", "sliding:Sliding", *prompt_flag]


def test_quantities_of_one_are_singular():
    assert [quantity(count, "box", "boxes") for count in (0, 1, 1000)] == ["0 boxes", "1 box", "1,000 boxes"]
    assert "trained        1 step, 1 token, " in summary(FACTS, RUN, Progress(step=1, tokens=1, wall_seconds=1.2))
