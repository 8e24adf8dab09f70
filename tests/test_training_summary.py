"""What is said of a run, in numbers that hold and words that say what to do."""

import pytest
from training_helpers import trainer

from model.training.summary import announcement, duration, overfitting, passes, summary
from model.training.trainer import Progress


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (90, "1:30"), (3599.7, "1:00:00"), (36_061, "10:01:01")]
)
def test_a_duration_reads_like_a_clock(seconds, text):
    assert duration(seconds) == text


def test_passes_are_tokens_over_the_text(tmp_path):
    run = trainer(tmp_path, batch_size=5)  # 5 x 8 tokens a step, of a text of 500
    assert passes(20, run) == "1.6 passes over the text"
    assert passes(12_500, run) == "1,000 passes over the text"


@pytest.mark.parametrize(
    ("val_loss", "best", "train_loss", "said"),
    [
        (1.31, 1.02, 1.0, "validation rose to 1.310 from 1.020 at step 300"),
        (10.16, 10.16, 0.08, "the training loss is 0.080, validation 10.160"),
        (1.04, 1.02, 1.0, None),
        (1.02, 1.02, 0.9, None),
        (None, None, 0.1, None),
        (1.0, 1.0, None, None),
    ],
)
def test_overfitting_is_said_plainly(val_loss, best, train_loss, said):
    warning = overfitting(Progress(step=600, val_loss=val_loss, best_val_loss=best, best_step=300), train_loss)
    if said is None:
        assert warning is None
    else:
        assert warning.startswith("the run overfits: ")
        assert said in warning
        assert "more text" in warning


def test_a_run_that_is_worse_than_guessing_says_so(tmp_path):
    run = trainer(tmp_path, max_steps=1)
    run.run()
    run.progress.best_val_loss = run.progress.val_loss = 10.16
    assert "no better than guessing: train longer" in summary(run, unigram=6.2)
    run.progress.best_val_loss = run.progress.val_loss = 6.1
    assert "guessing: " not in summary(run, unigram=6.2)


def test_before_the_first_step_it_says_what_the_run_will_take(tmp_path, monkeypatch):
    monkeypatch.setattr("model.training.summary.free_memory", lambda device: 3 * 10**9)
    text = announcement(trainer(tmp_path, max_steps=50, minutes=1.5), 2.345, ())
    assert "4,784 parameters: 2 layers of width 16, 2 heads, on cpu in float32" in text
    assert "about 401 MB at most, 3.0 GB free; 1 MB on disk" in text
    assert "500 tokens to train on, 100 for validation, 0.99 bytes each, vocabulary of 11; cached in " in text
    assert "costs 2.398 nats per token uniformly, 2.345 by frequency" in text
    assert "8 x 8 tokens a step, 50 steps: 3,200 tokens, 6.4 passes over the text, 1:30 at most" in text
    assert "1:30 in all" in announcement(trainer(tmp_path, max_steps=None, minutes=1.5), 2.345, ())
