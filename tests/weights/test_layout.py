import torch

from model.weights.layout import to_halves, to_pairs


def test_rows_of_each_head_move_from_pairs_to_halves():
    # Row r of head h is written as h.r: pairs (0, 1), (2, 3), (4, 5) become planes (0, 3), (1, 4), (2, 5).
    rows = torch.tensor([[h + r / 10] for h in (1, 2) for r in range(6)])
    expected = torch.tensor([[h + r / 10] for h in (1, 2) for r in (0, 2, 4, 1, 3, 5)])
    assert torch.equal(to_halves(rows, 6), expected)
    assert torch.equal(to_pairs(expected, 6), rows)
