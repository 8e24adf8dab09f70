"""Measure ``KVCache``: every stored number says which update, tensor, row, head, token and channel it comes from."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.config import ModelArgs

from . import faults
from .calls import Caller, Raised, Unwritten, kind, parameters, required, roles_of
from .faults import Fault
from .forms import Conventions
from .verdict import Finding

SIZES = ModelArgs(dim=24, n_layers=2, n_heads=6, n_kv_heads=3, head_dim=4, vocab_size=7, max_seq_len=12)
ROWS = 2
SHAPE = (2, ROWS, SIZES.n_kv_heads)  # keys and values, rows of the batch, heads
STEPS = (  # layer, start_pos, T
    (0, 0, 1),  # the smallest calls
    (0, 1, 1),
    (0, 0, 7),  # a text in both layers
    (1, 0, 7),
    (0, 7, 2),
    (1, 7, 2),
    (0, 0, 3),  # a shorter text in the same slots
    (1, 0, 3),
    (0, 3, 1),
    (1, 3, 1),
    (0, 2, 3),  # slots before the end of the text
    (0, 5, 7),  # up to the last slot
)
TOO_LONG = ((12, 1), (9, 5), (0, 13))  # start_pos and T that need more than the 12 slots
DELIBERATE = (ValueError, AssertionError, IndexError)
VALUES = ("n_layers", "batch_size", "n_kv_heads", "max_seq_len", "head_dim", "args")
NAMES = ("keys", "values")


class Source(NamedTuple):
    """Where a stored number comes from."""

    step: int
    kind: int  # 0 for keys, 1 for values
    row: int
    head: int
    token: int
    channel: int

    @property
    def layer(self) -> int:
        return STEPS[self.step][0]

    @property
    def slot(self) -> int:
        """The slot that is right for this number."""
        return STEPS[self.step][1] + self.token

    def beside(self, other: "Source") -> str:
        """This source, with the coordinates that differ from the other's."""
        texts = [
            f"token {self.token} of the chunk at start_pos {STEPS[self.step][1]}",
            NAMES[self.kind] * (self.kind != other.kind),
            f"layer {self.layer}" * (self.layer != other.layer),
            f"row {self.row}" * (self.row != other.row),
            f"head {self.head}" * (self.head != other.head),
            f"channel {self.channel}" * (self.channel != other.channel),
        ]
        return ", ".join(filter(None, texts))


class Wrong(NamedTuple):
    """A returned number that is not the expected one; ``found`` is None if it was never passed to the cache."""

    step: int
    slot: int
    number: float
    found: Source | None
    expected: Source

    @property
    def is_moved(self) -> bool:
        """Whether it belongs elsewhere; otherwise the slot was not written, and holds its former content."""
        return self.found is not None and (
            self.found._replace(step=0, token=0) != self.expected._replace(step=0, token=0)
            or (self.found.layer, self.found.slot) != (self.expected.layer, self.slot)
        )


PLACES = (len(STEPS), *SHAPE, 13, SIZES.head_dim)
LOWEST = 2**22  # codes are exact in float32, and a sum of two is none of them
CODES = random.Random(0).sample(range(LOWEST, 2 * LOWEST), math.prod(PLACES))  # a mean of two is hardly ever one
INDICES: dict[float, int] = {code: index for index, code in enumerate(CODES)}


def encoded(step: int, T: int) -> Tensor:
    """Keys and values of one update, (2, B, K, T, D), of which each number has its own code."""
    return torch.tensor(CODES, dtype=torch.float32).reshape(PLACES)[step, :, :, :, :T]


def source(number: float) -> Source | None:
    """Where a number comes from; None if it was never passed to the cache."""
    index = INDICES.get(number)
    if index is None:
        return None
    places = []
    for size in reversed(PLACES):
        index, place = divmod(index, size)
        places.append(place)
    return Source(*reversed(places))


class Caches:
    """The reader's cache of all layers, or one for each layer, with ``update(layer, start_pos, xk, xv)``."""

    def __init__(self, written: Callable[..., Any], call: Caller, args: ModelArgs = SIZES) -> None:
        """Raises Raised if the class cannot be constructed."""
        call.names = ()
        call.function = lambda: construct(written, args)
        first = call()
        if not callable(getattr(first, "update", None)) and hasattr(first, "layers"):
            self.updates = [layer.update for layer in first.layers]  # as the library's KVCache
        elif callable(getattr(first, "update", None)) and takes_layer(first.update):
            self.updates = [first.update]
        elif callable(getattr(first, "update", None)):
            self.updates = [first.update, call().update]
        else:
            raise Raised("KVCache has no method update(start_pos, xk, xv)", AttributeError("update"))
        self.calls = []
        for update in self.updates:
            names = ("layer", "start_pos", "xk", "xv") if len(self.updates) == 1 else ("start_pos", "xk", "xv")
            self.calls.append(Caller(update, names, call.path))

    def update(self, layer: int, *given: Any) -> Any:
        if len(self.calls) == 1:
            return self.calls[0](layer, *given)
        return self.calls[layer](*given)


def takes_layer(update: Callable[..., Any]) -> bool:
    return required(update) >= 4 or "layer" in roles_of(update, ("layer", "start_pos", "xk", "xv"))


def construct(written: Callable[..., Any], args: ModelArgs) -> Any:
    """A cache of these sizes, whose constructor has the parameters of the exercise, or those of the library's."""
    values: dict[str, Any] = {name: getattr(args, name) for name in VALUES if name not in ("args", "batch_size")}
    values |= {"args": args, "batch_size": ROWS}
    found = parameters(written)
    roles = roles_of(written, VALUES)
    arguments, named = [], {}
    places = {1: ("args",), 2: ("args", "batch_size"), 4: VALUES[1:5], 5: VALUES[:5]}.get(required(written), ())
    if all(role or each.default is not each.empty for role, each in zip(roles, found)):
        named = {each.name: values[role] for role, each in zip(roles, found) if role}
    else:
        arguments = [values[name] for name in places]
    return written(*arguments, **named)


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    written = call.function
    yield from constructor_finding(written, call)
    caches = Caches(written, call)
    yield from caches.calls[0].order_finding("update")
    slots = torch.zeros(SIZES.n_layers, *SHAPE, SIZES.max_seq_len, SIZES.head_dim)
    values: list[Any] = []
    right: list[Tensor] = []  # (2, B, K, S, D)
    for step, (layer, start, T) in enumerate(STEPS):
        slots[layer, :, :, :, start : start + T] = encoded(step, T)
        right.append(slots[layer, :, :, :, : start + T].clone())
        try:
            values.append(caches.update(layer, start, *encoded(step, T)))
        except Raised as raised:
            values.append(raised)
    shaped = next((step for step, value in enumerate(values) if not has_shape(value, right[step])), len(STEPS))
    found = number_finding(values[:shaped], right) or result_finding(values, right)
    errors = [value for value in values if isinstance(value, Raised)]
    if found and not (errors and found.fault in (None, faults.NOT_WRITTEN)):
        yield found
        return
    if errors and errors[0] is values[-1]:
        _, start, T = STEPS[-1]
        sentence = f"start_pos {start} and T {T} need {start + T} of {SIZES.max_seq_len} slots; update raises"
        yield Finding(sentence, type(errors[0].error).__name__, "nothing", faults.LAST_SLOT)
        return
    if errors:
        raise errors[0]
    yield from requirements(written, call, caches)


def constructor_finding(written: Callable[..., Any], call: Caller) -> Iterator[Finding]:
    roles = roles_of(written, VALUES)
    if roles == ["batch_size", "args"] or (
        len(roles) == 4 and sorted(roles) == sorted(VALUES[1:5]) and roles != list(VALUES[1:5])
    ):
        expected = ", ".join(("args", "batch_size") if len(roles) == 2 else VALUES[1:5])
        yours = ", ".join(each.name for each in parameters(written))
        yield Finding("The order of the arguments of KVCache", f"({yours})", f"({expected})", faults.ORDER)


def call_text(step: int) -> str:
    layer, start, T = STEPS[step]
    return f"Layer {layer}, start_pos {start}, T {T}"


def has_shape(value: Any, right: Tensor) -> bool:
    """Whether the result is two tensors of the right shape, or an exception."""
    if isinstance(value, Raised):
        return True
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(torch.is_tensor(x) and x.shape == right[0].shape and x.dtype == torch.float32 for x in value)


def result_finding(values: list[Any], right: list[Tensor]) -> Finding | None:
    """The first result that is not two tensors of the right shapes."""
    for step, (value, expected) in enumerate(zip(values, right)):
        if has_shape(value, expected):
            continue
        shape = tuple(expected[0].shape)
        if not isinstance(value, tuple | list) or len(value) != 2 or not all(torch.is_tensor(x) for x in value):
            fault = faults.NOT_TWO
            if value is None:
                fault = faults.NOT_RETURNED
            elif torch.is_tensor(value) and value.shape == shape:
                fault = faults.ONE_RETURNED
            return Finding("update returns keys and values", kind(value), f"two tensors of {shape}", fault)
        for name, x in zip(NAMES, value):
            if x.dtype != torch.float32:
                sentence = f"The dtype of the {name}, for xk and xv in float32"
                return Finding(sentence, str(x.dtype)[6:], "float32", faults.CACHE_DTYPE)
            if x.shape != shape:
                sentence = f"{call_text(step)}; the shape of the {name}"
                return Finding(sentence, kind(x), str(shape), shape_fault(values, x, right[step]))
    return None


def shape_fault(values: list[Any], x: Tensor, right: Tensor) -> Fault | None:
    shape, expected = tuple(x.shape), tuple(right[0].shape)
    if x.numel() == right[0].numel():
        return faults.CACHE_AXES
    if len(shape) == 4 and (*shape[:2], shape[3]) == (*expected[:2], expected[3]):
        return count_fault(values)
    if shape[1:] == expected and len(shape) == 5:
        return faults.ALL_LAYERS
    if shape in ((1, *expected[1:]), expected[1:]):
        return faults.ONE_TEXT
    if shape in ((expected[0], 1, *expected[2:]), (expected[0], *expected[2:])):
        return faults.ONE_HEAD
    return None


def count_fault(values: list[Any]) -> Fault | None:
    """The rule that gives the number of slots that came back in all updates."""
    rules: list[tuple[Fault, Callable[[int, int], Any]]] = [
        (faults.STALE, lambda start, T: SIZES.max_seq_len),
        (faults.STALE, lambda start, T: min(start + T + 1, SIZES.max_seq_len)),
        (faults.ONLY_NEW, lambda start, T: T),
        (faults.OLD_ONLY, lambda start, T: start),
        (faults.ONE_TOKEN, lambda start, T: 1),
        (faults.ONE_TOKEN, lambda start, T: start + 1),
        (faults.SLOT_SHIFTED, lambda start, T: start + T - 1),
        *((faults.WRONG_T, lambda start, T, n=n: min(start + n, SIZES.max_seq_len)) for n in (2, 3, 4)),
    ]
    counts = [
        (value[0].shape[2], *STEPS[step][1:])
        for step, value in enumerate(values)
        if isinstance(value, tuple | list) and value[0].ndim == 4
    ]
    for fault, rule in rules:
        if all(count == rule(start, T) for count, start, T in counts):
            return fault
    appended = [sum(t for other, _, t in STEPS[: step + 1] if other == STEPS[step][0]) for step in range(len(STEPS))]
    grown = [value[0].shape[2] for value in values if not isinstance(value, Raised)]
    return faults.APPENDED if grown == appended[: len(grown)] else None


def number_finding(values: list[Any], right: list[Tensor]) -> Finding | None:
    """The first returned number that is not the expected one, and what all of them have in common."""
    wrong: list[Wrong] = []
    first = ""
    for step, (value, expected) in enumerate(zip(values, right)):
        if isinstance(value, Raised):
            continue
        found = torch.stack([x.detach().double() for x in value])  # (2, B, K, S, D)
        for place in (found != expected).permute(3, 0, 1, 2, 4).nonzero().tolist():  # the first slots first
            slot, which, row, head, channel = place
            number = float(found[which, row, head, slot, channel])
            origin = source(float(expected[which, row, head, slot, channel]))
            assert origin is not None
            wrong.append(Wrong(step, slot, number, source(number), origin))
            first = first or f"slot {slot} of the {NAMES[which]}, row {row}, head {head}, channel {channel}"
    if not wrong:
        return None
    one = next((each for each in wrong if each.is_moved), wrong[0])
    yours = one.found.beside(one.expected) if one.found else f"{one.number:g}, which was never stored"
    if one is not wrong[0]:
        row = f"row {one.expected.row}, head {one.expected.head}, channel {one.expected.channel}"
        first = f"slot {one.slot} of the {NAMES[one.expected.kind]}, {row}"
    sentence = f"{call_text(one.step)}; {first}, holds the number of"
    return Finding(sentence, yours, one.expected.beside(one.found or one.expected), number_fault(wrong, values, right))


def number_fault(wrong: list[Wrong], values: list[Any], right: list[Tensor]) -> Fault | None:
    moved = [(each, each.found) for each in wrong if each.found is not None and each.is_moved]
    if not moved:
        return unwritten_fault(wrong)
    pairs = [(found, each.expected) for each, found in moved]
    fields = {name for x, y in pairs for name, a, b in zip(Source._fields, x, y) if a != b}
    if any(x.layer != y.layer for x, y in pairs):
        return faults.LAYER
    if fields == {"kind"}:
        kinds = {x.kind for x, _ in pairs}
        return faults.EXCHANGED if len(kinds) == 2 else (faults.VALUES_ARE_KEYS, faults.KEYS_ARE_VALUES)[kinds.pop()]
    if "row" in fields and len({x.row for x, _ in pairs}) == 1:
        return faults.ONE_TEXT
    if fields == {"head"} and len({x.head for x, _ in pairs}) == 1:
        return faults.ONE_HEAD
    if fields <= {"row", "head", "channel"}:
        return faults.CACHE_AXES
    shifts = {each.slot - found.slot for each, found in moved}
    if len(shifts) == 1:
        return faults.SLOT_SHIFTED
    if all(each.slot == found.token for each, found in moved):
        return faults.WRITTEN_AT_0
    if fields == {"token"}:
        lengths = [(each, found, STEPS[found.step][2]) for each, found in moved]
        if all(found.token == T - 1 - each.expected.token for each, found, T in lengths):
            return faults.MIRRORED_SLOTS
        if all(found.token in (0, T - 1) for _, found, T in lengths):
            return faults.ONE_TOKEN
    return None


def unwritten_fault(wrong: list[Wrong]) -> Fault | None:
    """The fault of slots that do not hold what was written last."""
    if any(each.found is None and LOWEST / 100 < abs(each.number) < LOWEST * 100 for each in wrong):
        return faults.SUMMED if wrong[0].step > 1 else faults.SCALED
    kinds = {each.expected.kind for each in wrong}
    rows, heads = ({getattr(each.expected, name) for each in wrong} for name in ("row", "head"))
    if len(kinds) == 1:
        return faults.VALUES_NOT_WRITTEN if kinds == {1} else faults.KEYS_NOT_WRITTEN
    if len(rows) < ROWS:
        return faults.ONE_TEXT
    if len(heads) < SIZES.n_kv_heads:
        return faults.ONE_HEAD
    if all(each.slot < STEPS[each.step][1] and each.found is None for each in wrong):
        return faults.CLEARED
    own = [each for each in wrong if each.expected.step == each.step]
    lengths = {each.step: STEPS[each.step][2] for each in own}
    if own and all(length > 1 for length in lengths.values()):
        return faults.ONE_TOKEN
    return faults.NOT_WRITTEN


def requirements(written: Callable[..., Any], call: Caller, caches: Caches) -> Iterator[Finding]:
    for each in caches.calls:
        yield from each.overwritten_finding()
    yours = holds_graph(written, call)
    if yours != "no":
        yield Finding("Stored keys and values keep their graph", yours, "no", faults.ATTACHED)
    yours = keeps_tensors(written, call)
    if yours != "no":
        yield Finding("The cache changes if the caller overwrites xk and xv", yours, "no", faults.KEPT)
    errors = [error_of(written, call, start, T) for start, T in TOO_LONG]
    fault = faults.UNCHECKED
    if isinstance(errors[2], DELIBERATE) and not isinstance(errors[0], DELIBERATE):
        fault = faults.T_CHECKED
    elif isinstance(errors[0], DELIBERATE):
        fault = faults.OTHER_ERROR
    for (start, T), error in zip(TOO_LONG, errors):
        if not isinstance(error, ValueError):
            sentence = f"start_pos {start} and T {T} need slot {start + T - 1} of 0 .. 11; update raises"
            yield Finding(sentence, type(error).__name__ if error else "nothing", "ValueError", fault)
            return


def filled(T: int, value: float = 1.0) -> tuple[Tensor, Tensor]:
    shape = (ROWS, SIZES.n_kv_heads, T, SIZES.head_dim)
    return torch.full(shape, value), torch.full(shape, value + 1)


def error_of(written: Callable[..., Any], call: Caller, start: int, T: int) -> BaseException | None:
    """What the cache raises for T tokens after ``start``."""
    caches = Caches(written, call)
    if start:
        caches.update(0, 0, *filled(start))
    try:
        caches.update(0, start, *filled(T))
    except Raised as raised:
        return raised.error
    except Unwritten:
        return NotImplementedError()
    return None


def holds_graph(written: Callable[..., Any], call: Caller) -> str:
    """Whether keys stored in a step with gradients still have their graph in a later step: yes, no or an exception."""
    try:
        caches = Caches(written, call)
        caches.update(0, 0, *(x.requires_grad_() for x in filled(3)))
        value = caches.update(0, 3, *filled(2))
    except Raised as raised:
        return f"{type(raised.error).__name__} raised"
    return "yes" if any(x.requires_grad for x in value) else "no"


def keeps_tensors(written: Callable[..., Any], call: Caller) -> str:
    """Whether the stored keys and values change if the caller overwrites its tensors."""
    caches = Caches(written, call)
    keys, values = (x.requires_grad_(False) for x in filled(3))
    update = caches.calls[0]
    given = (0, 0, keys, values) if len(caches.calls) == 1 else (0, keys, values)
    update.function(*(given[place] for place in update.order))  # without a copy
    with torch.no_grad():
        keys.zero_()
        values.zero_()
    value = caches.update(0, 3, *filled(2))
    return "no" if bool((value[0][:, :, :3] == 1).all()) and bool((value[1][:, :, :3] == 2).all()) else "yes"
