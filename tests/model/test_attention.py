import math

import pytest
import torch

from model.attention import attention


@pytest.mark.parametrize("K", [1, 2, 3, 6])
@torch.no_grad()
def test_equals_a_loop_over_rows_and_heads_for_any_mask(K):
    q, k, v = torch.randn(2, 6, 3, 10), torch.randn(2, K, 5, 10), torch.randn(2, K, 5, 10)
    # The default is causal, and aligned to the last key.
    masks = [torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)]
    for shape in ((3, 5), (2, 1, 3, 5), (1, 6, 3, 5), (2, 6, 3, 5), (2, 1, 1, 5)):
        masks.append(torch.rand(shape) < 0.5)
        masks[-1][..., 0] = True  # because a softmax over no keys is NaN
    found = [attention(q, k, v), *(attention(q, k, v, mask) for mask in masks)]
    for out, mask in zip(found, [masks[0], *masks]):
        for row in range(2):
            for head in range(6):
                key, value = k[row, head * K // 6], v[row, head * K // 6]  # neighbouring query heads share them
                scores = q[row, head] @ key.T / math.sqrt(10)
                weights = scores.masked_fill(~mask.expand(2, 6, 3, 5)[row, head], -math.inf).softmax(-1)
                torch.testing.assert_close(out[row, head], weights @ value)
