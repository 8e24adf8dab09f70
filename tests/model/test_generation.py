"""The decode loop: each row equals its prompt alone, the cache changes only the time, and the model is not changed."""

import itertools

import pytest
import torch

from model import KVCache, generate

PROMPTS = [[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10], [2, 2]]


@pytest.fixture
def model(small_model):
    return small_model().eval()


def rows(steps):
    return [list(row) for row in itertools.zip_longest(*steps)]


def test_with_the_cache_nothing_is_computed_twice_or_in_vain(model, monkeypatch):
    """Each token once, in chunks, logits of their last position only, and no forward after the last token."""
    expected = rows(generate(model, PROMPTS, 6))
    monkeypatch.setattr(KVCache, "chunk", 3)
    widths, positions = [], []
    model.tok_embeddings.register_forward_hook(lambda _, inputs, out: widths.append(out.shape[1]))
    model.output.register_forward_hook(lambda _, inputs, out: positions.append(out[..., 0].numel()))
    assert rows(generate(model, PROMPTS, 6)) == expected
    assert widths == [3, 3, 2, 1, 1, 1, 1, 1]
    assert positions == [4] * 8


def test_the_same_seed_gives_the_same_text(model):
    def text(seed, prompts=PROMPTS):
        return rows(generate(model, prompts, 12, temperature=1.0, seed=seed))

    assert text(3) == text(3) != text(4)
    assert text(None) != text(None)
    assert text(3, PROMPTS[:1])[0] == text(3)[0], "a row draws the same alone and in a batch"


def test_equal_prompts_draw_tokens_by_the_models_distribution(model):
    n = 4000
    first = torch.tensor(next(generate(model, [[1, 2]] * n, 1, temperature=1.0, seed=5)))
    probs = model(torch.tensor([[1, 2]]))[0, -1].softmax(-1)
    assert (first.bincount(minlength=len(probs)) / n - probs).abs().max() < 4 * (0.25 / n) ** 0.5


def test_a_row_ends_with_its_end_token_and_the_other_rows_go_on(model):
    plain = rows(generate(model, PROMPTS, 12))
    end = plain[0][4]
    assert plain[0].index(end) == 4
    found = rows(generate(model, PROMPTS, 12, eos_ids=[end]))
    for row, full in zip(found, plain):
        cut = full.index(end) + 1 if end in full else len(full)
        assert row[:cut] == full[:cut]
        assert set(row[cut:]) <= {None}
    assert list(generate(model, PROMPTS[:1], 12, eos_ids=[end])) == [[token] for token in plain[0][:5]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"endless": True}, {"temperature": 1.0, "seed": 1}])
def test_logits_that_are_not_finite_are_an_error_at_the_step_where_they_appear(model, value, step, options):
    fault = torch.zeros(37).index_fill(0, torch.tensor([5]), value)  # one logit
    faults = itertools.chain([0.0] * step, [fault], itertools.repeat(0.0))
    model.output.register_forward_hook(lambda module, inputs, out: out + next(faults))
    steps = generate(model, [[1, 2]], 6, **options)
    for _ in range(step):
        next(steps)
    with pytest.raises(ValueError, match="NaN or infinity"):
        next(steps)


def test_decoding_is_in_eval_mode_without_a_graph_and_leaves_model_and_autograd_as_they_were(model):
    model.train()
    modes = []
    model.norm.register_forward_hook(lambda module, _, out: modes.append((module.training, out.requires_grad)))
    steps = generate(model, PROMPTS, 5)
    next(steps)
    assert model.training
    assert torch.is_grad_enabled(), "also between two steps"
    next(steps)
    steps.close()
    for _ in range(2):
        model(torch.tensor([[1, 2, 3]])).logsumexp(-1).sum().backward()
    assert modes == [(False, False)] * 2 + [(True, True)] * 2
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_text_may_fill_the_context_but_not_exceed_it(model):
    limit = model.args.max_seq_len
    assert len(list(generate(model, [[1] * 4], limit - 4))) == limit - 4
    with pytest.raises(ValueError, match=f"prompt 2 has 4 tokens, and with {limit - 3} new .* of {limit} "):
        generate(model, [[1], [1] * 4], limit - 3)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "prompts or one of them are empty"),
        (["Once", "upon"], {}, "prompts are .*: give a list of token ids"),
        (torch.tensor([[1, 2]]), {}, "prompts are .*: give a list of token ids"),
        ([[1], []], {}, "prompts or one of them are empty"),
        ([[1, 37]], {}, "token 37: the network's vocabulary is 0 to 36; check the tokenizer"),
        ([[-1]], {}, "token -1"),
        ([[1], [1, 2]], {"endless": True}, "prompts of unequal length, 1 to 2 tokens, cannot share a batch"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens is 0: give at least 1"),
        ([[1]], {"seed": "a"}, "seed is 'a': give a whole number"),
        ([[1]], {"top_k": 1.5}, "top_k is 1.5: give a whole number"),
    ],
)
def test_invalid_arguments_are_an_error_at_the_call(model, prompts, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        generate(model, prompts, **{"max_new_tokens": 2, **options})
    assert "\n" not in str(raised.value)
