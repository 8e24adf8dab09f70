"""The loss in chunks is that of all logits at once, with the same gradients, and never holds all of them."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from operators import count_operators
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training_helpers import ARGS

from model import ModelArgs, Transformer
from model.fast.loss import NextTokenLoss, _ChunkedLoss

LARGE = ModelArgs(dim=16, n_layers=1, n_heads=2, hidden_dim=24, vocab_size=9000, max_seq_len=128)
TIED = dataclasses.replace(LARGE, tie_embeddings=True)


class Scaled(Transformer):
    """A network with a forward of its own."""

    def forward(self, *args, **options):
        return super().forward(*args, **options).mul(0.5).tanh()


def batch(args: ModelArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of 10 rows, in which every third target does not count."""
    rows = torch.randint(args.vocab_size, (10, args.max_seq_len + 1))
    return rows[:, :-1], rows[:, 1:].masked_fill(torch.arange(args.max_seq_len) % 3 == 2, -100)


def model_of(args: ModelArgs, network: type[Transformer] = Transformer) -> Transformer:
    model = network(args)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.ndim == 2 else 1)
    return model


def gradients(model: Transformer, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("network", "args"),
    [
        (Transformer, ARGS),
        (Transformer, LARGE),
        (Transformer, TIED),
        (Scaled, ARGS),
        pytest.param(Scaled, TIED, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_those_of_all_logits_at_once(network, args, dtype):
    model = model_of(args, network)
    tokens, targets = batch(args)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = NextTokenLoss(model, dtype)(tokens, targets)
        logits = model(tokens).float().flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-5 if dtype == torch.float32 else 1e-4, atol=0)
    found, wanted = gradients(model, loss / 30), gradients(model, expected / 30)
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    for name, grad in wanted.items():
        error = (found[name] - grad).norm() / grad.norm()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2), name


@pytest.mark.parametrize("confidence", [0.0, 18.0])
def test_gradients_that_the_forward_pass_computes_neither_underflow_nor_overflow_in_float16(confidence):
    """Nothing is scaled before. Of a confident network, most probabilities are smaller than any float16."""
    rows, vocab_size = 30_000, 7
    h, weight = torch.full((rows, 1), 12.0), torch.zeros(vocab_size, 1)
    weight[3] = confidence / 12
    targets = torch.full((rows,), 3)
    grads = []
    for dtype in (torch.float32, torch.float16):
        inputs = [h.to(dtype).requires_grad_(), weight.clone().requires_grad_()]
        loss = _ChunkedLoss.apply(*inputs, targets, dtype)
        grads.append(torch.autograd.grad(loss * (1.0 if dtype == torch.float32 else 2.0**10), inputs))
    (h_exact, weight_exact), (h_grad, weight_grad) = grads
    torch.testing.assert_close(weight_grad / 2**10, weight_exact, rtol=0.04, atol=0)
    torch.testing.assert_close(h_grad.float() / 2**10, h_exact, rtol=0.04, atol=0)


@pytest.mark.parametrize("frozen", ["output", "tok_embeddings", "layers", "norm"])
def test_frozen_parameters_get_no_gradient_and_the_others_the_same(frozen):
    model, (tokens, targets) = model_of(ARGS), batch(ARGS)
    whole = gradients(model, NextTokenLoss(model)(tokens, targets))
    getattr(model, frozen).requires_grad_(False)
    found = gradients(model, NextTokenLoss(model)(tokens, targets))
    assert found.keys() == {name for name in whole if not name.startswith(frozen)}
    assert all(torch.equal(grad, whole[name]) for name, grad in found.items())


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))])
        return out


@pytest.mark.parametrize(
    ("device", "sequences", "megabytes"),
    [("cpu", 10, 18), ("meta", 120, 268)],  # the meta device stands for a GPU, to which each chunk costs launches
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_never_exist_at_once_but_in_chunks_of_a_size_for_the_device(
    dtype, training, device, sequences, megabytes
):
    model = model_of(LARGE).to(device)
    tokens, targets = (rows.repeat(sequences // 10, 1).to(device) for rows in batch(LARGE))
    with Largest() as largest, torch.set_grad_enabled(training):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = NextTokenLoss(model, dtype)(tokens, targets)
        if training:
            loss.backward()
    assert largest.numel < tokens.numel() * LARGE.vocab_size / 2
    assert 4 * largest.numel / 1e6 == pytest.approx(megabytes, rel=0.05)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_validation_computes_the_products_of_the_logits_and_no_gradient(monkeypatch, tied, dtype):
    """Under no_grad a parameter still requires gradients."""
    monkeypatch.setattr("model.fast.loss.chunk_rows", lambda vocab_size, device: 30)
    model = model_of(dataclasses.replace(ARGS, tie_embeddings=tied))
    loss, (tokens, targets) = NextTokenLoss(model, dtype), batch(ARGS)

    def products(function, *arguments) -> int:
        counts = count_operators(function, *arguments)
        return sum(counts[name] for name in ("mm", "addmm", "bmm", "mkldnn_linear", "linear"))

    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        assert products(loss, tokens, targets) - products(loss.body, tokens) == 3  # chunks of 80 targets
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        assert products(loss, tokens, targets) - products(loss.body, tokens) == 9
