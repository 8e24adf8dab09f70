"""Products that are merged give the same results and gradients, and are merged only where nobody notices."""

import copy

import pytest
import torch
from operators import count_operators
from torch import nn

from model import Transformer
from model.attention import Attention
from model.fast.loss import NextTokenLoss
from model.fast.merged import MergedAttention, MergedFeedForward, merge_products
from model.fast.recorded import RecordedStep
from model.fast.step import for_decoding
from model.weights import load_model, save_model

MERGED = (MergedAttention, MergedFeedForward)


def merged_names(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if isinstance(module, MERGED)]


def batch(model: Transformer) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(model.args.vocab_size, (3, 8))
    return tokens[:, :-1], tokens[:, 1:]


def randomize(model: Transformer) -> Transformer:
    """Norms and biases have other numbers than 1 and 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"qkv_bias": True}, {"qk_norm": True}, {"n_kv_heads": 1}])
def test_the_loss_and_the_gradient_of_each_parameter_are_the_same(small_model, options, dtype):
    model = randomize(small_model(**options)).train()
    tokens, targets = batch(model)
    found = []
    for merge in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = NextTokenLoss(model, dtype, merge)(tokens, targets)
        loss.backward()
        found.append((loss, {name: p.grad for name, p in model.named_parameters()}))
    (loss, grads), (merged_loss, merged_grads) = found
    torch.testing.assert_close(merged_loss, loss, rtol=1e-5 if dtype == torch.float32 else 1e-3, atol=0)
    for name, grad in grads.items():
        error = (merged_grads[name] - grad).norm() / grad.norm()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2), name


@pytest.mark.parametrize(("merge", "products"), [(False, 21), (True, 12)])
def test_a_layer_of_a_training_step_has_12_products(small_model, merge, products):
    tokens = torch.ones(2, 7, dtype=torch.long, device="meta")

    def step(loss: nn.Module) -> None:
        loss(tokens, tokens).backward()

    losses = [NextTokenLoss(small_model(n_layers=n_layers).to("meta"), merge=merge) for n_layers in (2, 3)]
    two, three = (count_operators(step, loss)["mm"] for loss in losses)
    assert three - two == products


def test_the_parameters_keep_their_names_and_hooks_of_a_module_run(small_model):
    model, seen = small_model(), []
    model.layers[0].attention.register_forward_hook(lambda *_: seen.append("attention"))
    loss = NextTokenLoss(model, merge=True)
    loss(*batch(model))
    assert seen == ["attention"]
    assert len(merged_names(loss.network)) == 4
    assert [*loss.network.state_dict()] == [*model.state_dict()]
    assert dict(model.named_parameters()).keys() == {
        name.removeprefix("network.") for name, _ in loss.named_parameters()
    }


class Adapted(nn.Linear):
    """As libraries that adapt a network replace its layers."""


def watch(layer: nn.Module) -> None:
    layer.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: watch(model.layers[0].attention.wk),
        lambda model: model.layers[0].attention.wv.register_forward_pre_hook(lambda *_: None),
        lambda model: model.layers[0].attention.wv.register_full_backward_hook(lambda *_: None),
        lambda model: setattr(model.layers[0].attention, "wq", Adapted(48, 48, bias=False)),
        lambda model: setattr(model.layers[0].attention, "wq", nn.Linear(48, 48)),
        lambda model: setattr(model.layers[0].attention.wq, "forward", lambda x: x),
        lambda model: nn.utils.parametrizations.weight_norm(model.layers[0].attention.wq),
    ],
    ids=["hook", "pre-hook", "backward hook", "adapter", "a bias of one", "own forward", "parametrization"],
)
def test_layers_that_are_not_plain_are_not_merged(small_model, change):
    model = small_model()
    change(model)
    assert merged_names(merge_products(model)) == [
        "layers.0.feed_forward",
        "layers.1.attention",
        "layers.1.feed_forward",
    ]


def test_attention_of_a_subclass_is_not_merged(small_model):
    class Other(Attention):
        pass

    model = small_model()
    model.layers[1].attention = Other(model.args)
    assert "layers.1.attention" not in merged_names(merge_products(model))


def memory(model: nn.Module) -> int:
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_matrices_are_concatenated_once_for_decoding_without_more_memory(small_model, tmp_path, qkv_bias):
    model = randomize(small_model(qkv_bias=qkv_bias))
    before, size = copy.deepcopy(model.state_dict()), memory(model)
    first = RecordedStep(for_decoding(model)).network
    addresses = [p.data_ptr() for p in model.parameters()]
    second = RecordedStep(for_decoding(model)).network
    assert [p.data_ptr() for p in model.parameters()] == addresses, "a recording of the first one may be in use"
    assert memory(model) == size
    model.layers[1].attention.wk.weight.data.mul_(2)
    before["layers.1.attention.wk.weight"].mul_(2)
    if qkv_bias:
        model.layers[0].attention.wv.bias.data.add_(1)
        before["layers.0.attention.wv.bias"].add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    other = Transformer(model.args)
    other.load_state_dict(before)
    tokens = torch.tensor([[1, 2, 3]])
    for network in (first, second):
        assert len(merged_names(network)) == 4
        torch.testing.assert_close(network(tokens), other.eval()(tokens)[:, -1:])
    save_model(model, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in load_model(tmp_path).state_dict().items())


def test_a_network_that_decoded_in_inference_mode_can_be_trained(small_model):
    model = small_model().train()
    with torch.inference_mode():
        RecordedStep(for_decoding(model))
    NextTokenLoss(model)(*batch(model)).backward()
    with torch.no_grad():
        model.layers[0].attention.wq.weight.sub_(model.layers[0].attention.wq.weight.grad)
