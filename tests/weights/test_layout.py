"""The order of the rows of a head; and what each format can express."""

import dataclasses
import json

import pytest
import torch

from model import ModelArgs
from model.rope_scaling import RopeScaling
from model.weights import hf_config, llama2c
from model.weights.layout import to_halves, to_pairs


def test_rows_of_each_head_move_from_pairs_to_halves():
    # Row r of head h is written as h.r: pairs (0, 1), (2, 3), (4, 5) become planes (0, 3), (1, 4), (2, 5).
    rows = torch.tensor([[h + r / 10] for h in (1, 2) for r in range(6)])
    expected = torch.tensor([[h + r / 10] for h in (1, 2) for r in (0, 2, 4, 1, 3, 5)])
    assert torch.equal(to_halves(rows, 6), expected)
    assert torch.equal(to_pairs(expected, 6), rows)


BASE = {"dim": 48, "n_layers": 2, "n_heads": 6, "vocab_size": 37, "max_seq_len": 24}
CHANGES = {
    "dim": 96, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 10, "hidden_dim": 77, "vocab_size": 41,
    "max_seq_len": 25, "norm_eps": 3e-6, "rope_theta": 123456.7, "rope_scaling": RopeScaling("yarn", 2.5, 12),
    "tie_embeddings": True, "qkv_bias": True, "qk_norm": True,
}  # fmt: skip


def from_config(args):
    return hf_config.args_from_config(json.loads(json.dumps(hf_config.config_from(args, "float32", {}))))


def from_header(args):
    return llama2c.parse_header(llama2c.header_of(args))


FORMATS = {  # a function that writes and reads, and the fields that are errors
    "hf": (from_config, set()),
    "llama2c": (from_header, {"head_dim", "norm_eps", "rope_theta", "rope_scaling", "qkv_bias", "qk_norm"}),
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ModelArgs)])
@pytest.mark.parametrize(("round_trip", "unsupported"), FORMATS.values(), ids=FORMATS)
def test_every_field_is_read_back_or_writing_it_is_an_error(field, round_trip, unsupported):
    base = {**BASE, **({"head_dim": 8} if field == "dim" and round_trip is from_config else {})}
    args = ModelArgs(**{**base, field: CHANGES[field]})
    assert getattr(args, field) != getattr(ModelArgs(**BASE), field)
    if field in unsupported:
        with pytest.raises(ValueError, match=f"^{field} is "):
            round_trip(args)
    else:
        assert round_trip(args) == args
