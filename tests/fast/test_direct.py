"""The direct step on a CPU: the logits of the network, bit for bit, without calls of modules."""

import copy

import pytest
import torch
from conftest import PROCESSORS
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from model import KVCache, Transformer, generate
from model.cli import machine
from model.fast import direct
from model.fast.direct import TOKENS_BEFORE_COPY, pack, same_with_any_threads
from model.fast.step import for_decoding
from model.generation import padding_mask
from model.weights import load_model, save_model

PACKS = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.fixture
def eager(monkeypatch):
    """``eager(model)``: the decoding network without a fast step."""

    def call(model):
        with monkeypatch.context() as patch:
            patch.setattr("model.fast.step.reason_against", lambda network: "a test")
            return for_decoding(model)

    return call


@pytest.fixture
def packed(monkeypatch):
    """The weights that are copied into another order, in turn."""
    weights = []
    monkeypatch.setattr(direct, "pack", lambda weight: weights.append(weight) or pack(weight))
    return weights


@torch.no_grad()
def logits_of(network, tokens, padding=None):
    """(B, T) -> the logits after each token but the first two, which are a prompt."""
    B, T = tokens.shape
    cache, found = KVCache(network.args, B), []
    for start, end in [(0, 2), *((at, at + 1) for at in range(2, T))]:
        mask = padding_mask(padding, start, end - start)
        found.append(network(tokens[:, start:end], start, cache, mask))
    return torch.cat(found[1:], 1)


CHANGES = [{}, {"n_kv_heads": 6, "qkv_bias": True}, {"qk_norm": True, "n_kv_heads": 1}, {"tie_embeddings": True}]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_logits_are_those_of_the_network_to_the_last_bit(small_model, monkeypatch, eager, processor, dtype):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[processor])
    for changes in CHANGES:
        model = small_model(**changes).to(dtype)
        for weight in model.parameters():
            if weight.ndim == 1:
                nn.init.normal_(weight, 1, 0.3)
        tokens = torch.randint(37, (3, 24))
        for rows, padding in ((tokens[:1], None), (tokens, None), (tokens, torch.tensor([0, 1, 2]))):
            expected = logits_of(eager(model), rows, padding)
            assert torch.equal(logits_of(for_decoding(model), rows, padding), expected), changes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_threads_give_the_logits_of_the_network_with_two_threads(small_model, monkeypatch, eager, dtype):
    monkeypatch.setattr(machine, "CPU", PROCESSORS["native"])
    model, tokens = small_model(dim=256, hidden_dim=1024, vocab_size=3000).to(dtype), torch.randint(3000, (1, 24))
    torch.set_num_threads(2)
    try:
        assert torch.equal(logits_of(for_decoding(model), tokens), logits_of(eager(model), tokens))
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 5}, {"n_kv_heads": 1, "qkv_bias": True}])
def test_the_number_of_threads_changes_no_bit_where_it_may_be_changed(
    small_model, monkeypatch, tmp_path, changes, dtype, int8
):
    """On this machine's own processor, with products and keys that several threads divide among them."""
    monkeypatch.setattr(machine, "CPU", machine.this_processor())
    sizes = {"dim": 320, "n_heads": 10, "hidden_dim": 1376, "vocab_size": 3000, "max_seq_len": 700, "n_layers": 2}
    save_model(small_model(**sizes, **changes), tmp_path)
    network = for_decoding(load_model(tmp_path, dtype=dtype, int8=int8))
    for rows, prompt in ((1, 3), (1, 600), (3, 9)):
        cache, tokens, logits = KVCache(network.args, rows), torch.randint(3000, (rows, prompt)), {}
        network(tokens, 0, cache)
        if not same_with_any_threads(network, rows):
            continue
        for threads in (1, 1, 2, 3, 8):
            with machine.threads(threads), torch.no_grad():
                steps = range(prompt, prompt + TOKENS_BEFORE_COPY + 2)
                logits[threads] = torch.cat([network(tokens[:, :1], at, cache) for at in steps])
        assert all(torch.equal(each, logits[1]) for each in logits.values()), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", CHANGES)
def test_int8_weights_give_the_logits_of_the_network(small_model, tmp_path, eager, dtype, changes):
    save_model(small_model(dim=64, hidden_dim=160, **changes), tmp_path)
    model, tokens = load_model(tmp_path, dtype=dtype, int8=True), torch.randint(37, (3, 24))
    assert torch.equal(logits_of(for_decoding(model), tokens[:1]), logits_of(eager(model), tokens[:1]))
    assert torch.equal(logits_of(for_decoding(model), tokens), logits_of(eager(model), tokens))


def test_a_token_calls_no_module_but_the_network(small_model):
    network, called = for_decoding(small_model(qk_norm=True)), []
    handle = register_module_forward_hook(lambda module, *_: called.append(type(module)))
    try:
        steps = generate(network, [[1, 2]], 9)
        next(steps)
        assert len(called) > 20, "the prompt is computed by modules"
        called.clear()
        assert len(list(steps)) == 8
    finally:
        handle.remove()
    assert called == 8 * [Transformer]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_a_weight_that_is_changed_in_place_takes_effect_at_the_next_token(
    small_model, each_processor, eager, dtype, tie_embeddings
):
    texts = []
    for make in (for_decoding, eager):
        torch.manual_seed(0)
        model = small_model(tie_embeddings=tie_embeddings, max_seq_len=64).to(dtype)
        network, text = make(model), []
        for number, token in enumerate(generate(network, [[1, 2]], 60)):
            text.append(token)
            if number in (5, 6, 20, 40):  # before the weights are copied, and after
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.add_(torch.randn(weight.shape).to(dtype), alpha=0.5)
        texts.append(text)
    assert texts[0] == texts[1]


def changed_by_data(model):
    for weight in model.parameters():
        weight.data.mul_(torch.randn(weight.shape).to(weight.dtype))


def swapped_by_data(model):
    """The same numbers in other places."""
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.data.copy_(weight.data.flip(0))


def replaced(model):
    model.load_state_dict(
        {name: 2 * torch.randn_like(weight) for name, weight in model.state_dict().items()}, assign=True
    )


def moved(model):
    changed_by_data(model.double())
    model.to(torch.bfloat16)


def hooked(model):
    model.layers[0].feed_forward.w2.register_forward_hook(lambda module, args, out: -out)


@pytest.mark.parametrize("change", [changed_by_data, swapped_by_data, replaced, moved, hooked])
@pytest.mark.parametrize("prompt", [[1], [1, 2]])
def test_other_changes_take_effect_at_the_next_text(small_model, each_processor, eager, change, prompt):
    model = small_model().to(torch.bfloat16)
    network = for_decoding(model)
    before = list(generate(network, [prompt], 20))
    change(model)
    assert list(generate(network, [prompt], 20)) == list(generate(eager(model), [prompt], 20)) != before


@pytest.mark.parametrize("processor", PROCESSORS)
def test_only_bfloat16_on_processors_that_gain_by_it_is_copied_and_once(small_model, monkeypatch, packed, processor):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[processor])
    for dtype in (torch.float32, torch.bfloat16):
        model = small_model(tie_embeddings=True).to(dtype)
        network = for_decoding(model)
        list(generate(network, [[1, 2]], TOKENS_BEFORE_COPY))
        assert not packed, "short texts do not wait for copies"
        for _ in range(2):
            list(generate(network, [[1, 2]], 20))
            packs = PACKS and processor == "native" and dtype == torch.bfloat16
            assert len(packed) == packs * 15, "seven matrices a layer, and the output"
        packed.clear()


@pytest.mark.skipif(not PACKS, reason="this processor has no product with a copy")
@pytest.mark.parametrize("missing", [0, 1])
def test_no_weights_are_copied_unless_as_much_memory_stays_free(small_model, monkeypatch, packed, missing):
    model = small_model().to(torch.bfloat16)
    size = sum(weight.nbytes for weight in model.parameters() if weight.ndim == 2)
    monkeypatch.setattr(machine, "CPU", PROCESSORS["native"])
    monkeypatch.setattr(machine, "free_memory", lambda device: 2 * size - missing)
    list(generate(model, [[1, 2]], 20))
    assert bool(packed) is not bool(missing)


class Halved(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


CHANGED = {
    "another layer of PyTorch's": lambda model: setattr(model.layers[0], "feed_forward", nn.Linear(48, 48)),
    "another norm of PyTorch's": lambda model: setattr(model.layers[1], "ffn_norm", nn.LayerNorm(48)),
    "no layer": lambda model: setattr(model.layers[0].feed_forward, "w1", nn.Identity()),
    "a layer of one's own": lambda model: setattr(model.layers[0].feed_forward, "w2", Halved(64, 48)),
    "a parametrized layer": lambda model: nn.utils.parametrize.register_parametrization(
        model.layers[0].attention.wq, "weight", nn.Tanh()
    ),
    "a parametrized embedding": lambda model: nn.utils.parametrize.register_parametrization(
        model.tok_embeddings, "weight", nn.Tanh()
    ),
    "a forward set from outside": lambda model: setattr(
        model.layers[0].feed_forward, "forward", lambda x: torch.roll(x, 1, -1)
    ),
    "a forward of the network set from outside": lambda model: setattr(
        model, "forward", lambda *args, **kwargs: Transformer.forward(model, *args, **kwargs).roll(1, -1)
    ),
    "one layer twice": lambda model: setattr(model, "layers", nn.ModuleList([model.layers[0], model.layers[0]])),
    "no layers": lambda model: setattr(model, "layers", nn.ModuleList()),
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_a_network_with_other_parts_gives_its_own_logits(small_model, what, tie_embeddings):
    model = small_model(tie_embeddings=tie_embeddings).eval()
    plain = logits_of(copy.deepcopy(model), tokens := torch.randint(37, (1, 12)))
    if what == "no layer":
        model.layers[0].feed_forward.w3 = nn.Identity()
        model.layers[0].feed_forward.w2 = nn.Identity()
    CHANGED[what](model)
    expected = logits_of(model, tokens)
    assert not torch.equal(expected, plain)
    torch.testing.assert_close(logits_of(for_decoding(model), tokens), expected, rtol=1e-4, atol=1e-4)


def test_two_texts_at_once_do_not_disturb_each_other(small_model, each_processor):
    model = small_model().to(torch.bfloat16)
    network = for_decoding(model)
    expected = [list(generate(model, prompt, 9)) for prompt in ([[1, 2]], [[3, 4, 5], [6]])]
    pair = [generate(network, prompt, 9) for prompt in ([[1, 2]], [[3, 4, 5], [6]])]
    found = list(zip(*pair, strict=True))
    assert [list(text) for text in zip(*found)] == expected


def test_logits_may_be_changed_and_differentiated_through(small_model):
    """They are no tensors of inference mode, which refuse both."""
    network = for_decoding(small_model())
    cache = KVCache(network.args)
    network(torch.tensor([[1, 2]]), 0, cache)
    logits = network(torch.tensor([[3]]), 2, cache)
    logits[..., 5] = -torch.inf
    scale = torch.ones(1, requires_grad=True)
    (logits[..., :5] * scale).sum().backward()
    assert scale.grad is not None
