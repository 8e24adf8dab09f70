"""Where the weights of a loaded network lie in memory, which decides how fast a CPU reads them."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor, nn

CACHE_LINE = 64  # bytes
# Huge pages for more bytes would save less time than they take: in a virtual machine, which may first have to get them
# from its host, a second for each gigabyte or more. A page of 4 KB, used before, takes half of that.
MAX_HUGE_PAGES = 2**29


def gather(network: nn.Module) -> None:
    """Move the weights of a network on the CPU into one block of memory, each to the beginning of a cache line.

    In a mapped file a weight begins anywhere, so that vectors of it lie in two cache lines: a token of 1.1B in bfloat16
    takes 139 ms instead of 126 (Zen 4). Tied weights stay tied. The tensors are moved one by one, so that little memory
    is needed twice.
    """
    weights = [weight for weight in network.state_dict(keep_vars=True).values() if weight.numel()]
    addresses = [weight.data_ptr() for weight in weights]
    sizes = {address: weight.nbytes + -weight.nbytes % CACHE_LINE for address, weight in zip(addresses, weights)}
    places = dict(zip(sizes, huge_pages(sum(sizes.values())).split([*sizes.values()])))  # of an address in the block
    for address, weight in zip(addresses, weights):
        place = places[address][: weight.nbytes].view(weight.dtype).view(weight.shape)
        weight.data = place.copy_(weight.detach())


def huge_pages(size: int) -> Tensor:
    """Memory of ``size`` bytes, (size,) in uint8, in huge pages if the system offers them on request, as Linux does.

    With pages of 4 KB the processor looks up 15,000 addresses for each token of the 15M network in float32. Compiled,
    the token takes 7% longer then, and beside other programs, which use its caches, a fifth (Zen 4, virtual machine).
    """
    if not 0 < size <= MAX_HUGE_PAGES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
