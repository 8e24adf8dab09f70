"""Every form is LLaMA's rotation on reordered channels with a table of its own."""

import cmath

import pytest
import torch

from model.positions.rope_forms import (
    block_ids,
    chatglm_ids,
    chatglm_learnable,
    every_rope_form,
    exact_angles,
    plain_forms,
)
from model.rope import apply_rotary_emb, precompute_freqs_cis

T, D = 13, 16
EVERY = list(every_rope_form(D, T, blocks=3))
NAMES = [form.name for form in EVERY]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, T, 3, D, generator=torch.Generator().manual_seed(1))


def test_the_angles_are_right():
    angles = exact_angles(8, torch.tensor([0, 3, 2000]), 500.0)
    for row, p in enumerate((0, 3, 2000)):
        for i in range(4):
            assert angles[row, i] == pytest.approx(p * 500.0 ** (-2 * i / 8), rel=1e-14)
    assert torch.polar(torch.ones(4), angles[1].float())[1] == pytest.approx(cmath.rect(1, 3 * 500**-0.25), abs=1e-6)


@pytest.mark.parametrize("form", EVERY, ids=NAMES)
def test_form_equals_its_float64_rotation(form, x):
    off = (form.rotate(x).double() - form.exact(x)).abs().max()
    in_half = form.name in ("ChatGLM-6B, half", "complex, float16 angles")
    assert off < (0.1 if in_half else 1e-5)
    assert not in_half or off > 5e-4  # the flaw of half-precision angles is shown, not mended


@pytest.mark.parametrize("form", EVERY, ids=NAMES)
def test_permutation_maps_it_to_llama(form, x):
    order = form.pairs.flatten()
    assert sorted(order.tolist()) == list(range(D))
    table = torch.polar(torch.ones_like(form.angles), form.angles).to(torch.complex64)
    llama, _ = apply_rotary_emb(x[..., order], x[..., order], table)
    torch.testing.assert_close(form.exact(x)[..., order].float(), llama, atol=1e-5, rtol=0)


def test_the_one_dimensional_forms_have_llamas_angles(x):
    for form in plain_forms(D, T):
        table = torch.polar(torch.ones_like(form.angles), form.angles).to(torch.complex64)
        torch.testing.assert_close(table, precompute_freqs_cis(D, T), atol=1e-6, rtol=0)


def test_chatglms_ids_are_those_of_its_authors():
    first, second = chatglm_ids(9, 5).tolist()
    assert first == [0, 1, 2, 3, 4, 4, 4, 4, 4], "what is generated keeps the position of the mask"
    assert second == [0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert block_ids(9, 4).tolist() == [[*range(9)], [0, 1, 2, 0, 1, 2, 0, 1, 2]]


def test_chatglm_ids_reach_their_own_half(x):
    form = next(form for form in EVERY if form.name == "ChatGLM-6B")
    mask = 4  # 13 positions, of which the first third, 5, are prompt
    rotated = form.rotate(x)
    torch.testing.assert_close(rotated[:, : mask + 1, :, D // 2 :], x[:, : mask + 1, :, D // 2 :])
    again = x[:, mask : mask + 1].expand(-1, T - mask, -1, -1)  # one token at the mask and at every place after it
    halves = form.rotate(torch.cat((x[:, :mask], again), 1))[:, mask:].chunk(2, -1)
    torch.testing.assert_close(halves[0], halves[0][:, :1].expand_as(halves[0]))
    assert not torch.allclose(halves[1][:, 1:], halves[1][:, :1].expand_as(halves[1][:, 1:]))


def test_chatglm2_passes_half_the_head(x):
    form = next(form for form in EVERY if form.name == "ChatGLM2")
    assert torch.equal(form.rotate(x)[..., D // 2 :], x[..., D // 2 :])


def test_learnable_frequencies_learn(x):
    inv_freq = torch.nn.Parameter(torch.tensor([1.0, 0.3, 0.1, 0.01]))
    ids = torch.stack((torch.arange(T), torch.arange(T) % 5))
    (chatglm_learnable(x, ids, inv_freq) * torch.randn_like(x)).sum().backward()
    assert inv_freq.grad is not None
    assert (inv_freq.grad != 0).all()


def test_a_head_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match=r"head_dim is 6.*multiple of 4"):
        list(every_rope_form(6, 4))
