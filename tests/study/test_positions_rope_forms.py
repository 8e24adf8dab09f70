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


def test_chatglm_rotates_the_second_half_by_the_second_id_and_chatglm2_not_at_all():
    first, second = chatglm_ids(9, 5).tolist()
    assert first == [0, 1, 2, 3, 4, 4, 4, 4, 4], "generated tokens have the position of the mask"
    assert second == [0, 0, 0, 0, 0, 1, 2, 3, 4]
    x = torch.randn(2, T, 3, D)
    with_ids, without = (form.rotate(x)[..., D // 2 :] for form in CHATGLM)
    assert torch.equal(without, x[..., D // 2 :])
    assert torch.equal(with_ids[:, :PROMPT], x[:, :PROMPT, :, D // 2 :])
    assert not torch.allclose(with_ids[:, PROMPT:], x[:, PROMPT:, :, D // 2 :], atol=0.1)
