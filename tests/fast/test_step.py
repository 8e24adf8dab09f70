"""The decoding network: the same weights and logits, and the caller's model is not changed."""

from contextlib import nullcontext

import pytest
import torch
from cards import OnCard
from conftest import PROCESSORS
from greedy import greedy
from letters import LETTERS
from torch import nn

from model import Transformer, generate
from model.attention import Attention, attention
from model.cli import machine
from model.decoding.batches import Speed
from model.decoding.conversation import Conversation
from model.decoding.sampling import Sampling
from model.fast import recorded
from model.fast.direct import DirectStep
from model.fast.step import for_decoding


@pytest.mark.parametrize("changed", ["forward", "layer", "attention", "attend", "rotation"])
def test_what_a_user_changed_is_computed_for_the_prompt_and_for_every_token(small_model, monkeypatch, changed):
    class Shifted(Transformer):
        def forward(self, tokens, start_pos=0, cache=None, mask=None):
            return super().forward((tokens + 1) % 37, start_pos, cache, mask).roll(3, -1)

    class Negated(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    class Backwards(Attention):
        def attend(self, xq, keys, values, mask):
            return attention(xq, keys, values, mask).flip(1)

    original, prompt = small_model(), [1, 5, 9, 2, 7, 3]
    model = (Shifted if changed == "forward" else Transformer)(original.args)
    model.load_state_dict(original.state_dict())
    if changed == "layer":
        model.output = Negated(model.args.dim, model.args.vocab_size, bias=False)
        model.output.weight = original.output.weight
    if changed == "attention":
        model.layers[1].attention = Backwards(model.args)
        model.layers[1].attention.load_state_dict(original.layers[1].attention.state_dict())
    if changed == "attend":
        model.layers[0].attention.attend = lambda q, k, v, mask: torch.zeros_like(q)
    if changed == "rotation":
        monkeypatch.setattr("model.attention.apply_rotary_emb", lambda xq, xk, freqs_cis: (xq, -2 * xk))
    text = [[token] for token in greedy(model, prompt, 12)]
    assert list(generate(model, [prompt], 12)) == text
    monkeypatch.undo()
    assert text != list(generate(original, [prompt], 12))


@pytest.fixture
def replays(monkeypatch):
    """A list that grows with each replay of a recording, which here runs the step again."""
    replays = []

    def record(step, device):
        out = step()
        return lambda: replays.append(out.copy_(step())), out

    monkeypatch.setattr(recorded, "capture", record)
    return replays


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.2, "seed": 1}])
def test_a_card_records_the_step_of_a_text_without_being_asked_and_gives_the_text_of_the_cpu(
    small_model, replays, options
):
    model = small_model()
    texts = [list(generate(model, [[1, 5, 7], [2, 3, 4]], 9, **options))]
    assert not replays
    with OnCard():
        texts.append(list(generate(model, [[1, 5, 7], [2, 3, 4]], 9, **options)))
    assert len(replays) == 8  # the prompt gives the first token
    assert texts[0] == texts[1]


def test_a_card_has_begun_the_next_step_when_a_token_is_read_and_texts_end_as_on_a_cpu(small_model, replays):
    model, found = small_model(), []
    whole = list(generate(model, [[1, 5, 7], [2, 3, 4]], 9))
    eos_ids = whole[3]  # both rows have ended after the fourth token
    for device in (nullcontext(), OnCard()):
        with device:
            logprobs: list[list[float]] = []
            begun = []
            text = []
            for tokens in generate(model, [[1, 5, 7], [2, 3, 4]], 9, eos_ids=eos_ids, logprobs=logprobs):
                text.append(tokens)
                begun.append(len(replays))
        found.append((text, logprobs))
    assert begun == [0, 2, 3, 4], "the first token does not wait for the recording"
    assert device.waits == 4
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(torch.tensor(found[0][1]), torch.tensor(found[1][1]))


def test_turns_of_a_conversation_on_a_card_are_those_on_a_cpu(small_model, replays):
    """Also after the one step too many of a turn that ends at a stop string, which may evict tokens."""
    model = small_model(vocab_size=LETTERS.vocab_size)

    def turns() -> list[str]:
        talk = Conversation(for_decoding(model), LETTERS, Sampling(0.8, seed=1), Speed(), context=16)
        texts = []
        for number in range(6):
            *_, sample = talk.turn("abc"[number % 3], 7, list("abcdefghijklm"))
            texts.append(f"{sample.text} {sample.finish}")
        return texts

    expected = turns()
    assert {text.split()[-1] for text in expected} == {"stop", "length"}, expected
    with OnCard():
        assert turns() == expected
    assert replays


def test_logits_that_are_not_finite_end_a_text_on_a_card(small_model, replays):
    model = small_model()
    with OnCard():
        steps = generate(model, [[1, 5, 7]], 9)
        next(steps)
        with torch.no_grad():
            model.norm.weight.fill_(float("nan"))
        with pytest.raises(ValueError, match="the logits contain NaN or infinity"):
            next(steps)


@pytest.fixture
def looks(monkeypatch):
    """``looks(free)``: from now on so many cores are free. ``looks.threads`` are the threads of the tokens so far."""

    def look(free):
        monkeypatch.setattr(machine, "free_cores", lambda: free)

    def count(step, *inputs):
        look.threads.append(torch.get_num_threads())
        return call(step, *inputs)

    look.threads, call = [], DirectStep.__call__
    monkeypatch.setattr(DirectStep, "__call__", count)
    monkeypatch.setattr(machine, "CPU", PROCESSORS["emulated"])
    monkeypatch.delenv("OMP_NUM_THREADS")
    with machine.threads(4):
        yield look


def test_a_token_takes_no_more_threads_than_there_are_free_cores(small_model, looks):
    model, texts = small_model(), []
    for free, expected in ((8, 4), (3, 3), (1, 1), (4, 4)):
        looks(free)
        looks.threads.clear()
        texts.append(list(generate(model, [[1, 2]], 6, temperature=1.0, seed=0)))
        assert looks.threads == 5 * [expected]
        assert torch.get_num_threads() == 4
    assert texts[1:] == texts[:-1]


def test_free_cores_are_looked_for_again_in_a_long_text(small_model, monkeypatch, looks):
    times = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(times) * 0.4)
    looks(2)
    for number, _ in enumerate(generate(small_model(), [[1, 2]], 12)):
        if number == 4:
            looks(1)
    assert looks.threads[:4] == 4 * [2]
    assert looks.threads[-4:] == 4 * [1]


@pytest.mark.parametrize("reason", ["OMP_NUM_THREADS", "AMX", "float64"])
def test_the_number_of_threads_is_kept_where_the_user_chose_it_or_logits_may_depend_on_it(
    small_model, monkeypatch, looks, reason
):
    model = small_model()
    if reason == "OMP_NUM_THREADS":
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
    elif reason == "AMX":
        monkeypatch.setattr(machine, "CPU", PROCESSORS["amx"])
    else:
        model = model.double()
    looks(1)
    list(generate(model, [[1, 2]], 6))
    assert looks.threads == 5 * [4]
