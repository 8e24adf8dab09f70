import pytest
import torch

from model import Transformer
from model.weights.layout import check_shapes, tensor_shapes, to_halves, to_pairs


@pytest.mark.parametrize("flags", [{}, {"tie_embeddings": True}, {"qkv_bias": True, "qk_norm": True}])
def test_tensor_shapes_equal_those_of_the_network(small_args, flags):
    args = small_args(**flags)
    expected = {name: tuple(tensor.shape) for name, tensor in Transformer(args).state_dict().items()}
    assert tensor_shapes(args) == expected


def test_rows_of_each_head_move_from_pairs_to_halves():
    # Row r of head h is written as h.r: pairs (0, 1), (2, 3), (4, 5) become planes (0, 3), (1, 4), (2, 5).
    rows = torch.tensor([[h + r / 10] for h in (1, 2) for r in range(6)])
    expected = torch.tensor([[h + r / 10] for h in (1, 2) for r in (0, 2, 4, 1, 3, 5)])
    assert torch.equal(to_halves(rows, 6), expected)
    assert torch.equal(to_pairs(expected, 6), rows)


def test_all_problems_with_tensors_are_listed_in_one_line():
    expected = {"a": (2, 3), "b": (4,), **{f"n{i}": (1,) for i in range(20)}}
    found = {"a": (3, 2), "c": (9,)}
    words = r"^DIR .*: a is \(3, 2\), not \(2, 3\), b \(4,\) is missing, c \(9,\) is not .*, and 15 more$"
    with pytest.raises(ValueError, match=words):
        check_shapes(expected, found, "DIR")
    check_shapes(expected, dict(expected), "DIR")
