"""Every form is LLaMA's rotation with another order of the channels and another table of angles."""

import pytest
import torch

from model.rope import apply_rotary_emb, precompute_freqs_cis
from study.positions.rope_forms import chatglm_family, chatglm_ids, plain_forms

T, D, PROMPT = 13, 16, 4
PLAIN, CHATGLM = list(plain_forms(D, T)), list(chatglm_family(D, T, PROMPT))


@pytest.mark.parametrize("form", PLAIN + CHATGLM, ids=lambda form: form.name)
def test_form_is_llamas_rotation_of_reordered_channels(form):
    x = torch.randn(2, T, 3, D)
    order = form.pairs.flatten()
    assert sorted(order.tolist()) == list(range(D))
    table = torch.polar(torch.ones_like(form.angles), form.angles).to(torch.complex64)
    if form in PLAIN:
        torch.testing.assert_close(table, precompute_freqs_cis(D, T), atol=1e-6, rtol=0)
    llama, _ = apply_rotary_emb(x[..., order], x[..., order], table)
    torch.testing.assert_close(form.in_float64(x)[..., order].float(), llama, atol=1e-5, rtol=0)
    error = (form.rotate(x).double() - form.in_float64(x)).abs().max()
    if form.name == "complex, float16 angles":
        assert 5e-4 < error < 0.1, "float16 angles are inexact"
    else:
        assert error < 1e-5


def test_in_chatglm_generated_tokens_have_the_position_of_the_mask_and_count_in_the_second_id():
    assert chatglm_ids(9, 5).tolist() == [[0, 1, 2, 3, 4, 4, 4, 4, 4], [0, 0, 0, 0, 0, 1, 2, 3, 4]]
