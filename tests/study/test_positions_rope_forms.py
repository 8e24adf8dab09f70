"""Every form is LLaMA's rotation with another order of the channels and another table of angles."""

import pytest
import torch

from model.rope import apply_rotary_emb, precompute_freqs_cis
from study.positions.rope_forms import (
    chatglm_family,
    chatglm_ids,
    plain_forms,
)

T, D = 13, 16
FORMS = [*plain_forms(D, T), *chatglm_family(D, T)]
NAMES = [form.name for form in FORMS]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, T, 3, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_form_equals_its_float64_rotation(form, x):
    error = (form.rotate(x).double() - form.in_float64(x)).abs().max()
    if form.name == "complex, float16 angles":
        assert 5e-4 < error < 0.1, "float16 angles are inexact"
    else:
        assert error < 1e-5


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_reordered_channels_are_rotated_as_in_llama(form, x):
    order = form.pairs.flatten()
    assert sorted(order.tolist()) == list(range(D))
    table = torch.polar(torch.ones_like(form.angles), form.angles).to(torch.complex64)
    llama, _ = apply_rotary_emb(x[..., order], x[..., order], table)
    torch.testing.assert_close(form.in_float64(x)[..., order].float(), llama, atol=1e-5, rtol=0)


def test_the_plain_forms_have_llamas_angles():
    for form in plain_forms(D, T):
        table = torch.polar(torch.ones_like(form.angles), form.angles).to(torch.complex64)
        torch.testing.assert_close(table, precompute_freqs_cis(D, T), atol=1e-6, rtol=0)


def test_chatglm_ids_are_those_of_its_authors():
    first, second = chatglm_ids(9, 5).tolist()
    assert first == [0, 1, 2, 3, 4, 4, 4, 4, 4], "generated tokens have the position of the mask"
    assert second == [0, 0, 0, 0, 0, 1, 2, 3, 4]


def test_each_chatglm_id_rotates_one_half_of_the_head(x):
    form = next(form for form in FORMS if form.name == "ChatGLM-6B")
    mask = 3  # 13 positions, of which the first quarter, 4, are prompt
    rotated = form.rotate(x)
    torch.testing.assert_close(rotated[:, : mask + 1, :, D // 2 :], x[:, : mask + 1, :, D // 2 :])
    repeated = x[:, mask : mask + 1].expand(-1, T - mask, -1, -1)  # the same token at the mask and everywhere after it
    first, second = form.rotate(torch.cat((x[:, :mask], repeated), 1))[:, mask:].chunk(2, -1)
    torch.testing.assert_close(first, first[:, :1].expand_as(first))
    assert not torch.allclose(second[:, 1:], second[:, :1].expand_as(second[:, 1:]))


def test_chatglm2_does_not_rotate_the_second_half(x):
    form = next(form for form in FORMS if form.name == "ChatGLM2")
    assert torch.equal(form.rotate(x)[..., D // 2 :], x[..., D // 2 :])


def test_the_plain_forms_need_only_an_even_head_dim():
    assert len(list(plain_forms(6, 5))) == 6
    with pytest.raises(ValueError, match="head_dim is 6: half of the head must hold whole pairs"):
        list(chatglm_family(6, 5))
