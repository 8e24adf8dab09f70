"""KVCache: its probes, and its usual mistakes by what each slot holds after two calls."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .compare import Both, Mistake, Probe, near, plain, random
from .reader import Raised

AXES = (Both("row of the batch", "batch 第几行"), Both("head", "head"), Both("slot", "槽位"), Both("channel", "分量"))
B, K, S, D = SIZE = (2, 3, 12, 4)
Make = Callable[[], Callable[..., Any]]  # returns the method update of a new cache


class RightCache:
    def __init__(self) -> None:
        self.slots = [torch.zeros(SIZE), torch.zeros(SIZE)]

    def update(self, start_pos: int, xk: Tensor, xv: Tensor) -> tuple[Tensor, ...]:
        end = start_pos + xk.shape[2]
        if end > S:
            raise ValueError
        for slots, x in zip(self.slots, (xk, xv)):
            slots[:, :, start_pos:end] = x.detach()
        return tuple(slots[:, :, :end].clone() for slots in self.slots)


def right() -> Callable[..., Any]:
    return RightCache().update


def chunk(T: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys and values (B, K, T, D)."""
    return random(B, K, T, D, seed=seed), random(B, K, T, D, seed=seed + 100)


def call_probe(*calls: tuple[int, int]) -> Probe:
    """The keys and values that the last of these calls returns, each (start_pos, T)."""

    def measure(make: Make) -> Any:
        update = make()
        for number, (start, T) in enumerate(calls):
            returned = update(start, *chunk(T, number))
        return returned

    en = "; then ".join(f"start_pos {start}, T {T}" for start, T in calls)
    return Probe(Both(en, en.replace("; then ", "，然后 ")), measure)


def refusal(make: Make, start: int, T: int) -> str:
    """The exception for T tokens after the first ones. A RuntimeError is torch's, because shapes do not fit."""
    update = make()
    if start:
        update(0, *chunk(start, 1))
    try:
        update(start, *chunk(T, 2))
    except (Raised, ValueError) as error:
        cause = error.__cause__ or error
        return type(cause).__name__ if not isinstance(cause, RuntimeError | TypeError) else "no ValueError"
    return "no ValueError"


def refusal_probe(start: int, T: int) -> Probe:
    return Probe(
        Both(
            f"start_pos {start}, T {T}, in a cache of {S} slots", f"start_pos 为 {start}，T 为 {T}，缓存有 {S} 个槽位"
        ),
        lambda make: refusal(make, start, T),
    )


def is_detached(make: Make) -> str:
    update, new = make(), [x.requires_grad_() for x in chunk(3, 1)]
    update(0, *new)
    return " and ".join(str(x.requires_grad) for x in update(3, *chunk(2, 2)))


def after_overwriting(make: Make) -> Any:
    update, new = make(), [x.requires_grad_() for x in chunk(3, 1)]  # those with a gradient are not copied
    update(0, *new)
    with torch.no_grad():
        for x in new:
            x.zero_()
    return update(3, *chunk(2, 2))


def second_cache(make: Make) -> Any:
    first, second = make(), make()
    first(0, *chunk(3, 1))
    second(0, *chunk(3, 2))
    return first(3, *chunk(1, 3))


PROBES = (
    call_probe((0, 5)),
    call_probe((0, 5), (5, 2)),
    call_probe((0, 5), (5, 7)),
    call_probe((0, 5), (5, 2), (2, 1)),
    call_probe((0, 5), (0, 2)),
    Probe(Both("the first of two caches", "两个缓存中的第一个"), second_cache),
    refusal_probe(12, 1),
    refusal_probe(9, 5),
    refusal_probe(0, 13),
    Probe(Both("the dtypes", "dtype"), lambda make: " and ".join(str(x.dtype)[6:] for x in make()(0, *chunk(2, 1)))),
    Probe(Both("stored keys and values have a gradient", "存下的 key 和 value 有没有梯度"), is_detached),
    Probe(Both("after the caller has overwritten xk and xv", "调用者改写 xk 和 xv 之后"), after_overwriting),
)


def mistakes(make: Make) -> Iterator[Mistake]:
    yield from limit_mistakes(make)
    for number, mistake in ((-3, DTYPE), (-2, GRADIENT)):
        if PROBES[number].of(make) != PROBES[number].of(right):
            yield mistake
    update = make()
    chunks = [chunk(5, 0), chunk(2, 1), chunk(1, 2)]
    tokens = [torch.cat(parts, 2).double() for parts in zip(*chunks)]  # (B, K, 8, D) of keys, and of values
    first, second, third = (plain(update(start, *each)) for start, each in zip((0, 5, 2), chunks))
    if not isinstance(second, tuple) or len(second) != 2:
        yield Mistake(8, "return (keys, values), two tensors.", "应返回 (keys, values) 两个张量。")
        return
    if second[0].shape[:2] == (B, second[0].shape[1]) and second[0].shape[2] == K != second[0].shape[1]:
        yield Mistake(8, "the axes are in another order: (B, K, S, D).", "轴的顺序不对：应为 (B, K, S, D)。")
        return
    named = list(slot_mistakes(first, second, third, tokens))
    yield from named
    if not named:
        if not PROBES[5].of(right)[0].equal(PROBES[5].of(make)[0]):
            yield Mistake(
                8,
                "all caches share their slots: make the tensors in __init__, not in the class.",
                "各层共用了同一批槽位：张量应在 __init__ 里建，不是在类里。",
            )
        if not near(PROBES[-1].of(right)[0], PROBES[-1].of(make)[0]):
            yield Mistake(
                8,
                "the cache keeps the caller's tensors: copy them into its own slots.",
                "缓存直接留下了调用者的张量：应复制到自己的槽位里。",
            )


DTYPE = Mistake(
    8,
    "the dtype changes: keys and values come back in the dtype of xk and xv, .type_as(xk).",
    "dtype 变了：返回的 key 和 value 与 xk、xv 同 dtype，.type_as(xk)。",
)
GRADIENT = Mistake(
    8,
    "the cache is not detached: it keeps the graph of every step alive; store xk.detach() and xv.detach().",
    "缓存没有 detach：每一步的计算图都留着；应存 xk.detach() 和 xv.detach()。",
)


def limit_mistakes(make: Make) -> Iterator[Mistake]:
    found = [refusal(make, *limits) for limits in ((12, 1), (9, 5), (0, 13))]
    try:
        make()(0, *chunk(S, 1))
    except Raised as error:
        if isinstance(error.__cause__, ValueError | AssertionError):
            yield Mistake(
                8,
                "the last slot is refused: start_pos + T may equal max_seq_len.",
                "最后一个槽位被拒绝了：start_pos + T 可以等于 max_seq_len。",
            )
    if found[2] == "ValueError" and found[1] == "no ValueError":
        yield Mistake(
            8,
            "T is checked instead of start_pos + T: compare start_pos + T with max_seq_len.",
            "检查的是 T 而不是 start_pos + T：应比较 start_pos + T 与 max_seq_len。",
        )
    elif "no ValueError" in found:
        yield Mistake(
            8,
            "the end of the cache is not checked: ValueError if start_pos + T exceeds max_seq_len.",
            "没有检查缓存是否放得下：start_pos + T 超过 max_seq_len 时应报 ValueError。",
        )
    elif found != ["ValueError"] * 3:
        yield Mistake(
            8,
            "another exception than ValueError: callers catch ValueError.",
            "抛出的不是 ValueError：调用者等的是 ValueError。",
        )


def slot_mistakes(first: Any, second: Any, third: Any, tokens: list[Tensor]) -> Iterator[Mistake]:
    """From what two calls with 5 and 2 tokens return, then one at position 2."""
    length = second[0].shape[2]
    if length == S:
        yield Mistake(
            8,
            "stale slots are read: return only [:, :, : start_pos + T], the others get weight too.",
            "读到了没用的槽位：只返回 [:, :, : start_pos + T]，其余的也会分到权重。",
        )
    elif length == 2:
        yield Mistake(
            8,
            "only the new tokens come back: return all start_pos + T.",
            "只返回了新 token：应返回全部 start_pos + T 个。",
        )
    elif length == 5:
        yield Mistake(
            8,
            "the new tokens do not come back: return all start_pos + T.",
            "没有返回新 token：应返回全部 start_pos + T 个。",
        )
    elif length in (6, 8):
        yield Mistake(
            8, "off by one position: return [:, :, : start_pos + T].", "差了一个位置：应返回 [:, :, : start_pos + T]。"
        )
    elif length == 7 == third[0].shape[2]:
        yield Mistake(
            8,
            "stale slots are read: a new text may start at 0; return only [:, :, : start_pos + T].",
            "读到了旧的槽位：新文本可以从 0 开始；只返回 [:, :, : start_pos + T]。",
        )
    elif length == 7 and third[0].shape[2] == 8:
        yield Mistake(
            8,
            "start_pos is not used: the cache keeps no count, the caller says where tokens go.",
            "没有用 start_pos：缓存不计数，放在哪里由调用者决定。",
        )
    keys = sources(second[0], tokens[0])
    values = sources(second[1], tokens[1])
    if sources(second[0], tokens[1])[-2:] == [5, 6] or sources(second[1], tokens[0])[-2:] == [5, 6]:
        yield Mistake(
            8,
            "keys in place of values, or values of keys: return (keys, values), in this order.",
            "key 与 value 弄混了：依次返回 (keys, values)。",
        )
        return
    if length in (2, 5, 6):
        return
    for name, found in (("keys", keys), ("values", values)):
        found = found[:7]
        if found == list(range(7)):
            continue
        if found == [5, 6, 2, 3, 4, None, None]:
            yield Mistake(
                8,
                f"{name} are written at slot 0: a chunk goes to slots start_pos .. start_pos + T - 1.",
                f"{name} 总是写到槽位 0：应写到 start_pos … start_pos + T - 1。",
            )
        elif found[1:] == list(range(6)) or found[:6] == list(range(1, 7)):
            yield Mistake(
                8,
                f"off by one position in {name}: token t of a chunk goes to slot start_pos + t.",
                f"{name} 差了一个位置：第 t 个 token 写到槽位 start_pos + t。",
            )
        elif found == [None] * 5 + [5, 6]:
            yield Mistake(
                8,
                f"earlier {name} are lost: each update empties the cache.",
                f"之前的 {name} 丢了：每次 update 都清空了缓存。",
            )
        elif found == [None] * 7:
            yield from nothing_mistakes(name, second[name == "values"], tokens[name == "values"])
        elif found.count(None) > 2 or len(set(found) - {None}) <= 3:
            yield Mistake(
                8,
                f"not all tokens of a chunk are cached in {name}: write all T, at start_pos .. start_pos + T - 1.",
                f"{name} 没有存下一段里的所有 token：T 个都要写到 start_pos … start_pos + T - 1。",
            )
        else:
            yield Mistake(
                8,
                f"the slots of {name} are in another order: the token at position p is in slot p.",
                f"{name} 的槽位顺序不对：位置 p 的 token 在槽位 p。",
            )
    if keys == values == list(range(7)) and length == 7 == third[0].shape[2] + 4:
        found = sources(third[0], tokens[0])
        if found != [0, 1, 7] and near(third[0][:, :, 2], tokens[0][:, :, 7] + tokens[0][:, :, 2]):
            yield Mistake(
                8,
                "new keys are added to the old ones: overwrite the slots, =, not +=.",
                "新的 key 加到了旧的上面：应覆盖（=），不是累加（+=）。",
            )
        elif found != [0, 1, 7]:
            yield Mistake(
                8,
                "start_pos is not used: the token at position p is in slot p.",
                "没有用 start_pos：位置 p 的 token 在槽位 p。",
            )


def nothing_mistakes(name: str, x: Tensor, tokens: Tensor) -> Iterator[Mistake]:
    """Of slots that hold no whole token of all heads and rows of the batch."""
    if x.shape[:2] == (B, K) and near(x[0, :, :7], tokens[0, :, :7]):
        yield Mistake(
            8,
            f"only one row of the batch is cached in {name}: index [:, :, start_pos:end].",
            f"{name} 只存了 batch 的一行：应写 [:, :, start_pos:end]。",
        )
    elif x.shape[:2] == (B, K) and near(x[:, 0, :7], tokens[:, 0, :7]):
        yield Mistake(
            8,
            f"only one head is cached in {name}: index [:, :, start_pos:end].",
            f"{name} 只存了一个 head：应写 [:, :, start_pos:end]。",
        )
    elif not x.any():
        yield Mistake(
            8,
            f"no {name} are stored: write xk to the keys and xv to the values.",
            f"没有存 {name}：xk 写入 keys，xv 写入 values。",
        )


def sources(x: Tensor, tokens: Tensor) -> list[int | None]:
    """Which token each slot holds."""
    return [
        next((n for n in range(tokens.shape[2]) if near(x[:, :, slot], tokens[:, :, n], 1e-3)), None)
        for slot in range(x.shape[2])
    ]
