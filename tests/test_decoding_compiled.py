"""The compiled step: one graph for every length. What is counted is the tracing; the machine code is not ours."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters

from model import generate

PROMPTS = [[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture
def graphs(monkeypatch):
    """How many graphs were compiled so far. The tracing is torch.compile's own, the code that runs is PyTorch's."""
    compile = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda step, dynamic, fullgraph, options: compile(step, dynamic=dynamic, fullgraph=fullgraph, backend="eager"),
    )
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def test_compiled_text_is_the_text_and_no_length_compiles_anew(small_model, graphs):
    model = small_model(n_layers=1)
    for prompt, n in [([1], 20), ([1, 2, 3], 5), ([4] * 9, 12)]:
        assert list(generate(model, [prompt], n, compile=True)) == list(generate(model, [prompt], n))
        assert graphs() == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("one_layer_from", [1, 10**9])
def test_a_context_that_becomes_full_compiles_nothing_anew(small_model, graphs, monkeypatch, one_layer_from):
    monkeypatch.setattr("model.decoding.compiled.ONE_LAYER_FROM", one_layer_from)
    model = small_model(n_layers=1)
    text = list(generate(model, [[1]], 3 * model.args.max_seq_len, endless=True))
    assert list(generate(model, [[1]], 3 * model.args.max_seq_len, endless=True, compile=True)) == text
    assert graphs() == (2 if one_layer_from == 1 else 1)


def test_a_batch_has_a_graph_of_its_own_and_padding_another(small_model, graphs):
    model = small_model(n_layers=1)
    for prompts in ([[1, 2]] * 3, [[5, 6, 7]] * 5):
        assert list(generate(model, prompts, 9, compile=True)) == list(generate(model, prompts, 9))
    assert graphs() == 1, "the batch size is a symbol, too"
    for prompts in (PROMPTS, PROMPTS[1:]):
        assert list(generate(model, prompts, 9, compile=True)) == list(generate(model, prompts, 9))
    assert graphs() == 2


def test_the_forward_follows_the_weights(small_model, graphs):
    model, other = small_model(n_layers=1), small_model(n_layers=1)
    for state, assign in ((model.state_dict(), False), (other.state_dict(), False), (other.state_dict(), True)):
        model.load_state_dict(copy.deepcopy(state), assign=assign)
        assert list(generate(model, [[1, 2]], 9, compile=True)) == list(generate(model, [[1, 2]], 9))
    assert graphs() == 1, "other numbers in the same network are no reason to compile"


def test_complex_numbers_do_not_reach_the_compiler(small_model, graphs, recwarn):
    list(generate(small_model(n_layers=1), [[1, 2]], 5, compile=True))
    assert not [warning for warning in recwarn if "complex" in str(warning.message)]


def test_of_a_large_network_one_layer_is_compiled_and_runs_for_all(small_model, graphs, monkeypatch):
    monkeypatch.setattr("model.decoding.compiled.ONE_LAYER_FROM", 1)
    model = small_model(n_layers=5)
    for prompts, n in [([[1]], 20), ([[4] * 9], 12), ([[1, 2, 3]], 5)]:
        assert list(generate(model, prompts, n, compile=True)) == list(generate(model, prompts, n))
        assert graphs() == 2, "a layer and the output matrix"
    for prompts in (PROMPTS, [[1, 2]] * 3):
        assert list(generate(model, prompts, 9, compile=True)) == list(generate(model, prompts, 9))
    assert not counters["graph_break"]


def test_without_a_compiler_it_says_so(small_model, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler"):
        generate(small_model(), [[1]], 2, compile=True)
