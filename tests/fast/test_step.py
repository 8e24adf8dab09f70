"""The decoding network: the same weights and logits, and the caller's model is not changed."""

import pytest
import torch
from cards import OnCard
from greedy import greedy
from torch import nn

from model import Transformer, generate
from model.attention import Attention, attention
from model.fast import recorded


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


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.2, "seed": 1}])
def test_a_card_records_the_step_of_a_text_without_being_asked_and_gives_the_text_of_the_cpu(
    small_model, monkeypatch, options
):
    model, replays = small_model(), []

    def record(step, device):
        out = step()
        return lambda: replays.append(out.copy_(step())), out

    monkeypatch.setattr(recorded, "capture", record)
    texts = [list(generate(model, [[1, 5, 7], [2, 3, 4]], 9, **options))]
    assert not replays
    with OnCard():
        texts.append(list(generate(model, [[1, 5, 7], [2, 3, 4]], 9, **options)))
    assert len(replays) == 8  # the prompt gives the first token
    assert texts[0] == texts[1]
