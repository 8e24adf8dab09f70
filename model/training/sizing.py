"""Choose the size of the model and its training settings by the text, the speed of the machine and the minutes.

Everything here is computed; choice.py measures the speed of each size on this machine. A larger model learns more from
each token, a smaller one sees more tokens in the same time, and a small text has only a limited amount to learn.
``Law`` weighs these against each other. benchmarks/sizing.py fits it to the runs in benchmarks/sizing.jsonl, and
docs/scaling.md shows how well it predicts runs that it was not fitted to.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..config import UNSET, ModelArgs
from ..text.dataset import Dataset
from .config import Run, TrainArgs
from .estimate import count_parameters
from .evaluation import ngram_losses

# The layers of each size have about twice the parameters of the size before, so that noise in the timing rarely changes
# the choice. Short runs do best with few layers, because a few wide products are faster than many narrow ones.
LADDER = (  # dim, n_layers, n_heads, n_kv_heads
    (64, 2, 2, 1),
    (96, 2, 3, 3),
    (128, 2, 4, 2),
    (128, 4, 4, 2),
    (160, 5, 5, 5),
    (224, 5, 7, 7),
    (288, 6, 9, 9),
    (384, 7, 6, 3),
    (512, 8, 8, 4),
    (704, 9, 11, 11),
    (1024, 10, 16, 8),
)
SIZE = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim")  # chosen together, or not at all
CHOSEN = {"dim", "n_layers", "n_heads", "n_kv_heads", "tie_embeddings", "max_seq_len", "batch_size", "max_steps"}
CHOSEN |= {"decay_start", "weight_decay", "eval_every", "eval_tokens", "sample_every"}
NGRAM_ORDER = 6  # largest n of the n-gram models; the lowest of their losses shows how hard the text is to predict
OVERHEAD = 0.05  # fraction of the minutes for validation, checkpoints and samples
FINE_TUNING_EPOCHS = 3  # on two small texts, 3 epochs were better than 2 and 4 (benchmarks/choice.py)
MIN_GAIN = 0.003  # relative reduction of the loss below which the remaining tokens are not worth their time
# Embeddings are tied if the ``memorization`` of the run, epochs * sqrt(parameters / tokens of text), would be above
# this without tying. On two texts, tying raised the loss by 3% where the memorization was 13 and by 9% where it was 23.
# Where it was 26, one loss rose by 2% and the other fell by 0.5%. Where it was 38 and 54, tying lowered the loss by 4%
# and 3% (benchmarks/README.md).
TIE_ABOVE = 30
MAX_EPOCHS = 12  # the law was fitted to at most 10 epochs, and is trusted only a little beyond

Number = TypeVar("Number", float, Tensor)


class Law(NamedTuple):
    """The loss as a sum of three parts: irreducible loss, too small a model, too little text.

    The form is that of Chinchilla (arXiv:2203.15556, equation 10), with diminishing returns for repeated text
    (arXiv:2305.16264, equation 5). The sum is multiplied by the loss of the best n-gram model of the text, so that the
    law applies to texts that it was not fitted to.
    """

    floor: float
    model_scale: float
    model_power: float
    text_scale: float
    text_power: float
    repeat_limit: float  # all repeated epochs together are worth at most this many epochs of new text

    def loss(self, ngram_loss: Number, hidden: Number, tokens: Number, unique_tokens: Number) -> Number:
        """Predict the validation loss in nats per token.

        ``ngram_loss`` is the lowest of ``ngram_losses``, and ``hidden`` the number of parameters in the matrices of the
        layers. ``tokens`` counts the tokens that were trained on, repeats included, ``unique_tokens`` those of the
        training text. The fit in benchmarks/sizing.py passes tensors.
        """
        repeats = tokens / unique_tokens - 1
        repeats = (repeats + abs(repeats)) / 2  # max(repeats, 0), for floats and tensors
        first_epoch = tokens - unique_tokens * repeats
        repeats_worth = self.repeat_limit * (1 - math.e ** (-repeats / self.repeat_limit))  # in epochs of new text
        effective_tokens = first_epoch + unique_tokens * repeats_worth
        model_part = self.model_scale * (hidden / 1e6) ** -self.model_power
        text_part = self.text_scale * (effective_tokens / 1e6) ** -self.text_power
        return ngram_loss * (self.floor + (model_part + text_part))


LAW = Law(
    floor=0.6387, model_scale=0.0888, model_power=0.2865, text_scale=0.1687, text_power=0.5876, repeat_limit=7.3468
)


class Forecast(NamedTuple):
    """The predicted outcome of a run."""

    tokens_per_second: float
    steps: int
    loss: float | None = None  # nats per token of validation text; None for fine-tuning, which the law does not cover
    ends_early: bool = False  # chosen, because more steps are hardly worth their time


def has_size(run: Run) -> bool:
    """Whether the size of the model is given."""
    return run.train.init_from is not None or not run.given.isdisjoint(SIZE)


def needs_choice(run: Run) -> bool:
    """Whether anything is to be chosen: minutes are set, but not both a size and a batch size."""
    return run.train.minutes is not None and not (has_size(run) and "batch_size" in run.given)


def lowest_ngram_loss(dataset: Dataset, vocab_size: int) -> float:
    return min(ngram_losses(dataset, vocab_size, NGRAM_ORDER))


def training_seconds(minutes: float) -> float:
    """The seconds of a run of ``minutes`` that remain for training steps."""
    return 60 * minutes * (1 - OVERHEAD)


@dataclass(frozen=True)
class Planner:
    """Computes what a run may leave open. The settings that are given are kept."""

    run: Run
    train_tokens: int  # in the training text
    ngram_loss: float  # nats per token of the best n-gram model: shows the law how hard the text is to predict
    processes: int = 1  # that share a batch

    def candidates(self) -> list[ModelArgs]:
        """The models to choose from, from small to large."""
        if has_size(self.run):
            return [self.run.model]
        sizes = [dict(zip(SIZE, (*size, UNSET, UNSET))) for size in LADDER]
        return [replace(self.run.model, **size) for size in sizes]

    def choose(self, speeds: Mapping[ModelArgs, float]) -> tuple[Run, Forecast]:
        """Choose the model with the lowest predicted loss. ``speeds`` has the tokens per second of each candidate.

        Returns the run with that model and the settings to train it, and what to expect.
        """
        planned = {model: self.planned_tokens(model, speed) for model, speed in speeds.items()}
        model = min(planned, key=lambda model: self.predicted_loss(model, planned[model]))
        tokens, speed = planned[model], speeds[model]
        if not has_size(self.run) and "tie_embeddings" not in self.run.given:
            tied = self.memorization(model, tokens) > TIE_ABOVE
            model = replace(model, tie_embeddings=tied)  # takes the same time
        train = self.training_settings(model, tokens)
        if train.max_steps is None and tokens < self.seconds() * speed:
            train = replace(train, max_steps=max(1, int(tokens / (train.batch_size * model.max_seq_len))))
        forecast = self.forecast(model, train, speed)
        open_settings = validation_settings(forecast.steps, tokens)
        train = replace(train, **{name: open_settings[name] for name in open_settings.keys() - self.run.given})
        return replace(self.run, model=model, train=train, given=self.run.given | CHOSEN), forecast

    def planned_tokens(self, model: ModelArgs, speed: float) -> float:
        """How many tokens to train on at ``speed`` tokens per second.

        As many as fit into the minutes and into ``max_steps``. If the user fixed neither the steps nor the size, at
        most MAX_EPOCHS epochs of the text, and tokens at the end that lower the loss by less than MIN_GAIN are dropped.
        Fine-tuning takes at most FINE_TUNING_EPOCHS.
        """
        tokens = self.seconds() * speed
        max_steps = self.run.train.max_steps
        if max_steps is not None:
            return min(tokens, max_steps * self.training_settings(model, tokens).batch_size * model.max_seq_len)
        if self.run.train.init_from:
            return min(tokens, FINE_TUNING_EPOCHS * self.train_tokens)
        if has_size(self.run):
            return tokens
        tokens = min(tokens, MAX_EPOCHS * self.train_tokens)
        good_enough = self.predicted_loss(model, tokens) * (1 + MIN_GAIN)
        while self.predicted_loss(model, 0.9 * tokens) < good_enough:
            tokens *= 0.9
        return tokens

    def seconds(self) -> float:
        """The seconds of the run that remain for training steps."""
        return training_seconds(self.run.train.minutes or 0)

    def training_settings(self, model: ModelArgs, tokens: float) -> TrainArgs:
        """The settings of a run of ``tokens``: batch size, ``decay_start`` and weight decay unless they are given.

        The batch size grows with the square root of the tokens. For a vocabulary above 2048 it also grows with the
        square root of the vocabulary size, because a batch otherwise holds few examples of each piece. Weight decay
        keeps the model from memorising the text, so it grows with the ``memorization``; where that is low, a weight
        decay above 0.1 raises the loss.
        """
        step_tokens = 1024 * math.sqrt(tokens / 1e6 * max(1, model.vocab_size / 2048))
        rows = 2 ** round(math.log2(step_tokens / model.max_seq_len))
        rows = max(2, min(rows, 64))
        decay = 0.1 * max(1.0, self.memorization(model, tokens) / 5) ** 1.5
        if self.run.train.init_from:
            decay = TrainArgs.weight_decay  # more would shrink the weights that the model has learnt
        chosen: dict[str, Any] = {
            "batch_size": self.processes * max(1, round(rows / self.processes)),
            "decay_start": 0.1,
            "weight_decay": round(min(decay, 0.8), 1),
        }
        return replace(self.run.train, **{name: chosen[name] for name in chosen.keys() - self.run.given})

    def memorization(self, model: ModelArgs, tokens: float) -> float:
        """How much of the text a run may memorise: epochs times the square root of parameters per token of text."""
        return tokens / self.train_tokens * math.sqrt(count_parameters(model).total / self.train_tokens)

    def predicted_loss(self, model: ModelArgs, tokens: float) -> float:
        return LAW.loss(self.ngram_loss, count_parameters(model).hidden, tokens, self.train_tokens)

    def forecast(self, model: ModelArgs, train: TrainArgs, speed: float) -> Forecast:
        """Predict the steps and the loss of a run with these settings, at ``speed`` tokens per second."""
        step_tokens = train.batch_size * model.max_seq_len
        steps = train.step_limit
        if train.minutes is not None:
            steps = min(steps, training_seconds(train.minutes) * speed / step_tokens)
        steps = max(1, int(steps))
        loss = None if train.init_from else self.predicted_loss(model, steps * step_tokens)
        return Forecast(speed, steps, loss, ends_early=train.max_steps != self.run.train.max_steps)


def validation_settings(steps: int, tokens: float) -> dict[str, Any]:
    """Ten to twenty validations per run, on few tokens so that each is quick, and a sample at every second one.

    A run of fewer than ten steps validates after each.
    """
    eval_every = max(1, steps // 10)
    digit = 10 ** (len(str(eval_every)) - 1)
    eval_every = eval_every // digit * digit
    eval_tokens = 1000 * round(min(max(7.5e-6 * tokens, 40), 200))
    return {"eval_every": eval_every, "eval_tokens": eval_tokens, "sample_every": 2 * eval_every}
