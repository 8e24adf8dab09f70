"""What fine-tuning takes from the model that it starts from, and at which rates it learns."""

from pathlib import Path

from ..cli import Settings
from ..text.train_tokenizer import TOKENIZER_KINDS
from ..weights import open_checkpoint
from .config import FINE_TUNING, RATE, TrainArgs


def fine_tuning(settings: Settings, given: Settings, flags: Settings) -> Settings:
    """Architecture and tokenizer are those of ``init_from``; only the context may be set, and only to less.

    Learning rates that are not among the ``given`` ones are FINE_TUNING times those for training from scratch.
    Raises ValueError if the ``flags`` ask for another architecture or tokenizer.
    """
    source = settings["init_from"]
    checkpoint = open_checkpoint(source)
    if checkpoint.network not in (None, settings.get("network")):
        raise ValueError(f"{source} holds the weights of {checkpoint.network}: give --network {checkpoint.network}")
    own = vars(checkpoint.args)
    for name in own.keys() & flags.keys() - {"max_seq_len"}:
        if flags[name] != own[name]:
            raise ValueError(f"{name} is {flags[name]}, but {source} has {own[name]}: leave it out with init_from")
    context = flags.get("max_seq_len", own["max_seq_len"])
    if context > own["max_seq_len"]:
        raise ValueError(f"max_seq_len is {context}: {source} was made for {own['max_seq_len']}; give at most that")
    tokenizer = own_tokenizer(source, flags)
    return settings | own | lower_rates(settings, given) | {"max_seq_len": context, "tokenizer": tokenizer}


def own_tokenizer(source: Path, flags: Settings) -> str:
    tokenizer = flags.get("tokenizer", str(source))
    if tokenizer in TOKENIZER_KINDS:
        raise ValueError(
            f"tokenizer is {tokenizer}, which would train a new one, but the weights in {source} are for the tokenizer "
            "that they were trained with: leave --tokenizer out, or name that tokenizer's file"
        )
    return tokenizer


def lower_rates(settings: Settings, given: Settings) -> Settings:
    """FINE_TUNING times each learning rate that is not ``given``."""
    usual = {"lr": RATE if settings.get("optimizer", "muon") == "muon" else TrainArgs.lr, "muon_lr": RATE}
    rates = {}
    for name, rate in usual.items():
        if name not in given:
            lower = FINE_TUNING * settings.get(name, rate)
            rates[name] = float(f"{lower:.6g}")  # 0.0009, and not 0.0008999999999999999
    return rates
