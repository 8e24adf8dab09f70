"""Train one model with one position encoding, and test it at longer lengths. The library's ``Trainer`` trains it."""

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from model.cli import toml_text
from model.cli.files import remove_unfinished, write_text
from model.config import ModelArgs
from model.text.dataset import IDS, META, Dataset, load_dataset, spread_numbers
from model.text.sources import open_documents
from model.text.tokenize import tokenize
from model.text.train_tokenizer import train_tokenizer
from model.training.config import CONFIG_FILE, DataArgs, TrainArgs
from model.training.trainer import Trainer
from model.transformer import Transformer
from model.weights import load_tokenizer, save_model, save_tokenizer

from .positions import SCALINGS, SCHEMES, build_scheme, scaled, with_more_positions
from .topic import losses_of

MULTIPLES = (1, 2, 4, 8)  # the lengths of the test, as multiples of the trained length
Line = dict[str, Any]  # of the results file


@dataclass(frozen=True)
class Budget:
    """What two runs must share to be comparable."""

    steps: int
    data: tuple[str, ...]
    vocab_size: int
    batch_size: int = 16
    length: int = 64  # trained length, in tokens
    dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    windows: int = 32  # of the validation text, each of 8 times the trained length


def prepare(budget: Budget, scratch: Path) -> None:
    """Write a tokenizer trained on the data, and the tokens of the data, into the directory ``scratch``."""
    documents = open_documents(budget.data)
    tokenizer = load_tokenizer(train_tokenizer(documents.texts(), scratch, "bpe", budget.vocab_size))
    tokenize(scratch, documents, tokenizer)
    dataset, longest = load_dataset(scratch), MULTIPLES[-1] * budget.length
    for name, tokens in (("text", dataset.train), ("validation text, its last tenth,", dataset.val)):
        if len(tokens) <= longest:
            raise ValueError(f"the {name} has {len(tokens)} tokens, {longest + 1} are needed: give more text")


def train_one(scheme: str, seed: int, budget: Budget, scratch: Path, directory: Path | None) -> list[Line]:
    """Train and test, and save the model in ``directory``; ``rope`` also returns the lines of its scalings."""
    tokenizer, dataset = load_tokenizer(scratch), load_dataset(scratch)
    args = ModelArgs(
        budget.dim, budget.n_layers, budget.n_heads, vocab_size=tokenizer.vocab_size, max_seq_len=budget.length
    )
    train = TrainArgs(batch_size=budget.batch_size, max_steps=budget.steps, seed=seed, device="cpu", dtype="float32")
    torch.manual_seed(seed)
    model = build_scheme(args, scheme)
    # Without a run directory, the trainer neither validates nor saves.
    Trainer(model, dataset, train).run()
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
        remove_unfinished(directory)
        save_tokenizer(tokenizer, directory)
        for name in (IDS, META):
            shutil.copyfile(scratch / name, directory / name)
        write_text(directory / CONFIG_FILE, toml_text(DataArgs(data=budget.data), args, train))
        save_model(model, directory)
    common = {
        "seed": seed,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "budget": asdict(budget),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    names = [scheme, *(SCALINGS if scheme == "rope" else ())]
    return [{"scheme": name, "bits_per_byte": test(model, name, dataset, budget)} | common for name in names]


@torch.no_grad()
def test(model: Transformer, scheme: str, dataset: Dataset, budget: Budget) -> dict[str, float | None]:
    """Bits per byte of the same validation tokens in windows of each length; None if the scheme cannot encode it."""
    longest = MULTIPLES[-1] * budget.length
    starts = longest * spread_numbers((len(dataset.val) - 1) // longest, budget.windows * longest, longest)
    inputs, targets = map(torch.from_numpy, dataset.val_windows(starts, longest))  # (windows, longest) each
    results: dict[str, float | None] = {}
    for times in MULTIPLES:
        results[str(times)] = None
        if times == 1 or SCHEMES[scheme].any_length:
            longer = scaled(model, scheme, times) if scheme in SCALINGS else with_more_positions(model, times)
            x, y = (part.reshape(-1, times * budget.length) for part in (inputs, targets))
            loss = losses_of(longer, x, y, rows=max(1, 4096 // x.shape[1])).mean().item()
            results[str(times)] = dataset.bits_per_byte(loss)
    return results
