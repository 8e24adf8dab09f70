"""The compiled step on NVIDIA's and AMD's GPUs: the kernels of one token, recorded once and then started together.

A token runs hundreds of kernels, and starting them one by one takes longer than running them. A recording (a CUDA
graph) starts all of them at once, but always on the same memory. So the token, its position and its rotation are copied
into tensors that stay where they are, and attention reads every slot of the cache, with a mask for the filled ones.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..cache import LayerCache


class SlotCache(LayerCache):
    """Keys and values of one layer; those of a new token go into the slot that a tensor names, (1,)."""

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__(keys, values)
        self.slot = slot

    def update(self, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of one token, (B, K, 1, D), and return those of all slots, (B, K, slots, D)."""
        self.keys.index_copy_(2, self.slot, xk.type_as(self.keys))
        self.values.index_copy_(2, self.slot, xv.type_as(self.values))
        return self.keys.type_as(xk), self.values.type_as(xv)


class RecordedStep:
    """The step of a network, recorded at the first token and when the cache has other tensors."""

    def __init__(self, logits: Callable[[Tensor, int, Tensor, Tensor, Sequence[LayerCache]], Tensor]) -> None:
        """``logits`` is that of ``Step`` in network.py."""
        self.compute = logits
        self.cache: Sequence[Tensor] = ()

    def __call__(self, tokens: Tensor, rotations: Tensor, mask: Tensor | None, cache: Sequence[Tensor]) -> Tensor:
        """tokens (B, 1), rotations (S, D/2, 2), mask (B, 1, 1, S) -> (B, 1, V).

        ``cache`` has the keys and values of each layer, which are changed in place.
        """
        is_new = len(cache) != len(self.cache) or any(a is not b for a, b in zip(cache, self.cache))
        if is_new:
            self.cache = cache
            self.tokens = torch.zeros_like(tokens)
            self.rotation = torch.zeros_like(rotations[:1])  # (1, D/2, 2)
            self.slot = torch.zeros(1, dtype=torch.long, device=tokens.device)
            self.visible = torch.zeros(len(tokens), 1, 1, cache[0].shape[2], dtype=torch.bool, device=tokens.device)
        S = rotations.shape[0]
        self.tokens.copy_(tokens)
        self.rotation.copy_(rotations[-1:])
        self.slot.fill_(S - 1)
        self.visible[..., :S] = True if mask is None else mask
        self.visible[..., S:] = False
        if is_new:
            self.replay, self.logits = record(self.step, tokens.device)
        self.replay()
        return self.logits.clone()

    def step(self) -> Tensor:
        caches = [SlotCache(keys, values, self.slot) for keys, values in zip(self.cache[::2], self.cache[1::2])]
        return self.compute(self.tokens, 0, self.rotation, self.visible, caches)


def record(step: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """A function that repeats the kernels of ``step`` on this GPU, and the tensor with their result.

    The step runs once before, in a stream of its own, because a kernel cannot be recorded while it is being loaded.
    """
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
    return graph.replay, out
