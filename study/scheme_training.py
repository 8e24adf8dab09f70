"""Train one model with one position encoding, and test it at longer lengths. The library's ``Trainer`` trains it."""

import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from model.cache import KVCache
from model.cli import toml_text
from model.cli.files import remove_unfinished, write_text
from model.cli.machine import check_memory
from model.config import ModelArgs
from model.text.dataset import Dataset
from model.text.prepare import IDS, META, load_dataset, tokenize
from model.text.sources import open_documents
from model.text.tokenizer import Tokenizer
from model.text.train_tokenizer import train_tokenizer
from model.training import estimate
from model.training.config import CONFIG_FILE, DataArgs, TrainArgs
from model.training.distributed import Ranks
from model.training.evaluation import bits_per_byte
from model.training.trainer import Trainer
from model.transformer import Transformer
from model.weights import load_tokenizer, save_model, save_tokenizer

from .positions import SCALINGS, SCHEMES, build_scheme, scaled, with_more_positions
from .positions.encodings import LearnableRope
from .topic import losses_of

MULTIPLES = (1, 2, 4, 8)  # the lengths of the test, as multiples of the trained length
Line = dict[str, Any]  # of the results file


@dataclass(frozen=True)
class Budget:
    """The options of ``compare`` that two runs must share to be comparable."""

    steps: int
    batch_size: int
    length: int
    dim: int
    n_layers: int
    n_heads: int
    vocab_size: int
    data: tuple[str, ...]
    windows: int


class StudyText(NamedTuple):
    args: ModelArgs
    dataset: Dataset
    tokenizer: Tokenizer
    scratch: TemporaryDirectory[str]  # the files of tokenizer and tokens, for the directory of each model


def prepare_for_schemes(budget: Budget, schemes: Iterable[str]) -> StudyText:
    """Train a tokenizer on the data and tokenize the data.

    Raises ValueError, before anything is computed, if a scheme does not support these sizes.
    """
    longest = MULTIPLES[-1] * budget.length
    sizes = {name: getattr(budget, name) for name in ("dim", "n_layers", "n_heads", "vocab_size")}
    args = ModelArgs(**sizes, max_seq_len=budget.length)
    check_memory(4 * 8 * budget.n_heads * longest**2, f"length {budget.length}, tested up to {longest} tokens,")
    estimate.check_training_memory(args, training(budget, 0), Ranks())
    for scheme in (*schemes, *SCALINGS):
        build_scheme(args, scheme, factor=MULTIPLES[-1])
    documents = open_documents(budget.data)
    scratch = TemporaryDirectory()
    directory = Path(scratch.name)
    tokenizer = load_tokenizer(train_tokenizer(documents.texts(), directory, "bpe", budget.vocab_size))
    tokenize(directory, documents, tokenizer)
    mapped = load_dataset(directory)
    dataset = replace(mapped, train=np.array(mapped.train), val=np.array(mapped.val))
    del mapped  # Windows cannot remove a file that is memory-mapped
    if len(dataset.train) <= longest:
        raise ValueError(f"the text has {len(dataset.train)} tokens, {longest + 1} are needed: give more text")
    if len(dataset.val) <= longest:
        raise ValueError(f"the validation text has {len(dataset.val)} tokens, {longest + 1} are needed: give more text")
    return StudyText(replace(args, vocab_size=tokenizer.vocab_size), dataset, tokenizer, scratch)


def training(budget: Budget, seed: int) -> TrainArgs:
    return TrainArgs(batch_size=budget.batch_size, max_steps=budget.steps, seed=seed, device="cpu", dtype="float32")


def train_one(scheme: str, seed: int, text: StudyText, budget: Budget, directory: Path | None) -> list[Line]:
    """Train and test, and save the model in ``directory``; ``rope`` also returns the lines of its scalings."""
    train = training(budget, seed)
    torch.manual_seed(seed)
    model = build_scheme(text.args, scheme)
    # Without a run directory, the trainer neither validates nor saves.
    progress = Trainer(model, text.dataset, train, clock=time.process_time).run()
    if directory:
        remove_unfinished(directory)
        save_tokenizer(text.tokenizer, directory)
        for name in (IDS, META):
            shutil.copyfile(Path(text.scratch.name) / name, directory / name)
        write_text(directory / CONFIG_FILE, toml_text(DataArgs(data=budget.data), text.args, train))
        save_model(model, directory)
    cache = KVCache(text.args)
    cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    common = {
        "seed": seed,
        "tokens_per_second": round(progress.tokens / progress.train_seconds),
        "cache_bytes_per_token": cache_bytes // text.args.max_seq_len,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "budget": asdict(budget),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if isinstance(model, LearnableRope):
        initial = LearnableRope(text.args).frequencies.detach()  # (D/2,)
        common["moved"] = float(((model.frequencies.detach() - initial).abs() / initial).median())
    names = [scheme, *(SCALINGS if scheme == "rope" else ())]
    return [{"scheme": name, "bits_per_byte": test(model, name, text, budget)} | common for name in names]


@torch.no_grad()
def test(model: Transformer, scheme: str, text: StudyText, budget: Budget) -> dict[str, float | None]:
    """Bits per byte of the same validation tokens in windows of each length; None if the scheme cannot encode it."""
    longest = MULTIPLES[-1] * budget.length
    batches = text.dataset.val_batches(budget.windows, longest, budget.windows * longest)
    inputs, targets = (torch.from_numpy(part) for part in next(iter(batches)))  # (windows, longest) each
    results: dict[str, float | None] = {}
    for times in MULTIPLES:
        results[str(times)] = None
        if times == 1 or SCHEMES[scheme].any_length:
            longer = scaled(model, scheme, times) if scheme in SCALINGS else with_more_positions(model, times)
            x, y = (part.reshape(-1, times * budget.length) for part in (inputs, targets))
            loss = losses_of(longer, x, y, rows=max(1, 4096 // x.shape[1])).mean().item()
            results[str(times)] = bits_per_byte(loss, text.dataset)
    return results
