"""Small models whose weights are so large that positions matter, in memory and on disk, and a text."""

from dataclasses import replace
from pathlib import Path

import torch

from model import ModelArgs, Transformer
from model.cli import toml_text
from model.config import RopeScaling
from model.text.sources import open_documents
from model.text.tokenize import tokenize
from model.text.train_tokenizer import train_tokenizer
from model.training.config import DataArgs
from model.weights import load_tokenizer, save_model, save_tokenizer
from study.positions import SCALINGS, build_scheme

TEXT = "".join(f"line {n}: a rope of {n * n} yards, laid in {n % 7} strands.\n" for n in range(900))


def save_random(home: Path, scheme: str = "rope", max_seq_len: int = 32) -> tuple[Path, Transformer]:
    """The run directory ``home / scheme`` with a model of that position encoding trained on TEXT, and the model."""
    tokenizer = load_tokenizer(train_tokenizer([TEXT], home / "tokenizer.model", "bpe", 300))
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": tokenizer.vocab_size}
    model = random_model(ModelArgs(**sizes, max_seq_len=max_seq_len), scheme, std=0.3)
    save_model(model, home / scheme)
    save_tokenizer(tokenizer, home / scheme)
    make_run(home / scheme, TEXT)
    return home / scheme, model


def make_run(directory: Path, text: str) -> None:
    """Make the directory of a model a run directory, whose validation text is the last quarter of ``text``."""
    file = directory.parent / "text.txt"
    file.write_text(text, encoding="utf-8")
    tokenize(directory, open_documents([file]), load_tokenizer(directory), val_fraction=0.25)
    settings = toml_text(DataArgs(data=(str(file),), val_fraction=0.25))
    (directory / "config.toml").write_text(settings, encoding="utf-8")


@torch.no_grad()
def random_model(args: ModelArgs, scheme: str = "rope", std: float = 0.4, factor: float = 1.0) -> Transformer:
    """A network whose weights are so large that positions change the logits in every scheme.

    ``factor`` is for linear, ntk and yarn: ``args.max_seq_len`` divided by the length that was trained on.
    """
    torch.manual_seed(3)
    if scheme in SCALINGS:
        original = round(args.max_seq_len / factor) if scheme == "yarn" else None
        args = replace(args, rope_scaling=RopeScaling(scheme, factor, original_max_seq_len=original))
    model = build_scheme(args, scheme)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=std)
    return model.eval()
