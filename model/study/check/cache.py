"""``KVCache``: what it must give, and what each known mistake makes of it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...config import ModelArgs
from . import Property, Verdict, verdict_on
from . import faults as known
from .faults import Fault
from .forms import Conventions, Describe, close, observe

SIZES = ModelArgs(dim=24, n_layers=2, n_heads=6, n_kv_heads=3, head_dim=4, vocab_size=7, max_seq_len=12)
ROWS = 2
# layer, start_pos, T: a long text in both layers; a short one in its place; an older chunk again; the last slot.
STEPS = ((0, 0, 7), (1, 0, 7), (0, 7, 2), (1, 7, 2), (0, 0, 3), (1, 0, 3), (0, 3, 1), (1, 3, 1), (0, 2, 3), (0, 5, 7))
Pair = tuple[Tensor, Tensor] | None


def updates() -> list[tuple[int, int, Tensor, Tensor]]:
    """What ``update`` is called with, in order: keys and values are (B, K, T, D)."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, SIZES.n_kv_heads)

    def random(T: int) -> Tensor:
        return torch.randn(*shape, T, SIZES.head_dim, generator=generator, dtype=torch.float32)

    return [(layer, start, random(T), random(T)) for layer, start, T in STEPS]


def simulate(
    shift: int = 0, short: int = 0, layers: bool = True, append: bool = False, swap: bool = False
) -> list[Pair]:
    """What a cache returns at each step: a right one, or one with a known mistake. NaN marks slots never written."""
    slots = torch.full((SIZES.n_layers, 2, ROWS, SIZES.n_kv_heads, SIZES.max_seq_len, SIZES.head_dim), torch.nan)
    texts = [slots[0, :, :, :, :0]] * SIZES.n_layers
    found: list[Pair] = []
    for layer, start, xk, xv in updates():
        layer, end = layer if layers else 0, start + xk.shape[2]
        new = torch.stack((xk, xv))  # (2, B, K, T, D)
        if append:
            texts[layer] = torch.cat((texts[layer], new), -2)
            pair = texts[layer]
        elif start + shift < 0 or end + shift > SIZES.max_seq_len:
            found.append(None)
            continue
        else:
            slots[layer][..., start + shift : end + shift, :] = new
            pair = slots[layer][..., : end - short, :].clone()
        found.append((pair[1], pair[0]) if swap else (pair[0], pair[1]))
    return found


CACHE_FAULTS: list[tuple[Fault, dict[str, Any]]] = [
    (known.SLOT_SHIFTED, {"shift": 1}),
    (known.SLOT_SHIFTED, {"shift": -1}),
    (known.SLOT_SHIFTED, {"short": 1}),
    (known.APPENDED, {"append": True}),
    (known.LAYER, {"layers": False}),
    (known.EXCHANGED, {"swap": True}),
]


def same_slots(value: Any, expected: Pair, longer: bool = False) -> bool:
    """Equal where the expected is known; ``longer`` allows for more slots behind."""
    if value is None or expected is None:
        return value is None and expected is None
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    for x, y in zip(value, expected):
        if longer and isinstance(x, Tensor) and x.ndim == 4:
            x = x[:, :, : y.shape[2]]
        if isinstance(x, Tensor) and x.shape == y.shape:
            x = torch.where(y.isnan(), y, x.detach()).nan_to_num()
        if not close(x, y.nan_to_num()):
            return False
    return True


def all_same_slots(values: list[Any], expected: list[Pair], longer: bool = False) -> bool:
    return all(same_slots(value, pair, longer) for value, pair in zip(values, expected))


def cache_properties(values: list[Any], right: list[Pair], attached: bool, refused: list[str]) -> Iterator[Property]:
    for (layer, start, T), value, expected in zip(STEPS, values, right):
        if value is None or expected is None:
            continue
        of = f"layer {layer}, start_pos {start}, T {T}"
        two = isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(x, Tensor) for x in value)
        yield Property("update returns keys and values", "yes" if two else type(value).__name__, "yes")
        for name, x, y in zip(("keys", "values"), value, expected):
            slots = x.shape[2] if x.ndim == 4 else str(tuple(x.shape))
            yield Property(f"{of}: start_pos + T {name} come back; how many", slots, y.shape[2])
            for slot in range(y.shape[2]):
                sentence = f"{of}: the first number of slot {slot} of the {name}"
                yield Property(sentence, float(x[0, 0, slot, 0].detach()), float(y[0, 0, slot, 0]))
            gap = (x.detach().float() - y).abs().max()
            yield Property(f"{of}: the largest difference of a stored number", float(gap), 0.0)
    yield Property("What is stored holds no graph; tensors with requires_grad in it", int(attached), 0)
    if refused[0] == "ValueError" or refused[1] != "ValueError":
        yield Property("12 of 12 slots may be used, start_pos 5 and T 7; it ends in", refused[0], "no exception")
    yield Property("start_pos 12 and T 1 need slot 12 of 0 .. 11; it ends in", refused[1], "ValueError")


def judge_cache(names: dict[str, Any], conventions: Conventions, describe: Describe) -> Verdict:
    make = partial(names["KVCache"], SIZES, batch_size=ROWS)
    try:
        cache = make()
        cache.update  # noqa: B018
    except NotImplementedError:
        raise
    except BaseException as error:
        return Verdict("KVCache", "stopped", describe(error))
    values, problem, raised = observe(cache.update, updates(), describe)
    values = [() if value is None and not failed else value for value, failed in zip(values, raised)]
    right = simulate()
    fine = all_same_slots(values, right)
    attached = holds_graph(make())
    refused = [ending(make(), *case) for case in ((5, 7), (12, 1), (0, 13))]
    by_T = refused[2] in DELIBERATE and refused[1] not in DELIBERATE

    def faults() -> Iterator[tuple[Fault, bool]]:
        yield known.T_CHECKED, fine and not attached and by_T
        yield known.ATTACHED, fine and attached and not by_T
        yield known.STALE, all_same_slots(values, right, longer=True) and not fine
        yield known.LAST_SLOT, all_same_slots(values[:-1], right[:-1]) and refused[0] in DELIBERATE
        for fault, change in CACHE_FAULTS:
            yield fault, all_same_slots(values, simulate(**change))

    properties = cache_properties(values, right, attached, refused)
    outcomes = [("right", fine and not attached and not by_T)]
    verdict = verdict_on("KVCache", outcomes, faults(), properties, problem, 8)
    if verdict.outcome == "right" and refused[1] not in DELIBERATE:
        what = "is lost silently" if refused[1] == "no exception" else f"ends in {refused[1]}"
        verdict.remarks.append(
            f"A token at start_pos 12 of 12 slots {what}: raise ValueError where start_pos + T exceeds max_seq_len."
        )
    return verdict


DELIBERATE = ("ValueError", "AssertionError", "IndexError")


def holds_graph(cache: Any) -> bool:
    """Whether keys stored in a step with gradients still have their graph in a later step without."""
    (_, _, xk, xv), (_, _, yk, yv) = updates()[0], updates()[2]
    try:
        cache.update(0, 0, xk.requires_grad_(), xv.requires_grad_())
        return any(x.requires_grad for x in cache.update(0, xk.shape[2], yk, yv))
    except Exception:
        return False


def ending(cache: Any, start: int, T: int) -> str:
    """How an update of an empty cache ends."""
    new = torch.ones(ROWS, SIZES.n_kv_heads, T, SIZES.head_dim, dtype=torch.float32)
    try:
        cache.update(0, start, new, new)
    except BaseException as error:
        return type(error).__name__
    return "no exception"
