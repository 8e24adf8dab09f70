"""A batch of texts of unequal length, which share a cache by ending together."""

from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import ModelArgs


class PaddedCache(KVCache):
    """A cache whose rows begin late: ``padding`` (B,) counts the slots before each row's first token."""

    def __init__(self, args: ModelArgs, padding: Tensor, *rest: Any) -> None:
        super().__init__(args, len(padding), *rest)
        self.padding = padding.to(self.keys.device)

    def restrict(self, mask: Tensor | None, start_pos: int, T: int) -> Tensor:
        """The mask, (T, S) or None, with the padding of each row out of sight: (B, 1, T, S).

        A slot that is itself padding sees itself: a softmax over nothing would be NaN.
        """
        slots = torch.arange(start_pos + T, device=self.padding.device)
        own = slots[start_pos:, None]  # (T, 1)
        filled = slots >= self.padding[:, None, None, None]  # (B, 1, 1, S)
        visible = (slots <= own) & filled | (slots == own)  # (B, 1, T, S)
        if mask is None or mask.dtype == torch.bool:
            return visible if mask is None else visible & mask  # (B, 1, T, S)
        return mask.masked_fill(~visible, float("-inf"))  # (B, 1 or H, T, S)
