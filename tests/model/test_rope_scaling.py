import math

import pytest
import torch

from model import ModelArgs, precompute_freqs_cis
from model.rope_scaling import RopeScaling, llama3, ntk, yarn

D, THETA = 64, 10000.0
FREQS = THETA ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)


def test_linear_is_the_plain_table_at_squeezed_positions():
    table = precompute_freqs_cis(D, 40, THETA, RopeScaling("linear", 4.0))
    assert torch.allclose(table[::4], precompute_freqs_cis(D, 10, THETA), atol=1e-6)


def test_ntk_is_the_plain_table_of_a_larger_base():
    base = THETA * 8 ** (D / (D - 2))
    assert torch.allclose(
        precompute_freqs_cis(D, 50, THETA, RopeScaling("ntk", 8.0)), precompute_freqs_cis(D, 50, base)
    )
    scaled = ntk(FREQS, 8.0)
    assert scaled[0] == FREQS[0]
    assert math.isclose(scaled[-1], FREQS[-1] / 8, rel_tol=1e-12)


def test_llama3_follows_its_three_cases():
    factor, original, low, high = 8.0, 8192, 1.0, 4.0
    for freq, scaled in zip(FREQS.tolist(), llama3(FREQS, factor, original, low, high).tolist()):
        wavelength = 2 * math.pi / freq
        if wavelength < original / high:
            expected = freq
        elif wavelength > original / low:
            expected = freq / factor
        else:
            smooth = (original / wavelength - low) / (high - low)
            expected = (1 - smooth) * freq / factor + smooth * freq
        assert math.isclose(scaled, expected, rel_tol=1e-12)


@pytest.mark.parametrize("original", [3, 6, 7, 40, 300, 2048, 40_000, 10**6])
@pytest.mark.parametrize("high", [1.0001, 32.0])
def test_yarn_equals_transformers_for_every_trained_length(original, high):
    """Also if the transition lies before the first pair or after the last, or has no width."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    table = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original, "rope_theta": THETA}
    config = transformers.LlamaConfig(head_dim=D, rope_parameters={**table, "beta_fast": high, "beta_slow": 1.0})
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](config)
    assert yarn(FREQS, 4.0, original, 1.0, high).tolist() == pytest.approx(theirs.tolist(), rel=2e-6)


def test_yarn_multiplies_rotated_vectors_by_its_attention_factor():
    plain = RopeScaling("yarn", 4.0, 32)
    assert plain.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    table = precompute_freqs_cis(D, 9, THETA, plain)
    assert torch.allclose(table.abs(), torch.full_like(table.abs(), plain.attention_factor))
    assert precompute_freqs_cis(D, 9, THETA, RopeScaling("yarn", 4.0, 32, attention_factor=0.5))[3, 3].abs() == 0.5


@pytest.mark.parametrize("kind", ["linear", "ntk", "llama3", "yarn"])
def test_factor_one_changes_nothing(kind):
    table = precompute_freqs_cis(D, 20, THETA, RopeScaling(kind, 1.0, 64))
    assert torch.allclose(table, precompute_freqs_cis(D, 20, THETA), atol=1e-6)


def test_all_problems_are_listed_at_once():
    with pytest.raises(ValueError, match="dim is 0") as error:
        ModelArgs(dim=0, rope_scaling=RopeScaling("yarn", 0.5, None, low=5.0, high=1.0, attention_factor=-1.0))
    for words in ("factor is 0.5", "attention_factor is -1.0", "low is 5.0", "original_max_seq_len is missing"):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (RopeScaling("dynamic", 2.0), "'dynamic'.*linear, ntk, llama3, yarn"),
        (RopeScaling("linear", float("inf")), "factor is inf"),
        (RopeScaling("linear", "2"), "factor is '2'"),
        ({"type": "linear"}, "give RopeScaling"),
    ],
)
def test_invalid_scalings_are_refused(scaling, words):
    with pytest.raises(ValueError, match=words):
        ModelArgs(rope_scaling=scaling)


@pytest.mark.parametrize("use_scaled", [True, False])
def test_metas_fourth_argument_is_answered_with_the_scaling_that_it_stands_for(use_scaled):
    with pytest.raises(ValueError, match=f"scaling is {use_scaled}: give None, or .*'llama3', 8.0, 8192"):
        precompute_freqs_cis(64, 32, 5e5, use_scaled)
