import math

import pytest

from model import ModelArgs
from model.rope_scaling import RopeScaling


def test_derived_fields_are_numbers_and_can_be_chosen():
    args = ModelArgs(dim=288, n_layers=6, n_heads=6, vocab_size=32000, max_seq_len=256)
    assert (args.n_kv_heads, args.head_dim, args.hidden_dim) == (6, 48, 768)  # as in llama2.c's stories15M
    args = ModelArgs(dim=100, n_heads=6, n_kv_heads=3, head_dim=8, hidden_dim=50)
    assert (args.n_kv_heads, args.head_dim, args.hidden_dim) == (3, 8, 50)


def test_numbers_that_are_left_out_are_those_of_llama():
    assert (ModelArgs().norm_eps, ModelArgs().rope_theta) == (1e-5, 10000.0)


def test_hidden_dim_is_eight_thirds_rounded_up_to_32():
    for dim, hidden_dim in ((32, 96), (96, 256), (100, 288), (4096, 10944)):
        assert ModelArgs(dim=dim, n_heads=2).hidden_dim == hidden_dim


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"max_seq_len": True}, ["max_seq_len is True: give a whole number"]),
        ({"dim": 100, "n_heads": 8}, ["dim is 100, not a multiple of n_heads 8"]),
        ({"dim": 60, "n_heads": 4}, ["head_dim is 15: make it even"]),
        ({"n_heads": 8, "n_kv_heads": 3}, ["n_kv_heads is 3, not a divisor of n_heads 8"]),
        ({"norm_eps": 1e10}, ["norm_eps is 10000000000.0: give a number from 1e-12 to 1"]),
        ({"rope_theta": 1e300}, ["rope_theta is 1e+300", "to 1,000,000,000,000,000"]),
        ({"rope_theta": float("nan")}, ["rope_theta is nan"]),
        (
            {"dim": 0, "n_layers": 0, "vocab_size": "many", "rope_theta": 0.0, "tie_embeddings": 1},
            ["dim is 0", "n_layers is 0", "vocab_size is 'many'", "rope_theta is 0.0", "tie_embeddings is 1"],
        ),
        ({"n_heads": 6, "n_kv_heads": 4, "head_dim": 7}, ["head_dim is 7", "n_kv_heads is 4"]),
        ({"rope_theta": 1.0, "rope_scaling": RopeScaling("ntk", 2.0)}, ["rope_theta is 1.0", "above 1"]),
        ({"rope_scaling": {"type": "linear"}}, ["rope_scaling is {'type': 'linear'}: give a table like"]),
    ],
)
def test_all_mistakes_are_listed_with_their_values_in_one_line(settings, parts):
    with pytest.raises(ValueError, match=r"^[^\n]+ is [^\n]+$") as caught:
        ModelArgs(**settings)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"type": "dynamic", "factor": 2.0}, ["'dynamic'", "linear, ntk, llama3, yarn"]),
        ({"factor": math.inf}, ["factor is inf"]),
        ({"factor": "2"}, ["factor is '2'"]),
        ({"factor": 0.5, "attention_factor": -1.0}, ["factor is 0.5", "attention_factor is -1.0"]),
        ({"type": "yarn", "low": 5.0, "high": 1.0}, ["low is 5.0", "original_max_seq_len is missing"]),
    ],
)
def test_a_rope_scaling_lists_its_mistakes(settings, parts):
    with pytest.raises(ValueError, match=r"^[^\n]+ is [^\n]+$") as caught:
        RopeScaling(**settings)
    for part in parts:
        assert part in str(caught.value)
