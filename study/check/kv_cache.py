"""KVCache: its probes, and its usual mistakes by what each slot holds after two calls."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..topic import Both
from .compare import Exercise, Mistake, Probe, first, of_parts, same, words
from .reader import Raised
from .tensors import near, plain, random

B, K, S, D = SIZE = (2, 3, 12, 4)
Make = Callable[[], Callable[..., Any]]  # returns the method update of a new cache


def right() -> Callable[..., Any]:
    slots = torch.zeros(2, *SIZE)

    def update(start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, Tensor]:
        end = start_pos + xk.shape[2]
        if end > S:
            raise ValueError
        slots[:, :, :, start_pos:end] = torch.stack((xk, xv)).detach()
        return slots[0, :, :, :end].clone(), slots[1, :, :, :end].clone()

    return update


def chunk(T: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Keys and values (B, K, T, D)."""
    return random(B, K, T, D, seed=seed), random(B, K, T, D, seed=seed + 100)


def calls(make: Make, *starts: tuple[int, int]) -> list[Any]:
    """What each call returns, of (start_pos, T)."""
    update = make()
    return [update(start, *chunk(T, number)) for number, (start, T) in enumerate(starts)]


def call_probe(*starts: tuple[int, int]) -> Probe:
    text = "; ".join(f"start_pos {start}, T {T}" for start, T in starts)
    return Probe(same(text), lambda make: calls(make, *starts)[-1])


def refusal(make: Make, start: int, T: int) -> str:
    """The exception for T tokens after the first ones."""
    try:
        calls(make, *([(0, start)] if start else []), (start, T))
    except (Raised, ValueError) as error:
        return type(error.__cause__ or error).__name__
    return "no exception"


def after_overwriting(make: Make) -> Any:
    """What a cache returns of a chunk with a gradient, which is not copied, after the caller has overwritten it."""
    update, new = make(), [x.requires_grad_() for x in chunk(3)]
    update(0, *new)
    with torch.no_grad():
        for x in new:
            x.zero_()
    return update(3, *chunk(2, 2))


def first_of_two(make: Make) -> Any:
    one, other = make(), make()
    one(0, *chunk(3, 1))
    other(0, *chunk(3, 2))
    return one(3, *chunk(1, 3))


STARTS, FULL = ((0, 5), (5, 2), (2, 1)), ((9, 5), (0, 13), (11, 2))
LIMITS = Probe(
    same(f"start_pos + T = 14, 13, 13; max_seq_len {S}"),
    lambda make: words(refusal(make, *each) for each in FULL),
)
DTYPE = Probe(same("dtype"), lambda make: words(x.dtype for x in make()(0, *chunk(2))))
GRADIENT = Probe(
    Both("stored keys and values have a gradient", "存下的 key 和 value 有没有梯度"),
    lambda make: words(x.requires_grad for x in after_overwriting(make)),
)
OVERWRITTEN = Probe(Both("after the caller has overwritten xk and xv", "调用者改写 xk 和 xv 之后"), after_overwriting)
SHARED = Probe(Both("the first of two caches", "两个缓存中的第一个"), first_of_two)
CALLS = (STARTS[:1], STARTS[:2], STARTS, ((0, 5), (5, 7)), ((0, 5), (0, 2)))
PROBES = (*(call_probe(*starts) for starts in CALLS), SHARED, DTYPE, GRADIENT, OVERWRITTEN, LIMITS)


# fmt: off
def mistakes(make: Make, _: str) -> Iterator[Mistake]:
    returned = plain(calls(make, *STARTS))

    def differs(probe: Probe) -> bool:
        yours, ours = probe.of(make), probe.of(right)
        return not near(yours[0], ours[0]) if isinstance(ours, tuple) else yours != ours

    yield from first((differs(LIMITS), "the end of the cache is not checked: ValueError", "没有检查放不放得下"))
    yield from first((differs(DTYPE), "the dtype changes: .type_as(xk)", "dtype 变了：.type_as(xk)"))
    yield from first((differs(GRADIENT), "the cache is not detached: it keeps every graph", "缓存没有 detach"))
    tokens = [torch.cat(parts, 2).double() for parts in zip(*(chunk(T, n) for n, (_, T) in enumerate(STARTS)))]
    parts = [slot_mistakes([each[n] for each in returned], tokens[n], tokens[1 - n]) for n in (0, 1)]
    yield from of_parts(("keys", "values"), parts) or first(
        (differs(SHARED), "all caches share their slots: make them in __init__", "各层共用了槽位：应在 __init__ 里建"),
        (differs(OVERWRITTEN), "the cache keeps the caller's tensors: copy them", "留下了调用者的张量：应复制"),
    )


def sources(x: Tensor, tokens: Tensor) -> list[int | None]:
    """Which token each slot holds."""
    columns = list(enumerate(tokens.unbind(2)))
    return [next((n for n, token in columns if near(slot, token)), None) for slot in x.unbind(2)]


def slot_mistakes(returned: list[Tensor], tokens: Tensor, others: Tensor) -> list[Mistake]:
    """Of keys or values, from what calls with 5 and 2 tokens return, then one at position 2."""
    x, length, later = returned[1], returned[1].shape[2], returned[2].shape[2]
    held = sources(x, tokens)[:7]
    return first(
        ({*sources(x, others)} != {None}, "keys and values mixed up", "key 与 value 弄混了"),
        (held == [*range(7)] or len(held) < 7, "", ""),
        (held == [5, 6, 2, 3, 4, None, None], "always written at slot 0", "总是写到槽位 0"),
        (held[1:] == [*range(6)] or held[:6] == [*range(1, 7)], "off by one slot: token t goes to start_pos + t",
         "差了一个槽位：第 t 个 token 写到 start_pos + t"),
        (held == [None] * 5 + [5, 6], "earlier tokens are lost", "之前的 token 丢了"),
        (near(x[0, :, :7], tokens[0, :, :7]) or near(x[:, 0, :7], tokens[:, 0, :7]),
         "only one row of the batch or head is cached", "只存了 batch 的一行或一个 head"),
        ({*held} - {None}, "other slots: position p is in slot p", "槽位不对：位置 p 在槽位 p"),
        (True, "other numbers than xk and xv are stored", "存的数不是 xk 和 xv"),
    ) + first(
        (length == S or length == later == 7,
         "stale slots are returned: only [:, :, : start_pos + T]", "返回了没用的槽位：只应 [:, :, : start_pos + T]"),
        (length == 2, "only the new tokens come back", "只返回了新 token"),
        (length in (6, 8), "off by one slot: [:, :, : start_pos + T]", "差了一个槽位：[:, :, : start_pos + T]"),
        (later == 8, "start_pos is not used", "没有用 start_pos"),
    )
# fmt: on


SIZES = ("batch_size", "n_kv_heads", "max_seq_len", "head_dim")
AXES = ("batch", "head", "slot", "channel")
EXERCISE = Exercise(8, SIZES, lambda _: right, PROBES, AXES, ("keys", "values"), mistakes)
