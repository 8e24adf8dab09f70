"""Which model to train, and in which batches: chosen from the text, the speed of this machine and the minutes.

A larger model learns more from each token, a smaller one sees more tokens in the same time, and a small text has only
so much to give. ``Law`` weighs them, fitted to the runs in benchmarks/sizing.jsonl by
benchmarks/sizing.py. docs/scaling.md says how well it predicts runs that it was not fitted to.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..cli import Settings, from_settings
from ..config import ModelArgs
from ..text.dataset import Dataset
from ..transformer import Transformer
from .config import RATE, TrainArgs
from .estimate import check_training_memory, count_parameters, fits_memory
from .evaluation import guessing_losses
from .trainer import Trainer

# Width and layers; each step is up to twice the work, so that noise in the timing rarely changes the choice. In few
# minutes few layers are best: wide products are faster than many.
LADDER = ((64, 2), (96, 2), (128, 2), (128, 4), (160, 5), (224, 5), (288, 6), (384, 7), (512, 8), (704, 9), (1024, 10))
ORDER = 6  # of the guesses by frequency, which say how hard a text is
SHORT = 2.0  # minutes: in 500 steps half the context taught 5% more, in 1,400 steps 0.7% less (benchmarks/choice.py)
OVERHEAD = 0.05  # of the minutes: validation, checkpoints, samples
ROUNDS = 3  # in which the candidates are timed
FINE_TUNING_PASSES = 4  # over the text: a small model was better after 2 than after 6 (benchmarks/fine_tuning.py)


class Law(NamedTuple):
    """The loss as three parts: what no model learns, what a small one misses, and what too little text leaves out.

    The form is that of Chinchilla (arXiv:2203.15556, equation 10), in which a text that is read again counts less
    each time (arXiv:2305.16264, equation 5). It is a fraction of what the best guess by frequency costs, so that it
    can speak of a text that no run has seen.
    """

    floor: float
    model: float
    model_power: float
    text: float
    text_power: float
    repeats: float  # how many passes beyond the first are worth one through new text each, in the limit

    def loss(self, guess: Any, hidden: Any, tokens: Any, unique: Any) -> Any:
        """Nats per token of validation text, after so many ``tokens`` of a text with ``unique`` ones.

        ``guess`` is the best of ``guessing_losses``, ``hidden`` the parameters in the layers' matrices.
        """
        beyond = tokens / unique - 1
        again = (beyond + abs(beyond)) / 2  # 0 within the first pass; written such that the fit can pass tensors
        new = tokens - unique * again + unique * self.repeats * (1 - math.e ** (-again / self.repeats))
        missed = self.model * (hidden / 1e6) ** -self.model_power + self.text * (new / 1e6) ** -self.text_power
        return guess * (self.floor + missed)


LAW = Law(floor=0.6553, model=0.0771, model_power=0.3063, text=0.1527, text_power=0.626, repeats=8.4177)
ENOUGH = 0.003  # a gain of the loss, as a fraction, that is worth no further passes
MOST_PASSES = 12  # no run that the law was fitted to has seen its text more often


@dataclass(frozen=True)
class Forecast:
    """What a run is expected to come to."""

    tokens_per_second: float
    steps: int
    loss: float | None = None  # nats per token of validation text; None where the law does not apply, to fine-tuning
    ends_early: bool = False  # because more passes over the text would not make the model better


@dataclass(frozen=True)
class TextFacts:
    """What the choice of a model needs to know of a text."""

    train_tokens: int
    vocab_size: int
    guess: float  # how hard it is: nats per token of the best guess by frequency


def text_facts(dataset: Dataset, vocab_size: int) -> TextFacts:
    return TextFacts(len(dataset.train), vocab_size, hardness(dataset, vocab_size))


def hardness(dataset: Dataset, vocab_size: int) -> float:
    """How hard a text is, for the law: nats per token of the best guess by frequency."""
    return min(guessing_losses(dataset, vocab_size, ORDER))


@dataclass(frozen=True)
class Machine:
    """What trains: a network on a device, in so many processes. It is timed on the text that it will train on."""

    network: type[Transformer]
    dataset: Dataset
    device: torch.device
    processes: int = 1
    # Seconds of the fastest step so far, by model and batch size
    fastest: dict[tuple[ModelArgs, int], float] = field(default_factory=dict, init=False)

    def tokens_per_second(self, model: ModelArgs, train: TrainArgs) -> float:
        """Of training steps on random weights: the fastest of a third of a second of them, and of all timed before.

        Other programs make a step slower and never faster, so the fastest is what this machine can do.
        """
        torch.manual_seed(train.seed)
        network = self.network(model).to(self.device)
        trainer = Trainer(network, self.dataset, dataclasses.replace(train, compile=False, fsdp=False))
        trainer.model.train()
        key = (model, train.batch_size)
        fastest = self.fastest.get(key, math.inf)
        spent = 0.0
        steps = 0
        while steps < 3 or spent < 0.35:
            begin = time.perf_counter()
            trainer.step(1.0)  # which waits for the device
            seconds = time.perf_counter() - begin
            fastest = min(fastest, seconds)
            spent += seconds
            steps += 1
            if spent > 1.5:  # large models: one slow step is enough
                break
        self.fastest[key] = fastest
        return self.processes * train.batch_size * model.max_seq_len / fastest


def has_architecture(settings: Settings) -> bool:
    return bool(settings.get("init_from")) or {"dim", "n_layers"} <= settings.keys()


def undecided(settings: Settings) -> bool:
    """Whether anything is to be chosen: minutes are given, but not both an architecture and a batch size."""
    decided = has_architecture(settings) and "batch_size" in settings
    return bool(settings.get("minutes")) and not decided


def choose_settings(given: Settings, text: TextFacts, machine: Machine) -> Settings:
    """The given settings, and those that suit the text, the machine and the minutes best.

    Every candidate is timed in several rounds, a few seconds apart, so that a program that is busy for a moment does
    not decide. Raises ValueError when no candidate fits into the memory.
    """
    choose = choose_training if has_architecture(given) else choose_model
    for _ in range(ROUNDS):
        chosen = choose(given, text, machine)
    return chosen


def choose_training(given: Settings, text: TextFacts, machine: Machine) -> Settings:
    """The batch, and what depends on it, for an architecture that is given or that of the model to fine-tune."""
    model = from_settings(ModelArgs, given | {"vocab_size": text.vocab_size})
    seconds = 60 * given["minutes"] * (1 - OVERHEAD)
    tokens = 1e4 * seconds  # until this model has been timed
    for _ in range(2):
        settings = recipe(model, tokens, text.train_tokens, given, machine.processes)
        if given.get("init_from") and "weight_decay" not in given:
            settings["weight_decay"] = TrainArgs.weight_decay  # more would undo what the model has learnt
        train = from_settings(TrainArgs, settings)
        check_training_memory(model, train, machine.device, machine.processes)
        step_tokens = train.batch_size * model.max_seq_len
        possible = min(seconds * machine.tokens_per_second(model, train), train.step_limit * step_tokens)
        tokens = possible
        if given.get("init_from"):
            tokens = min(possible, FINE_TUNING_PASSES * text.train_tokens)
    steps = max(1, int(tokens / step_tokens))
    if tokens < possible:
        settings = {"max_steps": steps} | settings
    return validations(steps, tokens) | settings | shape(model)


def choose_model(given: Settings, text: TextFacts, machine: Machine) -> Settings:
    """The model, the batch and what depends on them.

    Sizes are tried from small to large, until the predicted loss or the memory says that the one before was better.
    """
    seconds = 60 * given["minutes"] * (1 - OVERHEAD)
    tokens = 1e4 * seconds  # a first guess of what the smallest size can see
    best: Settings | None = None
    least = math.inf
    for model in architectures(usual_context(given) | given | {"vocab_size": text.vocab_size}):
        hidden = count_parameters(model)[1]
        train = from_settings(TrainArgs, recipe(model, tokens, text.train_tokens, given, machine.processes))
        if not fits_memory(model, train, machine.device, machine.processes):
            break
        possible = seconds * machine.tokens_per_second(model, train)
        possible = min(possible, train.step_limit * train.batch_size * model.max_seq_len)
        tokens = most_useful(text.guess, hidden, possible, text.train_tokens)
        loss = LAW.loss(text.guess, hidden, tokens, text.train_tokens)
        if loss >= least:
            break
        least = loss
        best = recipe(model, tokens, text.train_tokens, given, machine.processes) | shape(model)
        steps = max(1, int(min(tokens / (best["batch_size"] * model.max_seq_len), train.step_limit)))
        if tokens < possible:
            best = {"max_steps": steps} | best
        best = validations(steps, tokens) | best
    if best is None:
        raise ValueError("not even the smallest model fits into the memory that is free: close other programs")
    return best


def forecast(model: ModelArgs, train: TrainArgs, text: TextFacts, machine: Machine) -> Forecast:
    """What a run with these settings will come to, on this machine."""
    speed = machine.tokens_per_second(model, train)
    step_tokens = train.batch_size * model.max_seq_len
    steps = train.step_limit
    if train.minutes is not None:
        steps = min(steps, 60 * train.minutes * (1 - OVERHEAD) * speed / step_tokens)
    steps = max(1, int(steps))
    if train.init_from:
        return Forecast(speed, steps)
    loss = LAW.loss(text.guess, count_parameters(model)[1], steps * step_tokens, text.train_tokens)
    return Forecast(speed, steps, loss)


def architectures(given: Settings) -> Iterator[ModelArgs]:
    """The smallest first, with what is given in each; those that cannot be are left out."""
    seen = set()
    for width, n_layers in LADDER:
        dim = given.get("dim", width)
        heads = most_heads(dim)
        own = {"dim": dim, "n_layers": n_layers, "n_heads": heads, "tie_embeddings": given["vocab_size"] > 512}
        if heads % 2 == 0 and "n_heads" not in given:
            own["n_kv_heads"] = heads // 2
        try:
            args = from_settings(ModelArgs, own | given)
        except ValueError:
            continue
        if args not in seen:
            seen.add(args)
            yield args


def shape(model: ModelArgs) -> Settings:
    """The settings of a model that are chosen; the others are given, defaults or the tokenizer's."""
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "tie_embeddings", "max_seq_len")
    return {name: getattr(model, name) for name in names}


def most_heads(dim: int) -> int:
    """As many as divide ``dim`` into heads of an even width, which is at least 32, or 64 in wide models."""
    narrowest = 32 if dim < 384 else 64
    counts = [count for count in range(1, dim // narrowest + 1) if dim % (2 * count) == 0]
    return max(counts, default=1)


def placeholder(given: Settings) -> Settings:
    """The smallest architecture that could be chosen, for checks that are made before one is; none if there is none."""
    smallest = next(architectures({"vocab_size": ModelArgs.vocab_size} | usual_context(given) | given), None)
    return {} if smallest is None else dict(vars(smallest))


def usual_context(given: Settings) -> Settings:
    """``max_seq_len`` of a run of so many ``minutes``, if it is not the default."""
    return {"max_seq_len": 128} if given["minutes"] < SHORT else {}


def recipe(model: ModelArgs, tokens: float, unique: int, given: Settings, processes: int = 1) -> Settings:
    """Batch, rates and regularization for a run that sees so many tokens of a text with ``unique`` ones.

    The batch grows with the square root of the tokens. Weight decay keeps a model from learning the text by heart; it
    is needed the more, the more passes there are and the more parameters for each token of the text. With few of
    both it only hinders. What is ``given`` stays.
    """
    rows = 2 ** round(math.log2(math.sqrt(tokens / 1e6) * 1024 / model.max_seq_len))
    rows = max(2, min(rows, 64))
    unit = processes * given.get("micro_batch_size", 1)  # the batch is a multiple of it
    pressure = tokens / unique * math.sqrt(count_parameters(model)[1] / unique)
    suited = {
        "batch_size": unit * max(1, round(rows / unit)),
        "lr": RATE if given.get("optimizer", "muon") == "muon" else TrainArgs.lr,
        "muon_lr": RATE,
        "decay_start": 0.1,
        "weight_decay": round(min(0.1 * max(1.0, pressure / 5) ** 1.5, 0.8), 1),
    }
    return suited | given


def validations(steps: int, tokens: float) -> Settings:
    """About ten in a run, on so much text that they take a small part of its time; a sample with every second."""
    every = max(1, steps // 10)
    digit = 10 ** (len(str(every)) - 1)
    every = every // digit * digit
    text = 1000 * round(min(max(7.5e-6 * tokens, 40), 200))
    return {"eval_every": every, "eval_tokens": text, "sample_every": 2 * every}


def most_useful(guess: float, hidden: int, tokens: float, unique: int) -> float:
    """How many of so many tokens to train on: no more passes over the text than are known to make the model better."""
    tokens = min(tokens, MOST_PASSES * unique)
    enough = LAW.loss(guess, hidden, tokens, unique) * (1 + ENOUGH)
    fewest = tokens
    for n in range(1, 60):
        fewer = tokens * 0.9**n
        if LAW.loss(guess, hidden, fewer, unique) < enough:
            fewest = fewer
    return fewest
