"""No product is given NaN or infinity, and prompts of every length have the right logits."""

import pytest
import torch
from conftest import PROCESSORS
from finite import FiniteInputs
from torch.nn import functional as F

from model import KVCache, ModelArgs, Transformer, generate
from model.cli import machine
from model.fast import kernels
from model.text.dataset import Dataset
from model.training.config import TrainArgs
from model.training.trainer import Trainer
from model.weights import load_model, save_model

PROMPTS = [[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10, 3, 4, 5], [2, 2]]


OTHERS = {"amx", "avx512", "apple"}  # whose kernels are a mixture of those of the other processors


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in OTHERS)) for name in PROCESSORS])
def processor(request, monkeypatch):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[request.param])
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)


@pytest.fixture(params=[(torch.float32, False), (torch.bfloat16, False), (torch.float32, True), (torch.bfloat16, True)])
def model(request, small_model, processor, tmp_path):
    dtype, int8 = request.param
    save_model(small_model(dim=64, hidden_dim=96), tmp_path)
    return load_model(tmp_path, dtype=dtype, int8=int8)


def test_the_guard_finds_non_finite_inputs():
    bad = torch.full((1, 1, 3, 3), torch.nan)
    for operation in (torch.matmul, F.linear, lambda x, _: F.scaled_dot_product_attention(x, x, x)):
        with pytest.raises(AssertionError, match="NaN or infinity"), FiniteInputs():
            operation(bad, bad[0, 0])


@pytest.mark.parametrize(
    ("prompts", "new", "options"),
    [
        (PROMPTS, 5, {}),
        (PROMPTS, 5, {"temperature": 1.0, "top_p": 0.9}),
        (PROMPTS[2:3], 40, {"endless": True}),
    ],
)
def test_generating_from_unequal_prompts_in_chunks_and_endlessly(model, monkeypatch, prompts, new, options):
    monkeypatch.setattr(KVCache, "chunk", 5)
    with FiniteInputs() as guard:
        list(generate(model, prompts, new, **options))
    assert guard.seen > 100


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_and_validation(small_args, processor, tmp_path, dtype):
    tokens = torch.randint(37, (2000,)).numpy().astype("uint16")
    dataset = Dataset(tokens[:1500], tokens[1500:], 500, 499)
    args = TrainArgs(batch_size=2, max_steps=2, eval_every=1, dtype=dtype, dropout=0.1)
    (tmp_path / "run").mkdir()
    with FiniteInputs() as guard:
        Trainer(Transformer(small_args()), dataset, args, tmp_path / "run").run()
    assert guard.seen > 100


@pytest.mark.parametrize("processor", ["native"], indirect=True)  # because its attention is made of products
@pytest.mark.parametrize(("n_kv_heads", "head_dim", "int8", "every"), [
    (1, 128, False, 7), (2, 32, False, 7), (4, 64, False, 7), (8, 16, False, 7), (2, 32, True, 7), (4, 64, True, 7),
    pytest.param(2, 32, False, 1, marks=pytest.mark.slow),
])  # fmt: skip
@torch.no_grad()
def test_every_prompt_length_is_right_where_products_read_past_the_end_of_a_row(
    processor, monkeypatch, tmp_path, n_kv_heads, head_dim, int8, every
):
    """The hidden state after a prompt of each length, in 16 bits with finite inputs only, against float32.

    If ``every`` is 7, a seventh of the lengths is tested, another one for each ``n_kv_heads``.
    """
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 128)
    args = ModelArgs(
        dim=8 * head_dim, n_layers=1, n_heads=8, n_kv_heads=n_kv_heads, hidden_dim=96, vocab_size=50, max_seq_len=720
    )
    model = Transformer(args).bfloat16()
    save_model(model, tmp_path)
    network, exact = load_model(tmp_path, dtype=torch.bfloat16, int8=int8), model.float()
    network.output = exact.output = torch.nn.Identity()
    text = torch.randint(args.vocab_size, (1, 690))
    expected = exact(text)
    spread = expected.std()
    for length in [*range(1 + n_kv_heads % every, 141, every), 255, 513, 690]:
        with FiniteInputs():
            h = network(text[:, :length], 0, KVCache(args, max_seq_len=length))
        assert (h[:, -1].float() - expected[:, length - 1]).abs().max() < 0.2 * spread, length
