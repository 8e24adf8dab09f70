"""The decoding network: the same weights and logits, and the caller's model is not changed."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from model import KVCache, generate
from model.decoding.network import for_decoding

PROMPTS = [[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture
def graphs(monkeypatch):
    """A function that counts the compiled graphs. torch.compile traces as usual, but the graphs run eagerly."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step, options, **rest: compile(step, backend="eager", **rest))
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.mark.parametrize("compile", [False, True])
def test_it_shares_the_modules_and_gives_equal_hidden_states_and_logits(small_model, graphs, compile):
    model = small_model(n_layers=3).train()
    network, caches = for_decoding(model, compile), [KVCache(model.args, 2) for _ in range(2)]
    assert [*network.parameters()] == [*model.parameters()]
    start_pos = 0
    with torch.no_grad():
        for chunk in torch.randint(model.args.vocab_size, (2, 9)).split((4, 2, 1, 1, 1), dim=1):
            h = network.hidden(chunk, start_pos, caches[1])
            torch.testing.assert_close(h, model.hidden(chunk, start_pos, caches[0]), atol=1e-5, rtol=1e-5)
            logits = network(chunk, start_pos, caches[1])
            torch.testing.assert_close(logits, model(chunk, start_pos, caches[0]), atol=1e-5, rtol=1e-5)
            start_pos += chunk.shape[1]
    assert model.training


@pytest.mark.parametrize("place", ["layers.1", "layers.1.feed_forward.w2", "norm"])
def test_a_hook_sees_the_outputs_of_all_tokens(small_model, place):
    model, lengths = small_model(), []
    model.get_submodule(place).register_forward_hook(lambda module, inputs, out: lengths.append(out.shape[1]))
    list(generate(model, [[1, 2, 3, 4]], 3))
    assert lengths == [4, 1, 1]


def test_hooks_and_replaced_layers_of_the_model_are_used(small_model):
    model = small_model()
    plain = list(generate(model, [[1]], 6))
    calls = []
    handle = model.layers[0].attention.wq.register_forward_hook(lambda *_: calls.append(1))
    assert list(generate(model, [[1]], 6)) == plain
    assert len(calls) == 6
    handle.remove()

    class Negated(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    negated = Negated(model.args.dim, model.args.vocab_size, bias=False)
    negated.weight = model.output.weight
    model.output = negated
    assert list(generate(model, [[1]], 6)) == list(generate(model, [[1]], 6, use_cache=False)) != plain


def test_a_patched_rotation_is_used_in_every_block(small_model, monkeypatch):
    model, prompt = small_model(n_layers=1), [[1, 5, 9, 2, 7, 3]]
    plain = list(generate(model, prompt, 12))
    monkeypatch.setattr("model.attention.apply_rotary_emb", lambda xq, xk, freqs_cis: (xq, -2 * xk))
    assert list(generate(model, prompt, 12)) == list(generate(model, prompt, 12, use_cache=False)) != plain


def test_weights_changed_between_two_tokens_affect_the_next_one(small_model):
    model = small_model()
    steps = generate(model, [[1]], 3)
    next(steps)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.weight[5] = 1000 * model.norm.weight
        model.norm.weight.zero_()
    assert next(steps) == [0], "all logits are zero"


def test_compiled_text_equals_eager_text_and_no_length_recompiles(small_model, graphs):
    model = small_model(n_layers=1)
    for prompt, n in [([1], 20), ([1, 2, 3], 5), ([4] * 9, 12)]:
        assert list(generate(model, [prompt], n, compile=True)) == list(generate(model, [prompt], n))
        assert graphs() == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("by_layer", [True, False])
def test_a_context_that_becomes_full_does_not_recompile(small_model, graphs, monkeypatch, by_layer):
    monkeypatch.setattr("model.decoding.network.LAYER_WEIGHTS_TO_COMPILE_BY_LAYER", 1 if by_layer else 10**9)
    model = small_model(n_layers=1)
    text = list(generate(model, [[1]], 3 * model.args.max_seq_len, endless=True))
    assert list(generate(model, [[1]], 3 * model.args.max_seq_len, endless=True, compile=True)) == text
    assert graphs() == (2 if by_layer else 1)


def test_the_batch_size_does_not_recompile_but_padding_does(small_model, graphs):
    model = small_model(n_layers=1)
    for prompts in ([[1, 2]] * 3, [[5, 6, 7]] * 5):
        assert list(generate(model, prompts, 9, compile=True)) == list(generate(model, prompts, 9))
    assert graphs() == 1, "the batch size is symbolic"
    for prompts in (PROMPTS, PROMPTS[1:]):
        assert list(generate(model, prompts, 9, compile=True)) == list(generate(model, prompts, 9))
    assert graphs() == 2


def test_compiled_code_uses_the_current_weights(small_model, graphs):
    model, other = small_model(n_layers=1), small_model(n_layers=1)
    for state, assign in ((model.state_dict(), False), (other.state_dict(), False), (other.state_dict(), True)):
        model.load_state_dict(copy.deepcopy(state), assign=assign)
        assert list(generate(model, [[1, 2]], 9, compile=True)) == list(generate(model, [[1, 2]], 9))
    assert graphs() == 1, "other weights of the same shape do not recompile"


def test_in_bfloat16_no_length_recompiles_on_any_processor(small_model, graphs, each_processor):
    model = small_model(n_layers=1).bfloat16()
    for n in (5, 21):
        assert list(generate(model, [[1, 2, 3]], n, compile=True)) == list(generate(model, [[1, 2, 3]], n))
        assert graphs() == 1


def test_complex_numbers_do_not_reach_the_compiler(small_model, graphs, recwarn):
    list(generate(small_model(n_layers=1), [[1, 2]], 5, compile=True))
    assert not [warning for warning in recwarn if "complex" in str(warning.message)]


def test_of_a_large_network_one_layer_is_compiled_for_all(small_model, graphs, monkeypatch):
    monkeypatch.setattr("model.decoding.network.LAYER_WEIGHTS_TO_COMPILE_BY_LAYER", 1)
    model = small_model(n_layers=2)
    for prompts, n in [([[1]], 20), ([[4] * 9], 12), ([[1, 2, 3]], 5)]:
        assert list(generate(model, prompts, n, compile=True)) == list(generate(model, prompts, n))
        assert graphs() == 2, "a layer and the output matrix"
    for prompts, count in ((PROMPTS, 4), ([[1, 2]] * 3, 5)):
        assert list(generate(model, prompts, 9, compile=True)) == list(generate(model, prompts, 9))
        assert graphs() == count, "padding needs both again; the batch size needs the output matrix again"
    assert not counters["graph_break"]


def test_compile_without_a_compiler_is_an_error(small_model, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler"):
        generate(small_model(), [[1]], 2, compile=True)


def test_more_architectures_than_the_recompile_limit_compile_in_one_process(small_model, graphs):
    """torch.compile's default limit of recompilations is 8 for all architectures and dtypes together."""
    for n_heads in (1, 2, 3):
        for hidden_dim in (8, 16, 24):
            model = small_model(n_layers=1, n_heads=n_heads, n_kv_heads=1, hidden_dim=hidden_dim)
            model = model.bfloat16() if hidden_dim == 16 else model
            assert list(generate(model, [[1, 2]], 2, compile=True)) == list(generate(model, [[1, 2]], 2))
    assert graphs() == 9


def test_two_threads_generate_the_same_texts_as_one_after_the_other(small_model):
    models = [small_model(n_layers=1).bfloat16() for _ in range(2)]

    def text(number):
        return list(generate(models[number], [[1, 2 + number]], 20, temperature=1.0, seed=number))

    alone = [text(0), text(1)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            assert list(pool.map(text, (0, 1))) == alone
