"""KVCache: its probes, and its usual mistakes by what each slot holds after two calls."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import Both, Exercise, Mistake, Probe, first, near, of_parts, plain, random, same
from .reader import Raised

AXES = (Both("row of the batch", "batch 第几行"), Both("head", "head"), Both("slot", "槽位"), Both("channel", "分量"))
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
    en = ", then ".join(f"start_pos {start}, T {T}" for start, T in starts)
    return Probe(Both(en, en.replace(", then", "，然后")), lambda make: calls(make, *starts)[-1])


def refusal(make: Make, start: int, T: int) -> str:
    """The exception for T tokens after the first ones. A RuntimeError is torch's, because shapes do not fit."""
    try:
        calls(make, *([(0, start)] if start else []), (start, T))
    except (Raised, ValueError) as error:
        cause = error.__cause__ or error
        return "no ValueError" if isinstance(cause, RuntimeError | TypeError) else type(cause).__name__
    return "no ValueError"


def refusal_probe(start: int, T: int) -> Probe:
    text = f"start_pos {start}, T {T}, max_seq_len {S}"
    return Probe(same(text), lambda make: refusal(make, start, T))


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


LIMITS = tuple(refusal_probe(start, T) for start, T in ((9, 5), (0, 13), (11, 2)))
DTYPE = Probe(same("dtype"), lambda make: " and ".join(str(x.dtype)[6:] for x in make()(0, *chunk(2))))
GRADIENT = Probe(
    Both("stored keys and values have a gradient", "存下的 key 和 value 有没有梯度"),
    lambda make: " and ".join(str(x.requires_grad) for x in after_overwriting(make)),
)
OVERWRITTEN = Probe(Both("after the caller has overwritten xk and xv", "调用者改写 xk 和 xv 之后"), after_overwriting)
SHARED = Probe(Both("the first of two caches", "两个缓存中的第一个"), first_of_two)
STARTS = ((0, 5), (5, 2), (2, 1))
PROBES = (
    *(call_probe(*STARTS[:count]) for count in (1, 2, 3)),
    call_probe((0, 5), (5, 7)),
    call_probe((0, 5), (0, 2)),
    *(SHARED, DTYPE, GRADIENT, OVERWRITTEN, *LIMITS),
)


# fmt: off
def mistakes(make: Make, _: str) -> Iterator[Mistake]:
    returned = plain(calls(make, *STARTS))
    if not all(isinstance(each, tuple) and len(each) == 2 for each in returned):
        yield Mistake("the result is not (keys, values)", "返回值不是 (keys, values)")
        return
    limits, last = [probe.of(make) for probe in LIMITS], call_probe((0, S)).of(make)
    yield from first(
        (isinstance(last, Raised) and isinstance(last.__cause__, ValueError | AssertionError),
         "the last slot is refused: start_pos + T may be max_seq_len",
         "最后一个槽位被拒绝：start_pos + T 可以等于 max_seq_len"),
        (limits[:2] == ["no ValueError", "ValueError"],
         "T is checked instead of start_pos + T", "检查的是 T，不是 start_pos + T"),
        ("no ValueError" in limits,
         "the end of the cache is not checked: ValueError", "没有检查放不放得下：应报 ValueError"),
        (limits != ["ValueError"] * 3, "another exception than ValueError", "抛出的不是 ValueError"),
    )
    yield from first((DTYPE.of(make) != DTYPE.of(right), "the dtype changes: .type_as(xk)", "dtype 变了：.type_as(xk)"))
    yield from first((GRADIENT.of(make) != GRADIENT.of(right),
                      "the cache is not detached: it keeps the graph of every step",
                      "缓存没有 detach：每一步的计算图都留着"))
    tokens = [torch.cat(parts, 2).double() for parts in zip(*(chunk(T, n) for n, (_, T) in enumerate(STARTS)))]
    exchanged = [set(sources(returned[1][n], tokens[1 - n])) != {None} for n in (0, 1)]
    found = first((any(exchanged), "keys and values mixed up", "key 与 value 弄混了"))
    if not found:
        parts = [[each[n] for each in returned] for n in (0, 1)]
        found = of_parts(("keys", "values"), [slot_mistakes(*each) for each in zip(parts, tokens)])
    numbers = zip(sum(returned, ()), sum(plain(calls(right, *STARTS)), ()))
    yield from found or first(
        (not all(near(*each) for each in numbers), "other numbers than xk and xv are stored", "存的数不是 xk 和 xv"),
        (not near(SHARED.of(make)[0], SHARED.of(right)[0]),
         "all caches share their slots: make them in __init__", "各层共用了槽位：应在 __init__ 里建"),
        (not near(OVERWRITTEN.of(make)[0], OVERWRITTEN.of(right)[0]),
         "the cache keeps the caller's tensors: copy them", "留下了调用者的张量：应复制"),
    )


def sources(x: Tensor, tokens: Tensor) -> list[int | None]:
    """Which token each slot holds."""
    columns = list(enumerate(tokens.unbind(2)))
    return [next((n for n, token in columns if near(slot, token, 1e-3)), None) for slot in x.unbind(2)]


def slot_mistakes(returned: list[Tensor], tokens: Tensor) -> list[Mistake]:
    """Of keys or values, from what calls with 5 and 2 tokens return, then one at position 2."""
    x, length, later = returned[1], returned[1].shape[2], returned[2].shape[2]
    alone, held, after = (sources(each, tokens)[:7] for each in returned)
    is_held = held == list(range(7))
    added = near(returned[2][:, :, 2:3], tokens[:, :, 2:3] + tokens[:, :, 7:])
    if x.shape[1] != K:
        return [Mistake("the axes are in another order: (B, K, S, D)", "轴的顺序不对：(B, K, S, D)")]
    return first(
        (is_held or len(held) < 7, "", ""),
        (held == [5, 6, 2, 3, 4, None, None], "always written at slot 0", "总是写到槽位 0"),
        (held[1:] == list(range(6)) or held[:6] == list(range(1, 7)),
         "off by one slot: token t of a chunk goes to start_pos + t", "差了一个槽位：第 t 个 token 写到 start_pos + t"),
        (held == [None] * 5 + [5, 6], "earlier tokens are lost", "之前的 token 丢了"),
        (near(x[0, :, :7], tokens[0, :, :7]) or near(x[:, 0, :7], tokens[:, 0, :7]),
         "only one row of the batch or head is cached", "只存了 batch 的一行或一个 head"),
        (not x.any(), "nothing is stored", "什么也没存"),
        (len({*alone} - {None}) == 1, "only one token of a chunk is cached", "一段只存了一个 token"),
        (len({*held} - {None}) > 1,
         "other slots: the token at position p is in slot p", "槽位不对：位置 p 的 token 在槽位 p"),
    ) + first(
        (length == S or length == later == 7,
         "stale slots are returned: only [:, :, : start_pos + T]", "返回了没用的槽位：只应 [:, :, : start_pos + T]"),
        (length == 2, "only the new tokens come back", "只返回了新 token"),
        (length == 5, "the new tokens do not come back", "没有返回新 token"),
        (length in (6, 8), "off by one slot: [:, :, : start_pos + T]", "差了一个槽位：[:, :, : start_pos + T]"),
        (added, "new tokens are added to old ones: =, not +=", "新 token 加到了旧的上面：用 =，不用 +="),
        (later == 8 or (is_held and later == 3 and after != [0, 1, 7]), "start_pos is not used", "没有用 start_pos"),
    )
# fmt: on


SIZES = ("batch_size", "n_kv_heads", "max_seq_len", "head_dim")
EXERCISE = Exercise(8, SIZES, lambda _: right, PROBES, AXES, ("keys", "values"), mistakes)
