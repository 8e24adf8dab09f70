"""Settings that fine-tuning takes from the model it starts from, and its learning rates."""

from collections.abc import Set
from pathlib import Path

from ..cli import Settings
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..weights import open_checkpoint
from .config import FINE_TUNING_LR_FRACTION, PEAK_LR, TrainArgs


def fine_tuning_settings(settings: Settings, flags: Settings, kept_rates: Set[str]) -> Settings:
    """``settings`` with the architecture and the tokenizer of ``init_from``, which replace those of a config.

    A flag may lower ``max_seq_len``. The learning rates named in ``kept_rates`` are used as they are. The others are
    multiplied by FINE_TUNING_LR_FRACTION. A missing rate counts as PEAK_LR, except ``lr`` if the optimizer is
    adamw: it counts as ``TrainArgs.lr``.

    Raises ValueError if the ``flags`` set another architecture, or ask for a new tokenizer.
    """
    source = settings["init_from"]
    checkpoint = open_checkpoint(source)
    subclass_name = checkpoint.subclass_name
    if subclass_name not in (None, settings.get("network")):
        raise ValueError(f"{source} holds the weights of {subclass_name}: give --network {subclass_name}")
    architecture = vars(checkpoint.args)
    for name in (architecture.keys() & flags.keys()) - {"max_seq_len"}:
        if flags[name] != architecture[name]:
            raise ValueError(
                f"{name} is {flags[name]}, but {source} has {architecture[name]}: leave {name} out, because init_from "
                "sets it"
            )
    longest = architecture["max_seq_len"]
    context = flags.get("max_seq_len", longest)
    if context > longest:
        raise ValueError(f"max_seq_len is {context}, but {source} has a context of {longest}: give at most that")
    tokenizer = pretrained_tokenizer(source, flags)
    rates = fine_tuning_rates(settings, kept_rates)
    return settings | architecture | rates | {"max_seq_len": context, "tokenizer": tokenizer}


def pretrained_tokenizer(source: Path, flags: Settings) -> str:
    tokenizer = flags.get("tokenizer", str(source))
    if tokenizer in TOKENIZER_KINDS:
        raise ValueError(
            f"tokenizer is {tokenizer}, which would train a new one, but the weights in {source} are for the tokenizer "
            "that they were trained with: leave --tokenizer out, or give the file of that tokenizer"
        )
    return tokenizer


def fine_tuning_rates(settings: Settings, kept_rates: Set[str]) -> Settings:
    """The lowered learning rates, without those in ``kept_rates``."""
    from_scratch = {"lr": PEAK_LR if settings.get("optimizer", "muon") == "muon" else TrainArgs.lr, "muon_lr": PEAK_LR}
    rates = {}
    for name, rate in from_scratch.items():
        if name not in kept_rates:
            lower = FINE_TUNING_LR_FRACTION * settings.get(name, rate)
            rates[name] = float(f"{lower:.6g}")  # 0.0009, and not 0.0008999999999999999
    return rates
