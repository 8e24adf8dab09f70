"""``KVCache``: what it must give, and what each known mistake makes of it."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from ...config import ModelArgs
from . import faults as known
from .calls import Caller, Trial, parameters, required
from .faults import Fault
from .forms import Conventions
from .recipe import Explanation, Mistake, Recipe, explain, same
from .reshape import ending
from .verdict import Comparison, Property, Verdict, demanded, in_other_order, kind, wrong

FUNCTION = "KVCache"
SIZES = ModelArgs(dim=24, n_layers=2, n_heads=6, n_kv_heads=3, head_dim=4, vocab_size=7, max_seq_len=12)
ROWS = 2
# layer, start_pos, T: the smallest; a text in both layers; a short one in its place; an older chunk; the last slot.
STEPS = ((0, 0, 1), (0, 1, 1), (0, 0, 7), (1, 0, 7), (0, 7, 2), (1, 7, 2), (0, 0, 3), (1, 0, 3), (0, 3, 1), (1, 3, 1),
         (0, 2, 3), (0, 5, 7))  # fmt: skip
BLANKS = (0.0, torch.nan)  # what is in slots never written: mostly zeros, but nobody promises that
Pair = tuple[Tensor, Tensor] | None


def updates() -> list[tuple[int, int, Tensor, Tensor]]:
    """What ``update`` is called with, in order: keys and values are (B, K, T, D)."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, SIZES.n_kv_heads)

    def random(T: int) -> Tensor:
        return torch.randn(*shape, T, SIZES.head_dim, generator=generator, dtype=torch.float32)

    return [(layer, start, random(T), random(T)) for layer, start, T in STEPS]


def empty(blank: float = torch.nan) -> Tensor:
    """The slots of a cache, (L, 2, B, K, max_seq_len, D). Any number may be in one never written: NaN stands for it."""
    return torch.full((SIZES.n_layers, 2, ROWS, SIZES.n_kv_heads, SIZES.max_seq_len, SIZES.head_dim), blank)


# The recipe. ``new`` holds keys and values of a chunk, (2, B, K, T, D), and ``slots`` all of one layer,
# (2, B, K, max_seq_len, D).


def write(slots: Tensor, first: int, new: Tensor) -> None:
    """Write the chunk from slot ``first`` on. Raises ValueError past the end, which a mistake may reach."""
    if first < 0 or first + new.shape[3] > slots.shape[3]:
        raise ValueError("there are not that many slots")
    slots[:, :, :, first : first + new.shape[3]] = new


RECIPE: Recipe = {
    "layer": lambda layer: layer,
    "count": lambda xk: xk.shape[2],
    "kept": lambda new: new,
    "first": lambda start, T: start,
    "cleared": lambda slots: None,
    "write": write,
    "read": lambda slots, start, end: slots[:, :, :, :end],
    "returned": lambda pair: (pair[0], pair[1]),
}


Step = tuple[int, int, Tensor, Tensor]


def simulate(parts: Recipe, steps: list[Step], blank: float = torch.nan) -> Iterator[Any]:
    """What a cache of this recipe returns at each step, ``updates()``; None where it would raise."""
    slots = empty(blank)
    for layer, start, xk, xv in steps:
        try:
            count = parts["count"](xk)
            end = start + count
            new = torch.stack((xk, xv)).expand(-1, -1, -1, count, -1)  # one token fits any number of slots
            mine = slots[parts["layer"](layer)]
            parts["cleared"](mine)
            parts["write"](mine, parts["first"](start, count), parts["kept"](new))
            yield parts["returned"](parts["read"](mine, start, end).clone())
        except (ValueError, RuntimeError, IndexError):
            yield None


def appended() -> Iterator[Any]:
    """What a cache returns that puts each chunk behind all earlier ones of its layer."""
    texts = [empty()[0, :, :, :, :0]] * SIZES.n_layers
    for layer, _, xk, xv in updates():
        texts[layer] = torch.cat((texts[layer], torch.stack((xk, xv))), -2)
        yield texts[layer][0], texts[layer][1]


def write_sum(slots: Tensor, first: int, new: Tensor) -> None:
    slots.nan_to_num_()
    slots[:, :, :, first : first + new.shape[3]] += new


def write_some(chosen: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int, Tensor], None]:
    """Write only a part of the chunk: ``chosen`` gives that part of the slots and of the chunk alike."""

    def written(slots: Tensor, first: int, new: Tensor) -> None:
        target = slots[:, :, :, first : first + new.shape[3]]
        chosen(target).copy_(chosen(new))

    return written


def write_first_row(slots: Tensor, first: int, new: Tensor) -> None:
    slots[:, :, :, first : first + new.shape[3]] = new[:, :1]


def clear(slots: Tensor) -> None:
    slots.fill_(torch.nan)


MISTAKES = [
    Mistake(known.SLOT_SHIFTED, "first", lambda start, T: start + 1),
    Mistake(known.SLOT_SHIFTED, "first", lambda start, T: start - 1),
    Mistake(known.SLOT_SHIFTED, "first", lambda start, T: max(start - 1, 0)),
    Mistake(known.SLOT_SHIFTED, "read", lambda slots, start, end: slots[:, :, :, : end - 1]),
    Mistake(known.SLOT_SHIFTED, "read", lambda slots, start, end: slots[:, :, :, 1:end]),
    Mistake(known.SLOT_SHIFTED, "read", lambda slots, start, end: slots[:, :, :, 1 : end + 1]),
    Mistake(known.WRONG_T, "count", lambda xk: xk.shape[1]),
    Mistake(known.WRONG_T, "count", lambda xk: xk.shape[3]),
    Mistake(known.WRONG_T, "count", lambda xk: xk.shape[0]),
    Mistake(known.WRITTEN_AT_0, "first", lambda start, T: 0),
    Mistake(known.LAYER, "layer", lambda layer: 0),
    Mistake(known.EXCHANGED, "returned", lambda pair: (pair[1], pair[0])),
    Mistake(known.VALUES_ARE_KEYS, "kept", lambda new: new[:1].expand_as(new)),
    Mistake(known.KEYS_ARE_VALUES, "kept", lambda new: new[1:].expand_as(new)),
    Mistake(known.VALUES_ARE_KEYS, "returned", lambda pair: (pair[0], pair[0])),
    Mistake(known.KEYS_ARE_VALUES, "returned", lambda pair: (pair[1], pair[1])),
    Mistake(known.ONLY_NEW, "read", lambda slots, start, end: slots[:, :, :, start:end]),
    Mistake(known.STALE, "read", lambda slots, start, end: slots),
    Mistake(known.STALE, "read", lambda slots, start, end: slots[:, :, :, : end + 1]),
    Mistake(known.OLD_ONLY, "read", lambda slots, start, end: slots[:, :, :, :start]),
    Mistake(known.ONE_TOKEN, "read", lambda slots, start, end: slots[:, :, :, end - 1 : end]),
    Mistake(known.ONE_TOKEN, "read", lambda slots, start, end: slots[:, :, :, : start + 1]),
    Mistake(known.ONE_TEXT, "read", lambda slots, start, end: slots[:, :1, :, :end]),
    Mistake(known.ONE_TEXT, "read", lambda slots, start, end: slots[:, 0, :, :end]),
    Mistake(known.ONE_TEXT, "write", write_some(lambda x: x[:, :1])),
    Mistake(known.ONE_TEXT, "write", write_some(lambda x: x[:, -1:])),
    Mistake(known.ONE_TEXT, "write", write_first_row),
    Mistake(known.ONE_HEAD, "write", write_some(lambda x: x[:, :, :1])),
    Mistake(known.ONE_HEAD, "read", lambda slots, start, end: slots[:, :, :1, :end]),
    Mistake(known.ONE_TOKEN, "write", write_some(lambda x: x[:, :, :, :1])),
    Mistake(known.ONE_TOKEN, "write", write_some(lambda x: x[:, :, :, -1:])),
    Mistake(known.ONE_TOKEN, "kept", lambda new: new[:, :, :, :1].expand_as(new)),
    Mistake(known.ONE_TOKEN, "kept", lambda new: new[:, :, :, -1:].expand_as(new)),
    Mistake(known.NOT_WRITTEN, "write", lambda slots, first, new: None),
    Mistake(known.VALUES_NOT_WRITTEN, "write", write_some(lambda x: x[:1])),
    Mistake(known.KEYS_NOT_WRITTEN, "write", write_some(lambda x: x[1:])),
    Mistake(known.SUMMED, "write", write_sum),
    Mistake(known.CLEARED, "cleared", clear),
    Mistake(known.CACHE_AXES, "returned", lambda pair: (pair[0].transpose(1, 2), pair[1].transpose(1, 2))),
    Mistake(known.CACHE_AXES, "returned", lambda pair: (pair[0].transpose(-1, -2), pair[1].transpose(-1, -2))),
    Mistake(known.CACHE_AXES, "returned", lambda pair: (pair[0].transpose(0, 1), pair[1].transpose(0, 1))),
    Mistake(known.CACHE_AXES, "returned", lambda pair: (pair[0].flatten(0, 1), pair[1].flatten(0, 1))),
    Mistake(known.ONE_RETURNED, "returned", lambda pair: pair[0]),
    Mistake(known.ONE_RETURNED, "returned", lambda pair: pair[1]),
    Mistake(known.SCALED, "kept", lambda new: 2 * new),
    Mistake(known.SCALED, "kept", lambda new: -new),
    Mistake(known.MIRRORED_SLOTS, "kept", lambda new: new.flip(3)),
]


def same_slots(value: Any, expected: Any) -> bool:
    """Equal where the expected is known, which has to be most of it."""
    if value is None or expected is None:
        return value is None and expected is None
    parts = expected if isinstance(expected, tuple) else [expected]
    if any(part.isnan().double().mean() > 0.5 for part in parts):
        return False
    return same(value, expected)


def judge_cache(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    make = partial(names[FUNCTION], SIZES, batch_size=ROWS)
    made = caller.trial(new_cache, (make,))
    if made.error is not None:
        return not_made(names[FUNCTION], caller, made.problem)
    update = made.value.update
    trials = caller.trials(update, updates(), parameters("update"))
    values = [trial.value for trial in trials]
    right = list(simulate(RECIPE, updates()))
    if all(trial.error is None and same_slots(trial.value, pair) for trial, pair in zip(trials, right)):
        return demanded(FUNCTION, cache_demands(make, trials, caller), "right")

    problem = next((trial.problem for trial in trials if trial.problem), "")
    failed = [trial.error is not None for trial in trials]
    properties = cache_properties(values, failed, right)
    explanation = cache_explanation(values, failed, right)
    order = other_order(make, caller, right) if explanation is None else ()
    if order:
        return in_other_order(FUNCTION, parameters("update"), order, update, method="update")
    return wrong(FUNCTION, explanation, properties, comparisons(values, failed, right), 8, problem)


def other_order(make: Callable[[], Any], caller: Caller, right: list[Any]) -> tuple[int, ...]:
    """The order of arguments in which all updates of one cache would be right."""
    for order in list(permutations(range(len(parameters("update")))))[1:]:
        update = make().update
        fits = True
        for given, pair in zip(updates(), right):
            trial = caller.trial(update, [given[place] for place in order])
            fits = trial.error is None and same_slots(trial.value, pair)
            if not fits:
                break
        if fits:
            return order
    return ()


def new_cache(make: Callable[[], Any]) -> Any:
    cache = make()
    cache.update  # noqa: B018
    return cache


def not_made(written: Callable[..., Any], caller: Caller, problem: str) -> Verdict:
    """The verdict on a cache that cannot be made as ``KVCache(args, batch_size=2)``."""
    swapped = caller.trial(new_cache, (partial(written, ROWS, SIZES),))
    if swapped.error is None and required(written) == 2:
        return in_other_order(FUNCTION, parameters(FUNCTION), (1, 0), written)
    return Verdict(FUNCTION, "stopped", f"{problem}; it is made by KVCache(args, batch_size={ROWS})")


def cache_explanation(values: list[Any], failed: list[bool], right: list[Any]) -> Explanation | None:
    if all(value is None for value in values):
        return None if any(failed) else (known.NOT_RETURNED,)
    if not any(isinstance(value, Tensor | tuple | list) for value in values):
        return (known.NOT_TWO,)

    steps = updates()

    def gives(parts: Recipe) -> bool:
        return any(
            all(same_slots(value, pair) for value, pair in zip(values, simulate(parts, steps, blank)))
            for blank in BLANKS
        )

    if same_slots(values[-1], None) and all(same_slots(x, y) for x, y in zip(values[:-1], right[:-1])):
        return (known.LAST_SLOT,)
    found = explain(RECIPE, MISTAKES, gives)
    if found is not None:
        return found
    if all(same_slots(value, pair) for value, pair in zip(values, appended())):
        return (known.APPENDED,)
    if not any(failed) and all(is_longer(value, pair) for value, pair in zip(values, right)):
        return (known.STALE,)
    if not any(failed) and all(has_all_layers(value, pair) for value, pair in zip(values, right)):
        return (known.ALL_LAYERS,)
    if not any(tensors_of(value) for value in values):
        return (known.NOT_TWO,)
    return None


def tensors_of(value: Any) -> list[Tensor]:
    """Keys and values, if these are what it is; else nothing."""
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(x, Tensor) for x in value):
        return list(value)
    return []


def is_longer(value: Any, pair: Any) -> bool:
    """Whether it is right up to the last slot, and goes on."""
    found = [x[:, :, : pair[0].shape[2]] for x in tensors_of(value) if x.ndim == 4]
    return len(found) == 2 and same(found, list(pair))


def has_all_layers(value: Any, pair: Any) -> bool:
    found = tensors_of(value)
    return len(found) == 2 and all(x.shape == (SIZES.n_layers, *y.shape) for x, y in zip(found, pair))


LOOK_RETURN = "Look at the return: self.keys[layer, :, :, :end], self.values[layer, :, :, :end]."
LOOK_WRITE = "Look at what is written where: self.keys[layer, :, :, start_pos:end] = xk.detach(), and so the values."


def cache_properties(values: list[Any], failed: list[bool], right: list[Any]) -> Iterator[Property]:
    for (layer, start, T), value, missing, expected in zip(STEPS, values, failed, right):
        if missing:
            continue
        of = f"layer {layer}, start_pos {start}, T {T}"
        two = tensors_of(value)
        yield Property("update returns keys and values", "yes" if two else kind(value), "yes", LOOK_RETURN)
        for name, x, y in zip(("keys", "values"), two, expected):
            slots = x.shape[2] if x.ndim == 4 else str(tuple(x.shape))
            yield Property(f"{of}: start_pos + T {name} come back; how many", slots, y.shape[2], LOOK_RETURN)
            yield Property(f"{of}: the shape of the {name}", str(tuple(x.shape)), str(tuple(y.shape)), LOOK_RETURN)
            for slot in range(y.shape[2]):
                sentence = f"{of}: the first number of slot {slot} of the {name}"
                yield Property(sentence, float(x[0, 0, slot, 0].detach()), float(y[0, 0, slot, 0]), LOOK_WRITE)
            gap = (x.detach().float() - y).abs().max()
            yield Property(f"{of}: the largest difference of a stored number", float(gap), 0.0, LOOK_WRITE)
    for (_, start, T), missing in zip(STEPS, failed):
        sentence = f"{start + T} of {SIZES.max_seq_len} slots may be used, start_pos {start} and T {T}; it ends in"
        yield Property(sentence, "an exception" if missing else "no exception", "no exception")


def comparisons(values: list[Any], failed: list[bool], right: list[Any]) -> Iterator[Comparison]:
    """Step by step, as they were called: row 0 and head 0 of keys and values, a line for each slot."""
    calls = []
    for (layer, start, T), value, missing, expected in zip(STEPS, values, failed, right):
        calls.append(f"update({layer}, {start}, xk of T {T}, xv)")
        if missing:
            continue
        results = []
        two = tensors_of(value) or [value, value]
        for name, x, y in zip(("keys", "values"), two, expected):
            fits = isinstance(x, Tensor) and x.shape == y.shape
            shown = not same(x[0, 0], y[0, 0]) if fits else False
            results.append((f"{name}[0, 0]", x[0, 0], y[0, 0]) if shown else (name, x, y))
        yield Comparison(", then ".join(calls[-3:]), results)


DELIBERATE = ("ValueError", "AssertionError", "IndexError")


def cache_demands(make: Callable[[], Any], trials: list[Trial], caller: Caller) -> Iterator[tuple[Fault, Property]]:
    changed = dict.fromkeys(name for trial in trials for name in trial.changed)
    yield known.CHANGED, Property("What it is given stays as it is; overwritten", ", ".join(changed), "")
    graphs = "yes" if holds_graph(make) else "no"
    yield known.ATTACHED, Property("No gradient flows through what is stored; a graph is kept", graphs, "no")
    kept = "yes" if keeps_tensors(make, caller) else "no"
    yield known.KEPT, Property("What is stored stays when the caller overwrites xk and xv; it changes", kept, "no")
    ends = [ending(caller.trial(late_update, (make, *case))) for case in ((12, 1), (9, 5), (0, 13))]
    fault = known.UNCHECKED
    if ends[2] in DELIBERATE and ends[0] not in DELIBERATE:
        fault = known.T_CHECKED
    elif ends[0] in DELIBERATE:
        fault = known.OTHER_ERROR
    for (start, T), found in zip(((12, 1), (9, 5), (0, 13)), ends):
        sentence = f"start_pos {start} and T {T} need slot {start + T - 1} of 0 .. 11; it ends in"
        yield fault, Property(sentence, found, "ValueError")


def late_update(make: Callable[[], Any], start: int, T: int) -> Any:
    new = torch.ones(ROWS, SIZES.n_kv_heads, T, SIZES.head_dim, dtype=torch.float32)
    cache = make()
    if start:
        first = torch.ones(ROWS, SIZES.n_kv_heads, start, SIZES.head_dim, dtype=torch.float32)
        cache.update(0, 0, first, first)
    return cache.update(0, start, new, new)


def holds_graph(make: Callable[[], Any]) -> bool:
    """Whether keys stored in a step with gradients still have their graph in a later step without."""
    (_, _, xk, xv), (_, _, yk, yv) = updates()[2], updates()[4]
    try:
        cache = make()
        with torch.enable_grad():
            cache.update(0, 0, xk.requires_grad_(), xv.requires_grad_())
            return any(x.requires_grad for x in cache.update(0, xk.shape[2], yk, yv))
    except Exception:
        return False


def keeps_tensors(make: Callable[[], Any], caller: Caller) -> bool:
    """Whether the stored keys and values change when the tensors that were passed are overwritten afterwards."""
    (_, _, xk, xv), (_, _, yk, yv) = updates()[2], updates()[4]

    def stored() -> Any:
        keys, values = xk.clone(), xv.clone()
        cache = make()
        cache.update(0, 0, keys, values)
        keys.zero_()
        values.zero_()
        return cache.update(0, keys.shape[2], yk, yv)

    value = caller.trial(stored, ()).value
    T = xk.shape[2]
    return not same([x[:, :, :T] for x in tensors_of(value)], [xk, xv])
