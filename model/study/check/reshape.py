"""``reshape_for_broadcast``: the table laid along the tokens of x, and a ValueError for a table of another shape."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, Trial, parameters
from .faults import Fault
from .forms import FORMS, Conventions, Form
from .recipe import same
from .table import angles, unit
from .verdict import Comparison, Property, Verdict, demanded, in_other_order, kind, wrong

FUNCTION = "reshape_for_broadcast"
LAID = ((1, 2, 1, 3), (1, 3, 3, 6), (2, 5, 4, 8), (1, 7, 6, 10))  # B, T, H, D; in the second every axis fits
SQUARE, MAIN = 1, 2
LOOK = "Look at the axes: freqs_cis[None, :, None, :] adds one for the batch and one for the heads."


def lay(table: Any, x: Tensor) -> Any:
    """(T, D/2) -> (1, T, 1, D/2), and each part of a tuple so."""
    if isinstance(table, tuple | list):
        return tuple(part[None, :, None] for part in table)
    return table[None, :, None]


@dataclass(frozen=True)
class ReshapeProbe:
    """What ``reshape_for_broadcast`` is called with, and the tables (T, D/2) that it should lay along x."""

    table: Any  # one of ``parts``, or all of them in the reader's form
    x: Tensor  # (B, T, H, D/2), or D wide if every angle is there twice
    parts: list[Tensor]


def calls_of(form: Form, whole: bool) -> list[ReshapeProbe]:
    """A call for each size of ``LAID``; ``whole``: with cosines and sines at once, for a form that has them apart."""
    calls = []
    for B, T, H, D in LAID:
        table = form.write(unit(angles(D // 2 * 2, T, 10000.0)))
        if form.container not in ("tuple", "stack"):
            parts = [table]
        elif whole:
            parts = list(table)
        else:
            parts = [table[0]]
        x = torch.ones(B, T, H, parts[0].shape[-1], dtype=parts[0].dtype)
        calls.append(ReshapeProbe(table if whole else parts[0], x, parts))
    return calls


def lies_along(value: Any, table: Tensor, x: Tensor) -> bool:
    """Whether ``value``, broadcast, is the table (T, D/2) laid along the tokens of x (B, T, H, D/2)."""
    if not isinstance(value, Tensor):
        return False
    if value.numel() == table.numel() and value.shape[-2:] == (x.shape[1], x.shape[3]):
        return False  # along the heads, though it broadcasts against x only where T equals H
    rows = table.reshape(-1, x.shape[-1])
    try:
        return torch.equal(value.expand(x.shape), rows.reshape(1, len(rows), 1, -1).expand(x.shape))
    except RuntimeError:
        return False


def judge_reshape(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function = names[FUNCTION]
    forms = [form for form in FORMS if form.container != "last"]
    if conventions.table and conventions.table.container != "last":
        forms = [conventions.table]
    attempts = []
    for form, whole in product(forms, (False, True)):
        calls = calls_of(form, whole)
        trials = caller.trials(function, [(call.table, call.x) for call in calls], parameters(FUNCTION))
        if all(is_laid(trial.value, call) for trial, call in zip(trials, calls)):
            return demanded(FUNCTION, reshape_demands(function, calls, trials, caller), "right")
        attempts.append((sum(trial.error is not None for trial in trials), calls, trials))
    _, calls, trials = min(attempts, key=lambda attempt: attempt[0])
    given = [(call.table, call.x) for call in calls]
    order = caller.other_order(function, given, lambda value, number: is_laid(value, calls[number]))
    if order:
        return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    ran = [(trial.value, call) for trial, call in zip(trials, calls) if trial.error is None]
    fault = next((fault for fault, is_it in RESHAPE_FAULTS if ran and all(is_it(*each) for each in ran)), None)
    problem = next((trial.problem for trial in trials if trial.problem), "")
    properties, sides = reshape_properties(ran), reshape_comparisons(ran)
    return wrong(FUNCTION, [fault] if fault else None, properties, sides, 7, problem)


def in_parts(value: Any, call: ReshapeProbe) -> list[Any]:
    several = len(call.parts) == 2 and isinstance(value, tuple | list)
    return list(value) if several else [value]


def is_laid(value: Any, call: ReshapeProbe) -> bool:
    laid = in_parts(value, call)
    return len(laid) == len(call.parts) and all(lies_along(x, part, call.x) for x, part in zip(laid, call.parts))


def gives(formula: Callable[[Tensor, Tensor], Any]) -> Callable[[Any, ReshapeProbe], bool]:
    """A test whether a value is what ``formula`` makes of the table (T, D/2) and x, in any number of axes of size 1."""

    def is_it(value: Any, call: ReshapeProbe) -> bool:
        laid = in_parts(value, call)
        if len(laid) != len(call.parts) or not all(isinstance(x, Tensor) for x in laid):
            return False
        try:
            return all(same(without_ones(x), without_ones(formula(part, call.x))) for x, part in zip(laid, call.parts))
        except RuntimeError:  # this mistake cannot be made with these shapes
            return False

    return is_it


def without_ones(x: Tensor) -> Tensor:
    """The tensor without the axes of size 1 in front, as broadcasting ignores them."""
    while x.ndim > 1 and x.shape[0] == 1:
        x = x[0]
    return x


RESHAPE_FAULTS: list[tuple[Fault, Callable[[Any, ReshapeProbe], bool]]] = [
    (known.NOT_RETURNED, lambda value, call: value is None),
    (known.HEADS, gives(lambda table, x: table)),
    (known.HEADS, gives(lambda table, x: table[: x.shape[2]])),
    (known.HEADS, gives(lambda table, x: table.expand(x.shape))),
    (known.BATCH, gives(lambda table, x: table[:, None, None])),
    (known.AXES, gives(lambda table, x: table[:, None])),  # (T, 1, D/2): broadcasts, but is not told from batches
    (known.TRANSPOSED_TABLE, gives(lambda table, x: table.T)),
    (known.TRANSPOSED_TABLE, gives(lambda table, x: table.T[:, None])),
    (known.TRANSPOSED_TABLE, gives(lambda table, x: table.T[None, :, None])),
    (known.VIEWED, gives(lambda table, x: table.reshape(1, x.shape[3], 1, x.shape[1]).transpose(1, 3))),
    (known.SIGN, gives(lambda table, x: table.conj()[None, :, None])),
    (known.SIGN, gives(lambda table, x: table.conj()[None, :, None].resolve_conj())),
    (known.REAL, gives(lambda table, x: table.real[None, :, None])),
    (known.X_RETURNED, gives(lambda table, x: x)),
    (known.X_RETURNED, gives(lambda table, x: x * table[None, :, None])),
    (known.ONE_ROW, gives(lambda table, x: table[:1, None])),
    (known.AXES, gives(lambda table, x: table[..., None, None])),
    (known.AXES, gives(lambda table, x: table[:, None, :, None])),
    (known.AXES, gives(lambda table, x: table[:, :, None])),
]


def reshape_properties(ran: list[tuple[Any, ReshapeProbe]]) -> Iterator[Property]:
    for value, call in ran:
        for x, part in zip(in_parts(value, call), call.parts):
            expected = str((1, call.x.shape[1], 1, call.x.shape[3]))
            sentence = f"For x of {tuple(call.x.shape)} the table lies along axis 1; its shape"
            if not lies_along(x, part, call.x):
                yield Property(sentence, kind(x), expected, LOOK)
    for value, call in ran:
        for x, part in zip(in_parts(value, call), call.parts):
            if isinstance(x, Tensor) and x.shape[1:] == (call.x.shape[1], 1, call.x.shape[3]):
                found = "as they were" if torch.equal(x[0, :, 0], part) else "changed"
                yield Property(f"For x of {tuple(call.x.shape)} the numbers of the table", found, "as they were", LOOK)


def reshape_comparisons(ran: list[tuple[Any, ReshapeProbe]]) -> Iterator[Comparison]:
    for value, call in ran:
        results = []
        for x, part in zip(in_parts(value, call), call.parts):
            results.append(("result", x, part[None, :, None]))
        yield Comparison(f"{FUNCTION}(table {tuple(call.parts[0].shape)}, x {tuple(call.x.shape)})", results)


def reshape_demands(
    function: Callable[..., Any], calls: list[ReshapeProbe], trials: list[Trial], caller: Caller
) -> Iterator[tuple[Fault, Property]]:
    changed = [name for trial in trials for name in trial.changed]
    yield known.CHANGED, Property("What it is given stays as it is; overwritten", ", ".join(dict.fromkeys(changed)), "")
    call = calls[MAIN]
    if call.parts[0].ndim != 2 or (isinstance(call.table, Tensor) and call.table.ndim != 2):
        return  # a table that is laid out already has no other shape
    for change in (fewer_rows, more_rows, fewer_columns):
        table = change(call.table)
        trial = caller.trial(function, (table, call.x))
        part = table[0] if isinstance(table, tuple) else table
        sentence = f"A table of {tuple(part.shape)} for x of {tuple(call.x.shape)} is refused; it ends in"
        yield known.SHAPE_UNCHECKED, Property(sentence, ending(trial), "ValueError")


def ending(trial: Trial) -> str:
    if isinstance(trial.error, ValueError):
        return "ValueError"
    return type(trial.error).__name__ if trial.error else "no exception"


def fewer_rows(table: Any) -> Any:
    return tuple(part[:1] for part in table) if isinstance(table, tuple) else table[:1]


def more_rows(table: Any) -> Any:
    return tuple(torch.cat((part, part)) for part in table) if isinstance(table, tuple) else torch.cat((table, table))


def fewer_columns(table: Any) -> Any:
    return tuple(part[..., :1] for part in table) if isinstance(table, tuple) else table[..., :1]
