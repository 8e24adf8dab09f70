"""One seed, one thread, and one small network for every test that wants it."""

from collections.abc import Callable

import pytest
import torch

from model import ModelArgs, Transformer

# All sizes differ, so that a transposed or broadcast axis cannot fit by accident.
SMALL = {
    "dim": 48,
    "n_layers": 2,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 10,
    "hidden_dim": 64,
    "vocab_size": 37,
    "max_seq_len": 24,
}


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(1337)


@pytest.fixture
def small_args() -> Callable[..., ModelArgs]:
    """``small_args(n_kv_heads=3)``: the small architecture, with changes."""
    return lambda **changes: ModelArgs(**{**SMALL, **changes})


@pytest.fixture
def small_model(small_args: Callable[..., ModelArgs]) -> Callable[..., Transformer]:
    """``small_model(n_kv_heads=3)``: a network with weights wide enough that every fault shows in its logits."""

    def build(**changes) -> Transformer:
        model = Transformer(small_args(**changes))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=1.5 / weight.shape[1] ** 0.5)
        return model

    return build
