"""Every reader of files: a damaged file is either read or refused with a ValueError that has a message."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from damage import broken_bytes, broken_json
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_files import save_meta
from script_helpers import save_run
from training_helpers import trainer

from model import ModelArgs
from model.cli import read_toml
from model.text.dataset import load_dataset
from model.text.sources import open_documents
from model.text.tokenize import tokenize
from model.training.config import SETTINGS_CLASSES
from model.training.metrics import read_metrics
from model.training.run_directory import load_state
from model.weights import llama2c, load_tokenizer, meta, open_checkpoint, save_model, save_tokenizer
from model.weights.tensors import load_tensors
from study.positions import build_scheme
from study.topic import open_scheme

ARGS = ModelArgs(dim=32, n_layers=1, n_heads=2, hidden_dim=96, vocab_size=300, max_seq_len=16, tie_embeddings=True)
TEXT = "The quick brown fox jumps over the lazy dog, and says: I am a fox. " * 20


def read_checkpoint(path: Path) -> None:
    """Read everything that generate.py reads."""
    checkpoint = open_checkpoint(path)
    tokenizer = checkpoint.tokenizer()
    tokenizer.decode(tokenizer.encode("The 🦜"))
    checkpoint.model()(torch.tensor([[1, 2, 3]]))


def read_meta(path: Path) -> None:
    meta.open_directory(path).model()


def read_pickled(path: Path) -> None:
    open_checkpoint(path, pickles=True).model()


def read_llama2c(path: Path) -> None:
    llama2c.open_file(path / "model.bin").model()


def read_run(path: Path) -> None:
    """Read everything that train.py --resume reads."""
    load_dataset(path)
    read_metrics(path / "metrics.jsonl")
    read_toml(path / "config.toml", *SETTINGS_CLASSES)
    resumed = trainer(path, resume=True)
    load_state(path, resumed.model, resumed.optimizers)


READERS = {
    "hf": (read_checkpoint, ["config.json", "generation_config.json", "model.safetensors", "tokenizer.model"]),
    "json": (read_checkpoint, ["tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"]),
    "meta": (read_meta, ["params.json", "consolidated.00.pth"]),
    "pickled": (read_pickled, ["pytorch_model.bin.index.json", "weights.bin"]),
    "llama2c": (read_llama2c, ["model.bin"]),
    "run": (read_run, ["training_state.safetensors", "metrics.jsonl", "config.toml", "tokens.bin", "tokens.json"]),
    "study": (open_scheme, ["config.json", "model.safetensors"]),
}
CASES = [(place, file, broken_bytes()) for place, (_, files) in READERS.items() for file in files]
CASES += [(*case, broken_json()) for *case, _ in CASES if case[1].endswith((".json", ".safetensors"))]


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A directory with an undamaged model or file of every format."""
    base = tmp_path_factory.mktemp("sound")
    hf, other, by_meta, study = (base / name for name in ("hf", "json", "meta", "study"))
    model = save_run(hf, TEXT, scale=1, **asdict(ARGS))
    tokenizer = load_tokenizer(hf)
    shutil.copytree(hf, other)
    (other / "tokenizer.model").unlink()
    (other / "model.safetensors").rename(other / "weights.safetensors")
    index = {"weight_map": dict.fromkeys(load_tensors(other / "weights.safetensors"), "weights.safetensors")}
    (other / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    save_meta(model, by_meta)
    pickled = base / "pickled"
    pickled.mkdir()
    shutil.copy(hf / "config.json", pickled)
    weights = load_tensors(hf / "model.safetensors")
    torch.save(weights, pickled / "weights.bin")
    index = {"weight_map": dict.fromkeys(weights, "weights.bin")}
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    (base / "llama2c").mkdir()
    llama2c.save(model, base / "llama2c" / "model.bin")
    (base / "run").mkdir()
    trainer(base / "run", eval_every=2, max_steps=4).run()
    (base / "text.txt").write_text(TEXT, encoding="utf-8")
    tokenize(base / "run", open_documents([base / "text.txt"]), tokenizer)
    (base / "run" / "config.toml").write_text('max_steps = 4\nlr = 0.01\ndata = ["a"]\n', encoding="utf-8")
    save_model(build_scheme(ARGS, "t5"), study)
    save_tokenizer(tokenizer, study)
    return base


@pytest.mark.parametrize("place", READERS)
def test_undamaged_files_of_every_format_are_read(sound, place):
    READERS[place][0](sound / place)


@pytest.mark.parametrize(("place", "file", "damages"), CASES)
@given(data=st.data())
@settings(max_examples=3)
def test_a_damaged_file_is_read_or_refused(sound, place, file, damages, data):
    read_damaged(sound, place, file, data.draw(damages))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "file", "damages"), CASES)
@given(data=st.data())
def test_of_many_damages_each_is_read_or_refused(sound, place, file, damages, data):
    read_damaged(sound, place, file, data.draw(damages))


def read_damaged(sound: Path, place: str, file: str, damage: Callable[[bytes], bytes]) -> None:
    path = sound / place / file
    original = path.read_bytes()
    path.unlink()  # the damaged file is a new one, because the old one may still be memory-mapped
    path.write_bytes(damage(original))
    message = "read"
    try:
        READERS[place][0](sound / place)
    except ValueError as error:
        message = str(error)
    finally:
        path.unlink()
        path.write_bytes(original)
    assert message.strip()
