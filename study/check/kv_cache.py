"""causal_mask and KVCache: their probes, and usual mistakes by what a token sees and what each slot holds."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.cache import KVCache
from model.config import ModelArgs

from .compare import Exercise, Mistake, View, dtypes, first, near, of_parts, plain, random, refusal


def right_mask(start_pos: int, T: int) -> Tensor:
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(start_pos)


def mask_probes(function: View) -> Iterator[tuple[str, Any]]:
    for start, T in ((1, 2), (0, 4), (3, 5), (2, 1), (0, 1)):
        yield f"start_pos {start}, T {T}", function(start, T)


# fmt: off
def mask_mistakes(function: View, _: str) -> Iterator[Mistake]:
    start, T, S = 3, 5, 8
    mask = plain(function(start, T))
    if mask.dtype != torch.bool:
        yield Mistake("the mask is not boolean: True is visible")
        mask = mask == 0 if mask.min() < 0 else mask > 0
    if mask.shape != (T, S):
        yield Mistake("the shape: (T, start_pos + T)")
        return
    keys, tokens = torch.arange(S), torch.arange(T)[:, None]
    last, right, cached = start + tokens, right_mask(start, T), keys < start

    def among(*masks: Tensor) -> bool:
        return any(torch.equal(mask, each) for each in masks)

    yield from first(
        (among(right), ""),
        (among(~right, ~right | cached), "True and False exchanged: True is visible"),
        (among(keys < last, keys <= last + 1), "off by one position: token t sees 0 .. start_pos + t"),
        (among(*(keys <= tokens + n for n in (-start, -1, 0, 1))),
         "the mask is aligned to the wrong corner: .tril(start_pos)"),
        (among(keys >= last, (keys >= last) | cached), "the mask is transposed: row t is token t"),
        ((mask <= right).all(), "earlier keys are hidden: token t sees all from 0"),
        ((mask >= right).all(), "later keys are visible: none after start_pos + t"),
    )
# fmt: on


B, K, S, D = 2, 3, 12, 4
ARGS = ModelArgs(dim=K * D, n_layers=1, n_heads=K, vocab_size=8, max_seq_len=S)


def update_of(cache: Any) -> View:
    """The method ``update`` of the first layer; ``make_room``, if there is one, is called as the decode loop does."""

    def update(start_pos: int, xk: Tensor, xv: Tensor) -> Any:
        if hasattr(cache, "make_room"):
            cache.make_room(start_pos, xk.shape[2])
        return cache.layers[0].update(start_pos, xk, xv)

    return update


def right() -> View:
    return update_of(KVCache(ARGS, B))


def chunk(T: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Keys and values (B, K, T, D)."""
    return random(B, K, T, D, seed=seed), random(B, K, T, D, seed=seed + 100)


def calls(make: View, *starts: tuple[int, int]) -> list[Any]:
    """What each call of a new cache returns, of (start_pos, T); copies, because later calls may overwrite it."""
    update = make()
    return [plain(update(start, *chunk(T, number))) for number, (start, T) in enumerate(starts)]


STARTS = (0, 5), (5, 2), (2, 1)


def probes(make: View) -> Iterator[tuple[str, Any]]:
    for starts in (STARTS[:1], STARTS[:2], STARTS, ((0, 5), (5, 7)), ((0, 5), (0, 2))):
        yield "; ".join(f"start_pos {start}, T {T}" for start, T in starts), calls(make, *starts)[-1]
    one, other = make(), make()
    one(0, *chunk(3))
    other(0, *chunk(3, 2))
    yield "the first of two caches", one(3, *chunk(1, 3))
    yield f"start_pos + T = 14, 13, 13; max_seq_len {S}", refusals(make)
    yield "dtype", dtypes(make()(0, *chunk(2)))
    yield "stored numbers have a gradient", stores_graph(make)


def refusals(make: View) -> str:
    full = ((0, 9), (9, 5)), ((0, 13),), ((0, 11), (11, 2))
    return ", ".join(refusal(partial(calls, make, *starts)) for starts in full)


def stores_graph(make: View) -> str:
    """Whether what is returned later of a chunk with a gradient still has one."""
    update = make()
    update(0, *(x.requires_grad_() for x in chunk(3)))
    return str(any(x.requires_grad for x in update(3, *chunk(2))))


def shares_store(make: View) -> bool:
    """Whether one cache returns the tokens that were stored in another one later."""
    one, other = make(), make()
    tokens = chunk(3, 2)
    one(0, *chunk(3))
    other(0, *tokens)
    return any(near(plain(x)[:, :, :3], y.double()) for x, y in zip(one(3, *chunk(1, 3)), tokens))


# fmt: off
def mistakes(make: View, _: str) -> Iterator[Mistake]:
    is_refused, is_cast = refusals(make) == refusals(right), dtypes(make()(0, *chunk(2))) != "float32 and float32"
    yield from first((not is_refused, "the end of the cache is not checked: ValueError"))
    yield from first((is_cast, "the dtype changes: .type_as(xk)"))
    yield from first((stores_graph(make) != "False", "the cache is not detached: it keeps graphs"))
    yield from first((shares_store(make), "one store for all layers: each cache needs its own"))
    returned = calls(make, *STARTS)
    tokens = [torch.cat(parts, 2).double() for parts in zip(*(chunk(T, n) for n, (_, T) in enumerate(STARTS)))]
    parts = [slot_mistakes([each[n] for each in returned], tokens[n], tokens[1 - n]) for n in (0, 1)]
    yield from of_parts(("keys", "values"), parts)


def sources(x: Tensor, tokens: Tensor) -> list[int | None]:
    """Which token each slot holds."""
    columns = list(enumerate(tokens.unbind(2)))
    return [next((n for n, token in columns if near(slot, token)), None) for slot in x.unbind(2)]


def slot_mistakes(returned: list[Tensor], tokens: Tensor, others: Tensor) -> list[Mistake]:
    """Of keys or values, from what calls with 5 and 2 tokens return, then one at position 2."""
    x, length, later = returned[1], returned[1].shape[2], returned[2].shape[2]
    held = sources(x, tokens)[:7]
    return first(
        ({*sources(x, others)} != {None}, "keys and values mixed up"),
        (held == [*range(7)] or len(held) < 7, ""),
        (held == [5, 6, 2, 3, 4, None, None], "always written at slot 0"),
        (held[1:] == [*range(6)] or held[:6] == [*range(1, 7)], "off by one slot: token t goes to start_pos + t"),
        (held == [None] * 5 + [5, 6], "earlier tokens are lost"),
        (True, "the slots hold other numbers: position p is in slot p"),
    ) + first(
        (length == 2, "only the new tokens come back"),
        (later == 8, "start_pos is not used: a new text may start at 0"),
        (length != 7 or later == 7, "other slots are returned: [:, :, : start_pos + T]"),
    )
# fmt: on


AXES = ("batch", "head", "slot", "channel")
MASK = Exercise(8, ("start_pos", "T"), lambda _: right_mask, mask_probes, ("token", "key"), (), mask_mistakes)
EXERCISE = Exercise(
    8, ("batch_size", "n_kv_heads", "max_seq_len", "head_dim"), lambda _: right, probes, AXES, ("keys", "values"),
    mistakes,
)  # fmt: skip
