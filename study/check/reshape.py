"""Measure ``reshape_for_broadcast``: which row and column of the table meets each number of x."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import faults
from .calls import Caller, Raised, kind
from .faults import Fault
from .forms import FORMS, Conventions, Form
from .verdict import Finding

ARGUMENTS = ("freqs_cis", "x")
SIZES = ((2, 5, 4, 6), (3, 3, 3, 3))  # B, T, H, D/2; if the first raises, the equal ones do not


def for_broadcast(table: Any, x: Tensor) -> Any:
    """The table, or each part of a tuple: (T, D/2) -> (1, T, 1, D/2)."""
    if isinstance(table, tuple | list):
        return tuple(part[None, :, None] for part in table)
    return table[None, :, None]


class Probe:
    """A table whose numbers are their row and column, (1 + row) + j (1 + column) or one of both, and a tensor x."""

    def __init__(self, form: Form, both: bool, sizes: tuple[int, ...]) -> None:
        batch, tokens, heads, pairs = sizes
        rows, columns = torch.meshgrid(torch.arange(1.0, tokens + 1), torch.arange(1.0, pairs + 1), indexing="ij")
        numbers = rows + columns / 100
        table = form.write(torch.complex(numbers, numbers + 50).to(torch.complex128))
        self.is_tuple = form.container in ("tuple", "stack")
        self.both = both
        self.parts = list(table) if self.is_tuple else [table]
        self.table = table if both or not self.is_tuple else self.parts[0]
        if not both:
            self.parts = self.parts[:1]
        self.x = torch.full((batch, tokens, heads, self.parts[0].shape[-1]), 2.0, dtype=self.parts[0].dtype)

    def read(self, value: Any) -> list[Any]:
        """The parts of the returned table; empty if their number is wrong."""
        found = list(value) if len(self.parts) == 2 and isinstance(value, tuple | list | Tensor) else [value]
        return found if len(found) == len(self.parts) else []

    def is_right(self, value: Any) -> bool:
        found = self.read(value)
        return bool(found) and all(fault_of(x, part, self.x) == () for x, part in zip(found, self.parts))


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("reshape_for_broadcast")
    forms = [form for form in FORMS if form.container != "last"]
    if conventions.table and conventions.table.container != "last":
        forms = [conventions.table]
    tried: list[tuple[Probe, Any]] = []
    for sizes in SIZES:
        for form, both in product(forms, (False, True)):
            probe = Probe(form, both, sizes)
            value = call.attempt(probe.table, probe.x)
            if sizes is SIZES[0] and probe.is_right(value):
                yield from requirements(call, probe)
                return
            tried.append((probe, value))
        if not all(isinstance(value, Raised) for _, value in tried):
            break
    probe, value = next(((probe, value) for probe, value in tried if not isinstance(value, Raised)), tried[0])
    error = tried[0][1]
    if isinstance(error, Raised) and (isinstance(value, Raised) or probe.is_right(value)):
        raise error
    yield finding_of(probe, value)


def finding_of(probe: Probe, value: Any) -> Finding:
    shape = tuple(probe.x.shape)
    found = probe.read(value)
    expected = f"(1, {shape[1]}, 1, {shape[3]})"
    sentence = f"For x of {shape}, the shape of the table"
    if value is None:
        return Finding(sentence, "None", expected, faults.NOT_RETURNED)
    if not found or not all(torch.is_tensor(x) for x in found):
        return Finding(sentence, kind(value), expected)
    for x, part in zip(found, probe.parts):
        wrong = fault_of(x, part, probe.x)
        if wrong == ():
            continue
        if tuple(x.shape) != (1, shape[1], 1, shape[3]):
            yours = str(tuple(x.shape)) if tuple(x.shape) != (shape[1], shape[3]) else f"{tuple(x.shape)}, unchanged"
            return Finding(sentence, yours, expected, wrong[0])
        yours, right = (f"{complex(number[0, 1, 0, 0]):.4g}" for number in (x, part[None, :, None]))
        return Finding("The number of row 1, column 0 of the table is unchanged", yours, right, wrong[0])
    return Finding(sentence, kind(value), expected)


def fault_of(value: Any, table: Tensor, x: Tensor) -> tuple[Fault | None, ...]:
    """Empty if the value broadcasts with x as the table does along the tokens; else the fault, None if unknown."""
    if not isinstance(value, Tensor):
        return (None,)
    T, H, width = x.shape[1:]
    rows = table.reshape(-1, width)
    right = rows.reshape(1, T, 1, width).expand(x.shape) if len(rows) == T else None
    if value.shape == x.shape and right is not None and (close(value, x) or close(value, x * right)):
        return (faults.X_RETURNED,)
    along_heads = value.numel() == table.numel() and value.shape[-2:] == (T, width)  # broadcasts only if T equals H
    try:
        spread = value.expand(x.shape)
    except RuntimeError:
        spread = None
    if spread is None or along_heads or right is None:
        first = value
        while first.ndim > 1 and first.shape[0] == 1:
            first = first[0]
        if first.shape in ((T, 1, 1, width), (x.shape[0], 1, 1, width)):
            return (faults.BATCH,)
        return (faults.HEADS if first.shape in ((T, width), (H, width)) else faults.BROADCAST_AXES,)
    if close(spread, right):
        return ()
    if close(spread, right.conj()):
        return (faults.SIGN,)
    if close(spread, right.real):
        return (faults.REAL,)
    numbers = (spread.real if spread.is_complex() else spread).double() % 50
    row, column = numbers.floor().long() - 1, ((numbers - numbers.floor()) * 100).round().long() - 1
    b, t, h, i = torch.meshgrid(*map(torch.arange, spread.shape), indexing="ij")
    if not torch.equal(column, i):
        known = bool(((column >= 0) & (column < width)).all())
        return (faults.BROADCAST_AXES if known else None,)
    axes = [(row[:1, :1, :1, :1].expand_as(row), faults.ONE_ROW), (h, faults.HEADS), (b, faults.BATCH)]
    axes += [(T - 1 - t, faults.ROW_ORDER), ((t + 1) % T, faults.ROW_SHIFTED), ((t - 1) % T, faults.ROW_SHIFTED)]
    return (next((fault for place, fault in axes if torch.equal(row, place)), None),)


def close(x: Tensor, y: Tensor) -> bool:
    return x.is_complex() == y.is_complex() and x.shape == y.shape and bool(((x - y).abs() < 1e-4).all())


def requirements(call: Caller, probe: Probe) -> Iterator[Finding]:
    yield from call.overwritten_finding()
    if probe.parts[0].ndim != 2 or not (isinstance(probe.table, tuple) or probe.table.ndim == 2):
        return  # a table with more axes is already reshaped
    for change in (lambda part: part[:1], lambda part: torch.cat((part, part)), lambda part: part[:, :1]):
        changed = tuple(change(part) for part in probe.parts)
        value = call.attempt(changed if isinstance(probe.table, tuple) else changed[0], probe.x)
        name = "nothing"
        if isinstance(value, Raised):
            name = "ValueError" if isinstance(value.error, ValueError) else type(value.error).__name__
        if name != "ValueError":
            shapes = f"A table of {tuple(changed[0].shape)} does not fit x of {tuple(probe.x.shape)}"
            yield Finding(f"{shapes}; the exception raised", name, "ValueError", faults.SHAPE_UNCHECKED)
            return
