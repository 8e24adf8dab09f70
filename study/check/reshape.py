"""Judge ``reshape_for_broadcast``: the shape of its result, and the ValueError for a table that does not fit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, Trial, error_count, first_problem, parameters, raised_name
from .faults import Fault
from .forms import FORMS, Conventions, Form
from .properties import Comparison, Property, Requirement, keeps_arguments, kind
from .recipe import Explanation, same
from .table import angles, unit
from .verdict import Verdict, in_other_order, with_requirements, wrong

FUNCTION = "reshape_for_broadcast"
SIZES = ((1, 2, 1, 2), (1, 3, 3, 6), (2, 5, 4, 8), (1, 7, 6, 10))  # B, T, H, D; in the second, T, H and D/2 are equal
MAIN = 2  # the index of the sizes in which T differs from B, H and D/2
LOOK = "Look at the axes: freqs_cis[None, :, None, :] adds one for the batch and one for the heads."


def for_broadcast(table: Any, x: Tensor) -> Any:
    """The table, or each part of a tuple: (T, D/2) -> (1, T, 1, D/2)."""
    if isinstance(table, tuple | list):
        return tuple(part[None, :, None] for part in table)
    return table[None, :, None]


@dataclass(frozen=True)
class ReshapeProbe:
    """The arguments of one call, and the tables that the function should reshape."""

    table: Any  # one of ``parts``, or all of them in the reader's form
    x: Tensor  # (B, T, H, D/2), or D wide if the table has every angle twice
    parts: list[Tensor]  # (T, D/2) each


def probes_of(form: Form, both_parts: bool) -> list[ReshapeProbe]:
    """A probe for each of ``SIZES``. With ``both_parts`` it has cosines and sines, if the form has two parts."""
    probes = []
    for B, T, H, D in SIZES:
        table = form.write(unit(angles(D, T, 10000.0)))
        if form.container not in ("tuple", "stack"):
            parts = [table]
        elif both_parts:
            parts = list(table)
        else:
            parts = [table[0]]
        x = torch.full((B, T, H, parts[0].shape[-1]), 2, dtype=parts[0].dtype)  # 1 would hide a product with x
        probes.append(ReshapeProbe(table if both_parts else parts[0], x, parts))
    return probes


def broadcasts_along_tokens(value: Any, table: Tensor, x: Tensor) -> bool:
    """Whether ``value`` broadcasts with x (B, T, H, D/2) as the table (T, D/2) along the tokens.

    So (1, T, 1, D/2) is right, and (T, 1, D/2) too.
    """
    if not isinstance(value, Tensor):
        return False
    if value.numel() == table.numel() and value.shape[-2:] == (x.shape[1], x.shape[3]):
        return False  # along the heads, which broadcasts only if T equals H
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
    for form, both_parts in product(forms, (False, True)):
        probes = probes_of(form, both_parts)
        trials = caller.trials(function, [(probe.table, probe.x) for probe in probes], parameters(FUNCTION))
        if all(is_right(trial.value, probe) for trial, probe in zip(trials, probes)):
            return with_requirements(FUNCTION, reshape_requirements(function, probes, trials, caller), "right")
        attempts.append((probes, trials))
    probes, trials = min(attempts, key=lambda attempt: error_count(attempt[1]))
    given = [(probe.table, probe.x) for probe in probes]
    order = caller.other_order(lambda: function, given, lambda value, number: is_right(value, probes[number]))
    if order:
        return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    results = [(trial.value, probe) for trial, probe in zip(trials, probes) if trial.error is None]
    explanation = reshape_explanation(results) if results else None
    return wrong(
        FUNCTION, explanation, reshape_properties(results), reshape_comparisons(results), 7, first_problem(trials)
    )


def parts_of(value: Any, probe: ReshapeProbe) -> list[Any]:
    if len(probe.parts) == 2 and isinstance(value, tuple | list):
        return list(value)
    return [value]


def is_right(value: Any, probe: ReshapeProbe) -> bool:
    parts = parts_of(value, probe)
    if len(parts) != len(probe.parts):
        return False
    return all(broadcasts_along_tokens(x, part, probe.x) for x, part in zip(parts, probe.parts))


# The result of each mistake for the table (T, D/2) and x (B, T, H, D/2); leading axes of size 1 are not compared.
MISTAKES: list[tuple[Fault, Callable[[Tensor, Tensor], Tensor]]] = [
    (known.HEADS, lambda table, x: table),
    (known.HEADS, lambda table, x: table[: x.shape[2]]),
    (known.HEADS, lambda table, x: table.expand(x.shape)),
    (known.BATCH, lambda table, x: table[:, None, None]),
    (known.BROADCAST_AXES, lambda table, x: table.T),
    (known.BROADCAST_AXES, lambda table, x: table.T[:, None]),
    (known.BROADCAST_AXES, lambda table, x: table.T[None, :, None]),
    (known.BROADCAST_AXES, lambda table, x: table.reshape(1, x.shape[3], 1, x.shape[1]).transpose(1, 3)),
    (known.SIGN, lambda table, x: table.conj()[None, :, None]),
    (known.REAL, lambda table, x: table.real[None, :, None]),
    (known.X_RETURNED, lambda table, x: x),
    (known.X_RETURNED, lambda table, x: x * table[None, :, None]),
    (known.ONE_ROW, lambda table, x: table[:1, None]),
    (known.BROADCAST_AXES, lambda table, x: table[..., None, None]),
    (known.BROADCAST_AXES, lambda table, x: table[:, None, :, None]),
    (known.BROADCAST_AXES, lambda table, x: table[:, :, None]),
]


def reshape_explanation(results: list[tuple[Any, ReshapeProbe]]) -> Explanation | None:
    if all(value is None for value, _ in results):
        return (known.NOT_RETURNED,)
    for fault, formula in MISTAKES:
        if all(is_mistake(value, probe, formula) for value, probe in results):
            return (fault,)
    return None


def is_mistake(value: Any, probe: ReshapeProbe, formula: Callable[[Tensor, Tensor], Tensor]) -> bool:
    parts = parts_of(value, probe)
    if len(parts) != len(probe.parts) or not all(isinstance(x, Tensor) for x in parts):
        return False
    try:
        expected = [without_leading_ones(formula(part, probe.x)) for part in probe.parts]
    except RuntimeError:  # this mistake is impossible with these shapes
        return False
    return same([without_leading_ones(x) for x in parts], expected)


def without_leading_ones(x: Tensor) -> Tensor:
    """The tensor without leading axes of size 1, which broadcasting ignores."""
    while x.ndim > 1 and x.shape[0] == 1:
        x = x[0]
    return x


def reshape_properties(results: list[tuple[Any, ReshapeProbe]]) -> Iterator[Property]:
    for value, probe in results:
        for x, part in zip(parts_of(value, probe), probe.parts):
            expected = str((1, probe.x.shape[1], 1, probe.x.shape[3]))
            sentence = f"For x of {tuple(probe.x.shape)} the table is along axis 1; its shape"
            if not broadcasts_along_tokens(x, part, probe.x):
                yield Property(sentence, kind(x), expected, LOOK)
    for value, probe in results:
        for x, part in zip(parts_of(value, probe), probe.parts):
            if isinstance(x, Tensor) and x.shape[1:] == (probe.x.shape[1], 1, probe.x.shape[3]):
                numbers = x[0, :, 0].to(torch.complex128)  # torch.equal does not support every pair of dtypes
                found = "unchanged" if torch.equal(numbers, part.to(torch.complex128)) else "changed"
                yield Property(f"For x of {tuple(probe.x.shape)} the numbers of the table", found, "unchanged", LOOK)


def reshape_comparisons(results: list[tuple[Any, ReshapeProbe]]) -> Iterator[Comparison]:
    for value, probe in results:
        pairs = zip(parts_of(value, probe), probe.parts)
        yield Comparison(
            f"{FUNCTION}(table {tuple(probe.parts[0].shape)}, x {tuple(probe.x.shape)})",
            [("result", x, part[None, :, None]) for x, part in pairs],
        )


def reshape_requirements(
    function: Callable[..., Any], probes: list[ReshapeProbe], trials: list[Trial], caller: Caller
) -> Iterator[Requirement]:
    yield keeps_arguments(trials)
    x, parts = probes[MAIN].x, probes[MAIN].parts
    is_tuple = isinstance(probes[MAIN].table, tuple)
    if parts[0].ndim != 2 or not (is_tuple or probes[MAIN].table.ndim == 2):
        return  # a table with more axes is already reshaped
    for change in (lambda part: part[:1], lambda part: torch.cat((part, part)), lambda part: part[:, :1]):
        changed = tuple(change(part) for part in parts)
        trial = caller.trial(function, (changed if is_tuple else changed[0], x))
        sentence = f"A table of {tuple(changed[0].shape)} does not fit x of {tuple(x.shape)}; the exception raised"
        yield known.SHAPE_UNCHECKED, Property(sentence, raised_name(trial), "ValueError")
