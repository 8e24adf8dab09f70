"""Train one model with one position encoding, and test it at longer lengths. The library's ``Trainer`` trains it."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cache import KVCache
from model.cli import toml_text
from model.cli.files import write_text
from model.cli.machine import check_memory
from model.config import ModelArgs
from model.text.dataset import Dataset
from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.token_cache import cache_home
from model.text.tokenizer import Tokenizer
from model.text.train_tokenizer import cached_tokenizer
from model.training import estimate
from model.training.config import CONFIG_FILE, DataArgs, TrainArgs
from model.training.evaluation import bits_per_byte
from model.training.run_directory import locked
from model.training.trainer import Trainer
from model.transformer import Transformer
from model.weights import load_tokenizer, save_tokenizer

from .positions import (
    SCALINGS,
    SCHEMES,
    STUDY_FILE,
    STUDY_WEIGHTS,
    StudySettings,
    build_scheme,
    build_study,
    save_study,
)
from .positions.encodings import LearnableRope


@dataclass(frozen=True)
class Compare:
    """The same small model with each position encoding, several seeds, tested at 1, 2, 4 and 8 times its length."""

    schemes: Annotated[tuple[str, ...], "position encodings (default: all)"] = ()
    seeds: Annotated[int, "runs of each"] = 3
    results: Annotated[
        Path | None,
        "file with a JSON line for each finished run; finished runs are not repeated (default: "
        "benchmarks/compare.jsonl in the repository, compare.jsonl if installed)",
    ] = None
    steps: Annotated[int, "optimizer steps"] = 600
    batch_size: Annotated[int, "sequences a step"] = 16
    length: Annotated[int, "trained length, in tokens"] = 64
    dim: Annotated[int, "width of the model"] = 64
    n_layers: Annotated[int, "blocks of the model"] = 2
    n_heads: Annotated[int, "heads of each block"] = 4
    vocab_size: Annotated[int, "tokens of the BPE tokenizer trained on the data"] = 512
    data: Annotated[tuple[str, ...], "text; its last tenth is the validation text"] = ("python-docs",)
    windows: Annotated[int, "validation windows, each of 8 times the trained length"] = 32
    keep: Annotated[
        Path | None,
        "save the trained models in this directory, for the topics that take a model; missing ones are trained again",
    ] = None
    dry: Annotated[bool, "train nothing, only show the finished runs that have these settings"] = False


MULTIPLES = (1, 2, 4, 8)  # the lengths of the test, as multiples of the trained length
Line = dict[str, Any]  # of the results file
NOT_BUDGET = ("schemes", "seeds", "results", "keep", "dry")


def budget(options: Compare) -> Line:
    """The options that two runs must share to be comparable: all except NOT_BUDGET."""
    return {name: value for name, value in asdict(options).items() if name not in NOT_BUDGET}


class StudyText(NamedTuple):
    args: ModelArgs
    dataset: Dataset
    tokenizer: Tokenizer


def prepare_for_schemes(options: Compare, schemes: Iterable[str]) -> StudyText:
    """Train a tokenizer on the data and tokenize the data, or take both from the cache.

    Raises ValueError, before anything is computed, if a scheme does not support these sizes.
    """
    longest = MULTIPLES[-1] * options.length
    args = ModelArgs(
        dim=options.dim,
        n_layers=options.n_layers,
        n_heads=options.n_heads,
        vocab_size=options.vocab_size,
        max_seq_len=options.length,
    )
    check_memory(4 * 8 * options.n_heads * longest**2, f"length {options.length}, tested up to {longest} tokens,")
    estimate.check_training_memory(args, training(options, 0), torch.device("cpu"))
    for scheme in schemes:
        for name in (scheme, *(SCALINGS if scheme == "rope" else ())):
            lengthened(build_scheme(args, scheme), name, MULTIPLES[-1] if SCHEMES[name].any_length else 1)
    documents = open_documents(options.data)
    tokenizer = load_tokenizer(cached_tokenizer(documents, cache_home(), "bpe", options.vocab_size))
    args = replace(args, vocab_size=tokenizer.vocab_size)
    dataset = prepare(documents, tokenizer, context=longest, cache_dir=cache_home())
    documents.check_unchanged()  # since the tokenizer was trained on them
    if len(dataset.val) <= longest:
        raise ValueError(f"the validation text has {len(dataset.val)} tokens, {longest + 1} are needed: give more text")
    return StudyText(args, dataset, tokenizer)


def training(options: Compare, seed: int) -> TrainArgs:
    return TrainArgs(batch_size=options.batch_size, max_steps=options.steps, seed=seed, device="cpu", dtype="float32")


def train_one(scheme: str, seed: int, text: StudyText, options: Compare) -> list[Line]:
    """Train and test; ``rope`` also returns the lines of its scalings, whose training is the same."""
    train = training(options, seed)
    torch.manual_seed(seed)
    model = build_scheme(text.args, scheme)
    initial = model.frequencies.detach().clone() if isinstance(model, LearnableRope) else None
    # Without a run directory, the trainer neither validates nor saves.
    progress = Trainer(model, text.dataset, train, clock=time.process_time).run()
    if options.keep:
        directory = model_directory(options, scheme, seed)
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory, (STUDY_WEIGHTS, STUDY_FILE)):  # also removes temporary files left by a killed process
            save_tokenizer(text.tokenizer, directory)
            write_text(directory / CONFIG_FILE, toml_text(DataArgs(data=options.data), text.args, train))
            save_study(model, scheme, directory)
    cache = KVCache(text.args)
    cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    common = {
        "seed": seed,
        "tokens_per_second": round(progress.tokens / progress.train_seconds),
        "cache_bytes_per_token": cache_bytes // text.args.max_seq_len,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "budget": budget(options),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if initial is not None:
        change = (model.get_parameter("frequencies").detach() - initial).abs() / initial  # (D/2,)
        common["moved"] = float(change.median())
    names = [scheme, *(SCALINGS if scheme == "rope" else ())]
    return [{"scheme": name, "bits_per_byte": test(model, name, text, options)} | common for name in names]


def model_directory(options: Compare, scheme: str, seed: int) -> Path:
    """The directory for one trained model below ``options.keep``."""
    assert options.keep is not None
    return options.keep / f"{scheme}-{seed}"


@torch.no_grad()
def test(model: Transformer, scheme: str, text: StudyText, options: Compare) -> dict[str, float | None]:
    """Bits per byte of the same validation tokens in windows of each length; None if the scheme cannot encode it."""
    longest = MULTIPLES[-1] * options.length
    batches = text.dataset.val_batches(options.windows, longest, options.windows * longest)
    inputs, targets = (torch.from_numpy(part) for part in next(iter(batches)))  # (windows, longest) each
    results: dict[str, float | None] = {}
    for times in MULTIPLES:
        results[str(times)] = None
        if times == 1 or SCHEMES[scheme].any_length:
            longer = lengthened(model, scheme, times)
            x, y = (part.reshape(-1, times * options.length) for part in (inputs, targets))
            loss = mean_loss(longer, x, y)
            results[str(times)] = bits_per_byte(loss, text.dataset)
    return results


def lengthened(model: Transformer, scheme: str, times: int) -> Transformer:
    """A trained model with ``times`` as many positions; the scalings use a model trained with RoPE."""
    if scheme in SCALINGS:
        return scaled(model, scheme, times)
    return with_more_positions(model, StudySettings(scheme, {}, model.args), times)


def with_more_positions(model: Transformer, settings: StudySettings, times: int) -> Transformer:
    """The same weights and position encoding, which ``settings`` describe, with ``times`` as many positions.

    Raises ValueError if the scheme does not support that length.
    """
    return with_weights_of(model, build_study(settings, times * settings.args.max_seq_len))


def scaled(model: Transformer, scaling: str, times: int) -> Transformer:
    """A network with the same weights and ``times`` as many positions, with RoPE scaled to that length."""
    args = replace(model.args, max_seq_len=times * model.args.max_seq_len)
    return with_weights_of(model, build_scheme(args, scaling, factor=float(times)))


def with_weights_of(model: Transformer, longer: Transformer) -> Transformer:
    longer.load_state_dict(model.state_dict())
    return longer.eval()


def mean_loss(model: Transformer, inputs: Tensor, targets: Tensor, tokens: int = 4096) -> float:
    """Mean nats per token of (N, T) windows, in batches of about ``tokens`` tokens."""
    rows = max(1, tokens // inputs.shape[1])
    total = sum(
        F.cross_entropy(model(x).float().flatten(0, 1), y.flatten(), reduction="sum").item()
        for x, y in zip(inputs.split(rows), targets.split(rows))
    )
    return total / targets.numel()
