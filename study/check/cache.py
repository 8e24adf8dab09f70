"""Measure ``KVCache``: every stored number says which update, tensor, row, head, token and channel it comes from."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .calls import Caller, Raised, Unwritten, kind, pair_fault
from .forms import Conventions
from .verdict import Finding, first, in_common

ROWS, HEADS, SLOTS, CHANNELS = SIZES = (2, 3, 12, 4)  # the arguments of the constructor
STEPS = (  # layer, start_pos, T
    (0, 0, 1),  # the smallest calls
    (0, 1, 1),
    (0, 0, 7),  # a text in the caches of two layers
    (1, 0, 7),
    (0, 7, 2),
    (1, 7, 2),
    (0, 0, 3),  # a shorter text in the same slots
    (0, 3, 1),
    (0, 2, 3),  # slots before the end of the text
    (0, 5, 7),  # up to the last slot
)
LAYERS, STARTS, LENGTHS = torch.tensor(STEPS).T
CALL = "Layer {}, start_pos {}, T {}"
TOO_LONG = ((12, 1), (9, 5), (0, 13))  # start_pos and T that need more than the 12 slots
DELIBERATE = (ValueError, AssertionError, IndexError)
NAMES = ("keys", "values")

# Step, keys or values, row of the batch, head, token and channel. Codes are odd and exact in float32; the sum of two is
# none of them, and neither is a code that was rounded to another dtype.
PLACES = (len(STEPS), 2, ROWS, HEADS, SLOTS + 1, CHANNELS)
LOWEST = 2**22
CODES = (LOWEST + 1 + 2 * torch.arange(math.prod(PLACES))).float().reshape(PLACES)
# Of results of another shape than the right one, (B, K, S, D)
RESULTS: list[tuple[str, Callable[..., bool]]] = [
    ("ONE_TEXT", lambda shape, right, *step: shape in ((1, *right[1:]), right[1:])),
    ("ONE_HEAD", lambda shape, right, *step: shape in ((right[0], 1, *right[2:]), (right[0], *right[2:]))),
    ("CACHE_AXES", lambda shape, right, *step: math.prod(shape) == math.prod(right)),
    ("", lambda shape, right, *step: len(shape) != 4 or shape[:2] + shape[3:] != right[:2] + right[3:]),
    # Only the number of slots is wrong.
    ("STALE", lambda shape, right, start, T: shape[2] in (start + T + 1, SLOTS)),
    ("ONLY_NEW", lambda shape, right, start, T: shape[2] == T),
    ("OLD_ONLY", lambda shape, right, start, T: shape[2] == start),
    ("ONE_TOKEN", lambda shape, right, start, T: shape[2] in (1, start + 1)),
    ("SLOT_SHIFTED", lambda shape, right, start, T: shape[2] == start + T - 1),
    ("WRONG_T", lambda shape, right, start, T: shape[2] - start in (ROWS, HEADS, CHANNELS)),
    ("APPENDED", lambda shape, right, start, T: shape[2] >= start + T),
]
FIELDS = ("layer", "kind", "row", "head", "slot", "channel")  # where a number belongs


def new_cache(make: Caller) -> Caller:
    """The method ``update`` of a new cache."""
    return make.of(make(*SIZES).update, ("start_pos", "xk", "xv"))


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    caches = [new_cache(call) for _ in range(2)]
    yield from caches[0].order_finding()
    slots = torch.zeros(len(caches), *PLACES[1:4], SLOTS, CHANNELS)
    values: list[Any] = []
    right: list[Tensor] = []  # (2, B, K, S, D)
    for (layer, start, T), codes in zip(STEPS, CODES):
        new = codes[:, :, :, :T]
        slots[layer, :, :, :, start : start + T] = new
        right.append(slots[layer, :, :, :, : start + T].clone())
        values.append(caches[layer].attempt(start, *new))
    found = number_finding(values, right) or result_finding(values, right)
    errors = [value for value in values if isinstance(value, Raised)]
    if found and not (errors and found.fault in ("", "NOT_WRITTEN")):
        yield found
    elif errors and errors[0] is values[-1]:
        _, start, T = STEPS[-1]
        sentence = f"start_pos {start} and T {T} need {start + T} of {SLOTS} slots; update raises"
        yield Finding(sentence, type(errors[0].error).__name__, "nothing", "LAST_SLOT")
    elif errors:
        raise errors[0]
    else:
        yield from detached_finding(new_cache(call))
        yield from end_finding(call)


def number_finding(values: list[Any], right: list[Tensor]) -> Finding | None:
    """The first returned number that is not the expected one, before a result of another shape or dtype."""
    steps, numbers, codes = [], [], []
    for step, (value, expected) in enumerate(zip(values, right)):
        if isinstance(value, Raised):
            continue
        if pair_fault(value) or any(x.shape != expected[0].shape or x.dtype != torch.float32 for x in value):
            break
        returned = torch.stack(list(value)).detach()
        wrong = returned != expected
        steps += [step] * int(wrong.sum())
        numbers.append(returned[wrong].double())
        codes.append(expected[wrong].double())
    if not steps:
        return None
    number = torch.cat(numbers)
    found, own = places(number), places(torch.cat(codes))
    # Numbers that belong elsewhere. The others are older ones of the same slot, or were never stored.
    moved = (found["step"] >= 0) & torch.stack([found[name] != own[name] for name in FIELDS]).any(0)
    one = int(moved.int().argmax())
    if moved.any():
        fault = moved_fault(*({name: x[moved] for name, x in place.items()} for place in (found, own)))
    else:
        fault = stale_fault(number, torch.tensor(steps), found, own)
    yours = place_text(found, one) if found["step"][one] >= 0 else f"{float(number[one]):g}, which was never stored"
    sentence = f"{CALL.format(*STEPS[steps[one]])}; slot {int(own['slot'][one])} holds the number of"
    return Finding(sentence, yours, place_text(own, one), fault)


def places(numbers: Tensor) -> dict[str, Tensor]:
    """The place where each number belongs, and the step and token that it comes from; -1 if it was never stored."""
    index = (numbers - LOWEST - 1) / 2
    known = (index >= 0) & (index < CODES.numel()) & (index == index.round())
    step, which, row, head, token, channel = torch.unravel_index(index.where(known, 0).long(), CODES.shape)
    fields = (LAYERS[step], which, row, head, STARTS[step] + token, channel, step, token)
    return {name: x.where(known, -1) for name, x in zip((*FIELDS, "step", "token"), fields)}


def place_text(place: dict[str, Tensor], one: int) -> str:
    here = {name: int(x[one]) for name, x in place.items()}
    chunk = f"token {here['token']} of the chunk at start_pos {STEPS[here['step']][1]}"
    others = [f"{name} {here[name]}" for name in ("layer", "row", "head", "channel")]
    return f"{chunk} ({', '.join([NAMES[here['kind']], *others])})"


def moved_fault(found: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """What numbers have in common that belong elsewhere."""
    fields = {name for name in FIELDS if (found[name] != own[name]).any()}
    last = LENGTHS[found["step"]] - 1  # token of the chunk
    rules = [
        ("LAYER", "layer" in fields),
        ("EXCHANGED", fields == {"kind"}),
        ("ONE_TEXT", "row" in fields and is_one(found["row"])),
        ("ONE_HEAD", fields == {"head"} and is_one(found["head"])),
        ("CACHE_AXES", fields <= {"row", "head", "channel"}),
        ("SLOT_SHIFTED", is_one(found["slot"] - own["slot"])),
        ("WRITTEN_AT_0", bool((found["token"] == own["slot"]).all())),
        ("ONE_TOKEN", bool(((found["token"] == 0) | (found["token"] == last)).all())),
        ("CACHE_AXES", torch.equal(found["step"], own["step"])),
    ]
    return first(rules)


def is_one(x: Tensor) -> bool:
    return len(x.unique()) == 1


def stale_fault(number: Tensor, steps: Tensor, found: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """What slots have in common that do not hold what was written last."""
    never = found["step"] < 0
    size = number.abs()  # infinite if it is too large for the dtype in which it was stored
    new = own["step"] == steps  # tokens of the chunk of the same call
    rules = [
        ("SCALED", bool((never & (size > LOWEST / 100) & ((size < LOWEST * 100) | size.isinf())).any())),
        ("CLEARED", bool((never & (own["slot"] < STARTS[steps])).all())),
        ("NOT_WRITTEN, in keys only", not own["kind"].any()),
        ("NOT_WRITTEN, in values only", bool(own["kind"].all())),
        ("ONE_TEXT", len(own["row"].unique()) < ROWS),
        ("ONE_HEAD", len(own["head"].unique()) < HEADS),
        ("ONE_TOKEN", bool(new.any() and (LENGTHS[steps[new]] > 1).all())),
    ]
    return first(rules) or "NOT_WRITTEN"


def result_finding(values: list[Any], right: list[Tensor]) -> Finding | None:
    """The first result that is not two float32 tensors of the right shape."""
    cases = []  # for RESULTS
    for (_, start, T), value, (expected, _) in zip(STEPS, values, right):
        if not pair_fault(value):
            shape = next((x for x in value if x.shape != expected.shape), value[0]).shape
            cases.append((tuple(shape), tuple(expected.shape), start, T))
    for step, value, (expected, _) in zip(STEPS, values, right):
        if isinstance(value, Raised):
            continue
        fault = pair_fault(value)
        if fault or any(x.shape != expected.shape for x in value):
            wanted = f"two tensors of {tuple(expected.shape)}"
            fault = fault or in_common(RESULTS, cases)
            return Finding(f"{CALL.format(*step)}; update returns", kind(value), wanted, fault)
        if any(x.dtype != torch.float32 for x in value):
            yours = ", ".join(str(x.dtype)[6:] for x in value)
            sentence = "The dtypes of the keys and values, for xk and xv in float32"
            return Finding(sentence, yours, "float32, float32", "CACHE_DTYPE")
    return None


def end_finding(make: Caller) -> Iterator[Finding]:
    """Whether more tokens than fit raise ValueError."""
    errors: list[BaseException | None] = []
    for start, T in TOO_LONG:
        update = new_cache(make)
        if start:
            update(0, *filled(start))
        try:
            update(start, *filled(T))
            errors.append(None)
        except (Raised, Unwritten) as raised:
            errors.append(raised.__cause__)
    fault = "T_CHECKED" if isinstance(errors[2], DELIBERATE) else "UNCHECKED"
    fault = "OTHER_ERROR" if isinstance(errors[0], DELIBERATE) else fault
    for (start, T), error in zip(TOO_LONG, errors):
        if not isinstance(error, ValueError):
            sentence = f"start_pos {start} and T {T} need slot {start + T - 1} of 0 .. 11; update raises"
            yield Finding(sentence, type(error).__name__ if error else "nothing", "ValueError", fault)
            return


def filled(T: int) -> tuple[Tensor, Tensor]:
    """Keys of 1 and values of 2."""
    shape = (ROWS, HEADS, T, CHANNELS)
    return torch.full(shape, 1.0), torch.full(shape, 2.0)


def detached_finding(update: Caller) -> Iterator[Finding]:
    """Whether later results depend on keys and values of an earlier step: on their graph, or on their memory."""
    new = [x.requires_grad_() for x in filled(3)]  # which a Caller does not copy
    update(0, *new)
    with torch.no_grad():
        for x in new:
            x.zero_()
    later = update(3, *filled(2))
    if any(x.requires_grad for x in later):
        yield Finding("Stored keys and values keep their graph", "yes", "no", "ATTACHED")
    elif any(not torch.equal(x[:, :, :3], right) for x, right in zip(later, filled(3))):
        sentence = "The cache changes if the caller overwrites xk and xv"
        yield Finding(sentence, "yes", "no", "KEPT")
