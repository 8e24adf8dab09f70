"""Every config in configs/ can be trained."""

from pathlib import Path

import pytest
import torch

from model import Transformer
from model.training.config import TrainArgs
from model.training.evaluation import cross_entropy
from model.training.optimizer import build_optimizers
from model.training.resolve import resolve
from train import find_config

pytestmark = pytest.mark.usefixtures("each_processor")
ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


def test_the_configs_named_in_the_documentation_exist():
    assert {path.stem for path in CONFIGS} >= {"demo", "shakespeare_char", "stories15M"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_builds_and_takes_a_step(config, tmp_path):
    plan = resolve(config, config, {"out_dir": tmp_path / "new"}, resume=False)
    model = Transformer(plan.model_args)
    optimizers = build_optimizers(model, plan.train)
    tokens = torch.randint(plan.model_args.vocab_size, (1, 17))  # (B, T + 1)
    before = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    before.backward()
    for optimizer in optimizers:
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    assert cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]) < before


def test_shakespeare_char_has_nanogpts_published_settings():
    plan = resolve(ROOT / "configs/shakespeare_char.toml", Path(), {}, resume=False)
    model, train = plan.model_args, plan.train
    assert (model.n_layers, model.n_heads, model.dim, model.max_seq_len) == (4, 4, 128, 64)
    assert (train.batch_size, train.max_steps) == (12, 2000)
    assert plan.data.tokenizer == "char"


def test_stories15m_has_llama2cs_published_architecture():
    model = resolve(ROOT / "configs/stories15M.toml", Path(), {}, resume=False).model_args
    assert (model.dim, model.n_layers, model.n_heads, model.max_seq_len, model.vocab_size) == (288, 6, 6, 256, 32000)
    assert sum(p.numel() for p in Transformer(model).parameters()) == 15_191_712  # as many as in its checkpoint


def test_the_default_config_trains_for_at_most_three_minutes():
    train: TrainArgs = resolve(None, ROOT / "configs/demo.toml", {}, resume=False).train
    assert train.minutes is not None
    assert train.minutes <= 3


def test_a_shipped_config_is_found_by_name_unless_a_file_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("demo.toml", "configs/demo.toml", "demo"):
        assert find_config(name) == ROOT / "configs" / "demo.toml"
    for name in ("elsewhere/demo.toml", "mine.toml"):
        with pytest.raises(ValueError, match=f"{name} does not exist: .*shakespeare_char.toml") as raised:
            find_config(name)
        assert str(ROOT / "configs") in str(raised.value)
    for name in ("demo", "demo.toml"):
        Path(name).write_text("dim = 32", encoding="utf-8")
    assert find_config("demo.toml") == Path("demo.toml")
    assert find_config("demo") is None, "a file that does not end in .toml is text"
