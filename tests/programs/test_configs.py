"""Every config in configs/ can be trained."""

from pathlib import Path

import pytest
import torch

from model import Transformer
from model.fast.loss import NextTokenLoss
from model.training.distributed import Ranks
from model.training.estimate import count_parameters
from model.training.optimizer import build_optimizers
from model.training.run import Run, resolve
from train import sort_arguments

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


def resolved(config: Path, **flags) -> Run:
    return resolve(config, flags, resume=False, ranks=Ranks())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_builds_and_takes_a_step(config, tmp_path):
    run = resolved(config, out_dir=tmp_path / "new")
    model = Transformer(run.model)
    optimizers = build_optimizers(model, run.train)
    tokens = torch.randint(run.model.vocab_size, (1, 17))  # (B, T + 1)
    before = NextTokenLoss(model)(tokens[:, :-1], tokens[:, 1:])
    before.backward()
    for optimizer in optimizers:
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    assert NextTokenLoss(model)(tokens[:, :-1], tokens[:, 1:]) < before


def test_stories15m_has_the_size_of_its_checkpoint_and_the_demo_is_the_same_for_everyone():
    model = resolved(ROOT / "configs/stories15M.toml").model
    assert (model.n_heads, model.max_seq_len, count_parameters(model).total) == (6, 256, 15_191_712)
    demo = resolved(ROOT / "configs/demo.toml")
    assert not demo.needs_choice
    assert {"dim", "n_layers", "n_heads", "max_seq_len", "batch_size", "max_steps"} <= demo.decided


def test_a_shipped_config_is_found_by_name_unless_a_file_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sort_arguments(["demo.toml"], {}) == (ROOT / "configs" / "demo.toml", {})
    for name in ("mine.toml", "mine/demo.toml"):
        with pytest.raises(ValueError, match=rf"{name} does not exist: .*shakespeare_char.toml"):
            sort_arguments([name], {})
    Path("demo.toml").write_text("dim = 32", encoding="utf-8")
    assert sort_arguments(["demo.toml", "demo"], {}) == (Path("demo.toml"), {"data": ("demo",)})
