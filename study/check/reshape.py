"""Measure ``reshape_for_broadcast``: which row and column of the table meets each number of x."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .calls import Caller, Raised, kind
from .forms import FORMS, STACKED, Conventions, close, row_fault, write_table
from .verdict import Finding

EQUAL = (3, 3, 3, 3)  # B, T, H, D/2: equal, so that a table along another axis raises no error
OTHER_SIZES = (2, 5, 4, 6)


def for_broadcast(table: Any, x: Tensor) -> Any:
    """The table, or each part of a tuple: (T, D/2) -> (1, T, 1, D/2)."""
    if isinstance(table, tuple | list):
        return tuple(part[None, :, None] for part in table)
    return table[None, :, None]


def arguments(conventions: Conventions, sizes: tuple[int, ...]) -> list[tuple[Any, Tensor]]:
    """Tables and x as the function may expect them: of a table (cos, sin), one part or both."""
    batch, tokens, heads, pairs = sizes
    rows, columns = torch.meshgrid(torch.arange(1.0, tokens + 1), torch.arange(1.0, pairs + 1), indexing="ij")
    cells = 10 * rows + columns  # a number says its row and column
    tables: list[Any] = []
    for form in FORMS if conventions.table in ("", STACKED) else [conventions.table]:
        if form == STACKED:  # such a table has one axis too many for this function
            continue
        table = write_table(form, torch.complex(cells, cells + 50).to(torch.complex128))
        tables += [table[0], table] if isinstance(table, tuple) else [table]
    firsts = [table[0] if isinstance(table, tuple) else table for table in tables]
    xs = [torch.full((batch, tokens, heads, part.shape[-1]), 0.7, dtype=part.dtype) for part in firsts]
    return list(zip(tables, xs))


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    wrong: list[Finding | Raised] = []
    for number, (table, x) in enumerate(arguments(conventions, EQUAL)):
        value = call.attempt(table, x)
        found = value if isinstance(value, Raised) else reshape_finding(value, table, x)
        if found is None:
            yield from requirements(call, *arguments(conventions, OTHER_SIZES)[number])
            return
        wrong.append(found)
    shown = next((found for found in wrong if isinstance(found, Finding)), wrong[0])
    if isinstance(shown, Raised):
        raise shown
    yield shown


def reshape_finding(value: Any, table: Any, x: Tensor) -> Finding | None:
    """What is wrong with the returned table; None if it broadcasts with x as the table does along the tokens."""
    parts, found = [table], [value]
    if isinstance(table, tuple):
        parts, found = list(table), list(value) if isinstance(value, tuple | list | Tensor) else []
    sentence, expected = f"For x of {tuple(x.shape)}, the shape of the table", f"(1, {x.shape[1]}, 1, {x.shape[3]})"
    if len(found) != len(parts) or not all(map(torch.is_tensor, found)):
        return Finding(sentence, kind(value), expected, "NOT_RETURNED" if value is None else "")
    for each, part in zip(found, parts):
        rows = part.reshape(x.shape[1], x.shape[3]).to(torch.complex128)
        right = rows[None, :, None].expand(x.shape)
        try:
            spread = each.expand(x.shape).to(torch.complex128)
        except RuntimeError:
            return Finding(sentence, kind(each), expected, "BROADCAST_AXES")
        if not close(spread, right):
            place = tuple(((spread - right).abs() > 0.5).nonzero()[0].tolist())
            sentence = "The number of the table for row {} of the batch, token {}, head {}, pair {}".format(*place)
            yours, wanted = (f"{complex(numbers[place]):.4g}" for numbers in (spread, right))
            return Finding(sentence, yours, wanted, number_fault(spread, rows, x))
    return None


def number_fault(spread: Tensor, rows: Tensor, x: Tensor) -> str:
    """The fault of a table that meets the numbers of x as ``spread``, (B, T, H, D/2), and has these rows, (T, D/2)."""
    right = rows[None, :, None]
    for numbers, fault in ((x, "X_RETURNED"), (x * right, "X_RETURNED"), (right.conj(), "SIGN"), (right.real, "REAL")):
        if close(spread, numbers.expand(x.shape) + 0j):
            return fault
    if not torch.isin(spread.real.round(), rows.real).all():
        return ""
    batch, token, head, pair = torch.meshgrid(*map(torch.arange, x.shape), indexing="ij")
    row, column = spread.real.round().long() // 10 - 1, spread.real.round().long() % 10 - 1
    fault = row_fault(row, batch, token, head) if torch.equal(column, pair) else ""
    return fault or "BROADCAST_AXES"


def requirements(call: Caller, table: Any, x: Tensor) -> Iterator[Finding]:
    """Other sizes, and a ValueError for tables that do not fit x."""
    found = reshape_finding(call(table, x), table, x)
    if found:
        yield found
        return
    parts = table if isinstance(table, tuple) else (table,)
    changes = (lambda x: x[:1], lambda x: torch.cat((x, x)), lambda x: x[:, :1], lambda x: x.T.contiguous())
    for change in changes:
        changed = tuple(map(change, parts))
        value = call.attempt(changed if isinstance(table, tuple) else changed[0], x)
        name = type(value.error).__name__ if isinstance(value, Raised) else "nothing"
        if not isinstance(value, Raised) or not isinstance(value.error, ValueError):
            sentence = f"A table of {tuple(changed[0].shape)} does not fit x of {tuple(x.shape)}; the exception raised"
            yield Finding(sentence, name, "ValueError", "SHAPE_UNCHECKED")
            return
