import math

import pytest
import torch

from model import precompute_freqs_cis
from model.rope_scaling import RopeScaling, scale

D, THETA = 64, 10000.0
FREQS = THETA ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)


def test_ntk_is_the_plain_table_of_a_larger_base():
    base = THETA * 8 ** (D / (D - 2))
    scaled = precompute_freqs_cis(D, 50, THETA, RopeScaling("ntk", 8.0))
    assert torch.allclose(scaled, precompute_freqs_cis(D, 50, base))


# The transition may lie before the first pair or after the last, and has no width if low and high are close.
@pytest.mark.parametrize("original", [3, 6, 7, 40, 300, 2048, 40_000, 10**6])
@pytest.mark.parametrize(("kind", "high"), [("linear", 32.0), ("llama3", 4.0), ("yarn", 32.0), ("yarn", 1.0001)])
def test_frequencies_equal_those_of_transformers_for_every_trained_length(transformers, kind, original, high):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    names = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}
    table = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": original, "rope_theta": THETA}
    table |= dict(zip(names.get(kind, ()), (1.0, high)))
    config = transformers.LlamaConfig(head_dim=D, rope_parameters=table)
    theirs, _ = ROPE_INIT_FUNCTIONS[kind](config)
    assert scale(FREQS, RopeScaling(kind, 4.0, original, high=high)).tolist() == pytest.approx(
        theirs.tolist(), rel=2e-6
    )


def test_yarn_multiplies_rotated_vectors_by_its_attention_factor():
    plain = RopeScaling("yarn", 4.0, 32)
    assert plain.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    table = precompute_freqs_cis(D, 9, THETA, plain)
    assert torch.allclose(table.abs(), torch.full_like(table.abs(), plain.attention_factor))
    assert precompute_freqs_cis(D, 9, THETA, RopeScaling("yarn", 4.0, 32, attention_factor=0.5))[3, 3].abs() == 0.5
