"""Measure ``apply_rotary_emb``: from which input each output comes, and by which formula of which angle.

The function is linear in queries and keys, so one-hot inputs show its matrix. The angles of the tables are random, so
that every coefficient tells which row and which column of the table it was computed from.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import faults
from .calls import Caller, Raised, kind, required
from .faults import Fault
from .forms import FORMS, Conventions, Form, angles, close, unit
from .verdict import Finding

ARGUMENTS = ("xq", "xk", "freqs_cis")
B, T, H, D = 2, 3, 3, 6  # T, H, K and D/2 are equal, so that a table along another axis raises no error
SHAPE = (B, T, H, D)
SIZE = B * T * H * D
SIZES = (1, 5, 4, 2, 8)  # B, T, H, K, D of the last probe
TABLES = 12  # with different angles, from which the five coefficients of a formula are fitted
LAYOUTS = ("neighbours", "halves")
AXES = ("batch", "token", "head", "channel")
SOME = (faults.SOME_BATCH, faults.SOME_TOKENS, faults.SOME_HEADS, faults.SOME_PAIRS)
NO_ANGLE = (-1, -1)

# A coefficient is a sum of these, with the cosine c and the sine s of one angle. s^2 is 1 - c^2.
TERMS = ("1", "cos a", "sin a", "cos^2 a", "cos a sin a")
ZERO, ONE, C, S = torch.eye(5, dtype=torch.float64)[[0, 0, 1, 2]] * torch.tensor([[0.0], [1], [1], [1]])
RIGHT = torch.stack((torch.stack((C, -S)), torch.stack((S, C))))  # (2, 2, 5): x cos a - y sin a, x sin a + y cos a
IDENTITY = torch.stack((torch.stack((ONE, ZERO)), torch.stack((ZERO, ONE))))
C2, CS = torch.eye(5, dtype=torch.float64)[3:]  # cos^2 a and cos a sin a


def rotated(x: Tensor, angle: Tensor, layout: str) -> Tensor:
    """x (B, T, H, D), rotated by angle (T, D/2), float64."""
    x, c, s = x.double(), angle.cos()[None, :, None], angle.sin()[None, :, None]
    if layout == "halves":
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def with_table(function: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """The reader's function; a table (cos, sin) is passed as two arguments if the function takes four."""
    if form.container != "tuple" or required(function) < 4:
        return function
    return lambda xq, xk, table: function(xq, xk, *table)


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("apply_rotary_emb")
    function, own = call.function, conventions.table
    ranks: dict[Form, int] = {}
    for form in dict.fromkeys([own, *FORMS] if own else FORMS):
        call.function = with_table(function, form)
        ranks[form] = rank(call, form)
        if ranks[form] == 0:
            break
    best = min(ranks, key=lambda form: ranks[form])
    if ranks[best] == 0 and own and best != own and "precompute_freqs_cis" in conventions.right:
        sentence = "It reads the table in the form that precompute_freqs_cis returns"
        fault = faults.MIXED if own._replace(width=best.width) == best else faults.OTHER_FORM
        yield Finding(sentence, str(best), str(own), fault)
        return
    conventions.table = own if ranks[best] and own else best
    call.function = with_table(function, conventions.table)
    yield from measured(call, conventions.table, conventions)


def rank(call: Caller, form: Form) -> int:
    """How well the function reads tables of one form: 0 if it is right, 1 if it is wrong, 2 if it raises."""
    value = call.attempt(*random_arguments(SIZES, form))
    right = random_results(SIZES)
    if any(is_rotated(value, right[layout]) for layout in LAYOUTS):
        return 0
    return 2 if isinstance(value, Raised) else 1


def random_inputs(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of sizes B, T, H, K, D, and RoPE's angles from position 20 on."""
    batch, tokens, heads, kv_heads, dim = sizes
    generator = torch.Generator().manual_seed(1)
    xq = torch.randn(batch, tokens, heads, dim, generator=generator)
    xk = torch.randn(batch, tokens, kv_heads, dim, generator=generator)
    return xq, xk, angles(dim, 20 + tokens, 500.0)[20:]


def random_arguments(sizes: tuple[int, ...], form: Form) -> tuple[Tensor, Tensor, Any]:
    xq, xk, angle = random_inputs(sizes)
    return xq, xk, form.write(unit(angle))


def random_results(sizes: tuple[int, ...]) -> dict[str, list[Tensor]]:
    xq, xk, angle = random_inputs(sizes)
    return {layout: [rotated(x, angle, layout) for x in (xq, xk)] for layout in LAYOUTS}


def is_rotated(value: Any, right: list[Tensor]) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(torch.is_tensor(x) and not x.is_complex() and close(x.double(), y) for x, y in zip(value, right))


def measured(call: Caller, form: Form, conventions: Conventions) -> Iterator[Finding]:
    found = list(result_findings(call, form)) or list(dtype_findings(call, form))
    yield from found
    if found:
        return
    probe = Matrix(call, form)
    found = list(probe.findings(conventions))
    yield from found
    if found:
        return
    value = call(*random_arguments(SIZES, form))  # raises if the function is right for equal sizes only
    right = random_results(SIZES)[conventions.layout]
    if not is_rotated(value, right):
        sentence = "For xq (1, 5, 4, 8) and xk (1, 5, 2, 8) from position 20 on, q of token 1, head 0"
        yours = [kind(value), kind(tuple(right))]
        if kind(value) == yours[1]:
            yours = [numbers(x[0].double()[0, 1, 0]) for x in (value, right)]
        yield Finding(sentence, yours[0], yours[1])
    yield from call.overwritten_finding()


def dtype_findings(call: Caller, form: Form) -> Iterator[Finding]:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        xq, xk, table = random_arguments(SIZES, form)
        value = call.attempt(xq.to(dtype), xk.to(dtype), table)
        if isinstance(value, Raised):
            continue
        yours, expected = ", ".join(str(x.dtype)[6:] for x in value), str(dtype)[6:]
        if yours != f"{expected}, {expected}":
            sentence = f"The dtypes of the results for xq and xk in {expected}"
            yield Finding(sentence, yours, f"{expected}, {expected}", faults.DTYPE)
            return


def remarks(call: Caller, form: Form) -> Iterator[str]:
    xq, xk, table = random_arguments(SIZES, form)
    value = call.attempt(xq.bfloat16(), xk.bfloat16(), table)
    if isinstance(value, Raised):
        name = type(value.error).__name__
        yield f"Queries in bfloat16 raise {name}: rotate in float32 (.float()), then .type_as(xq)."


def result_findings(call: Caller, form: Form) -> Iterator[Finding]:
    """Whether two tensors of the right shapes are returned."""
    generator = torch.Generator().manual_seed(0)
    value = None
    for sizes in ((2, 3, 4, 2, 10), (B, T, H, H, D)):  # the second if the first raises
        batch, tokens, heads, kv_heads, dim = sizes
        xq = torch.randn(batch, tokens, heads, dim, generator=generator)
        xk = torch.randn(batch, tokens, kv_heads, dim, generator=generator)
        value = call.attempt(xq, xk, form.write(unit(random_angles(1, tokens, dim)[0])))
        if not isinstance(value, Raised):
            break
    if isinstance(value, Raised):
        raise value
    sentence = "Queries and keys are returned in the shapes of the arguments"
    expected = f"{tuple(xq.shape)} and {tuple(xk.shape)}"
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(map(torch.is_tensor, value)):
        fault = faults.NOT_TWO
        if value is None:
            fault = faults.NOT_RETURNED
        elif torch.is_tensor(value) and value.shape in (xq.shape, xk.shape):
            fault = faults.ONE_RETURNED
        yield Finding(sentence, kind(value), expected, fault)
        return
    exchanged = [tuple(x.shape) for x in value] == [tuple(xk.shape), tuple(xq.shape)] and xq.shape != xk.shape
    if exchanged and not any(x.is_complex() for x in value):
        yield Finding(sentence, kind(value), expected, faults.EXCHANGED_QK)
        return
    twice = xq.shape != xk.shape and value[0].shape == value[1].shape in (xq.shape, xk.shape)
    if twice and torch.equal(value[0], value[1]):
        yield Finding(sentence, kind(value), expected, faults.SAME_QK)
        return
    both = [shape_fault(x, y) if x.shape != y.shape or x.is_complex() else None for x, y in zip(value, (xq, xk))]
    wrong = [x.shape != y.shape or x.is_complex() for x, y in zip(value, (xq, xk))]
    if any(wrong):
        yours = " and ".join(f"{tuple(x.shape)}{' complex' if x.is_complex() else ''}" for x in value)
        finding = Finding(sentence, yours, expected, both[0] or both[1])
        yield finding if all(wrong) else finding.only_in("k" if wrong[1] else "q")


def shape_fault(found: Tensor, x: Tensor) -> Fault | None:
    """The fault of a result in another shape than x (B, T, H, D)."""
    shape, right = tuple(found.shape), tuple(x.shape)
    half = (*right[:-1], right[-1] // 2)
    if found.is_complex():
        return faults.VIEW_AS_REAL
    if found.numel() == x.numel() and (found.ndim == 5 or shape == (*half[:2], half[2] * half[3], 2)):
        return faults.UNFLATTENED
    if shape == half:
        return faults.REAL_PART
    if shape in (right[1:], (1, *right[1:])):
        return faults.SOME_BATCH
    if shape in ((*right[:2], 1, right[3]), (*right[:2], right[3])):
        return faults.SOME_HEADS
    if shape in ((right[0], 1, *right[2:]), (right[0], *right[2:])):
        return faults.SOME_TOKENS
    if found.numel() == x.numel():
        return faults.AXES
    return None


def random_angles(count: int, tokens: int, dim: int) -> Tensor:
    """float64 (count, T, D/2) between 0.3 and 2.8."""
    generator = torch.Generator().manual_seed(3)
    return 0.3 + 2.5 * torch.rand(count, tokens, dim // 2, generator=generator, dtype=torch.float64)


class Matrix:
    """The matrices from inputs to outputs for each of several tables, (TABLES, 2, SIZE, SIZE), of q and of k."""

    def __init__(self, call: Caller, form: Form) -> None:
        self.call, self.form = call, form
        self.angles = random_angles(TABLES, T, D)
        zero, random = torch.zeros(SIZE), torch.randn(SIZE, generator=torch.Generator().manual_seed(6))
        self.constant = self.output(zero, zero, 0)
        alone = [self.output(*x, 0) - self.constant for x in ((random, zero), (zero, random))]
        self.reaches = torch.stack(alone, 1).abs().amax(2) > 1e-6  # (2, 2): result, argument
        self.matrix = torch.zeros(TABLES, 2, SIZE, SIZE, dtype=torch.float64)
        if not torch.equal(self.reaches, torch.eye(2, dtype=torch.bool)):
            return
        for number, one in enumerate(torch.eye(SIZE)):
            self.matrix[0, :, :, number] = self.output(one, one, 0) - self.constant
        used = self.matrix[0].abs() > 1e-6
        for inputs in independent(used.any(0)):
            x = torch.zeros(SIZE)
            x[inputs] = 1
            for number in range(1, TABLES):
                out = self.output(x, x, number) - self.constant
                self.matrix[number][:, :, inputs] = used[:, :, inputs] * out[:, :, None]

    def output(self, xq: Tensor, xk: Tensor, number: int) -> Tensor:
        """The outputs of the queries and of the keys, (2, SIZE)."""
        value = self.call(xq.reshape(SHAPE), xk.reshape(SHAPE), self.form.write(unit(self.angles[number])))
        return torch.stack([part.double().reshape(-1) for part in value])

    def findings(self, conventions: Conventions) -> Iterator[Finding]:
        if not self.constant.isfinite().all() or self.constant.abs().max() > 1e-3:
            fault = faults.PRODUCT if self.constant.isfinite().all() else faults.SCALED_X
            one = int(not self.constant[0].any())  # of q and k
            sentence = f"Vectors of zeros stay zero; {'qk'[one]} of token 1, head 0"
            yours = numbers(self.constant[one].reshape(SHAPE)[0, 1, 0, :3])
            yield Finding(sentence, yours, "0, 0, 0", fault)
            return
        if not torch.equal(self.reaches, torch.eye(2, dtype=torch.bool)):
            yield self._crossed()
            return
        if not self.matrix.isfinite().all():
            yield Finding("The results for vectors of zeros and ones", "not finite", "finite")
            return
        found = []
        for number in range(2):
            tensor = Linear(self.matrix[:, number], self.angles)
            found.append((list(tensor.findings()), tensor.layout))
        (in_q, layout_q), (in_k, layout_k) = found
        conventions.layout = layout_q or layout_k or LAYOUTS[0]
        in_both = [finding for finding in in_q if finding in in_k]
        yield from in_both
        only = [each.only_in("q") for each in in_q if each not in in_both]
        only += [each.only_in("k") for each in in_k if each not in in_both]
        yield from (special(each, bool(in_q), bool(in_k)) for each in only)
        if not in_q and not in_k and layout_q != layout_k:
            sentence = "The pairs of q and of k have one layout"
            yield Finding(sentence, f"{layout_q} and {layout_k}", "the same twice", faults.MIXED)
        if not in_q and not in_k:
            yield from self._nonlinear()

    def _crossed(self) -> Finding:
        names = ("xq", "xk")
        uses = [" and ".join(name for name, used in zip(names, row) if used) for row in self.reaches.tolist()]
        fault = None
        if uses == ["xk", "xq"]:
            fault = faults.EXCHANGED_QK
        elif uses[0] == uses[1]:
            fault = faults.SAME_QK
        yours = f"{uses[0] or 'neither'}, and {uses[1] or 'neither'}"
        return Finding("The two results are computed from", yours, "xq, and xk", fault)

    def _nonlinear(self) -> Iterator[Finding]:
        x = torch.randn(SIZE, generator=torch.Generator().manual_seed(5)) * 3
        out = self.output(x, x, 0)
        if not close(out, self.matrix[0] @ x.double()):
            lengths = [f"{float(each[:D].norm()):.4g}" for each in (out[0], x)]
            sentence = "A rotation keeps lengths; that of q of token 0, head 0"
            yield Finding(sentence, lengths[0], lengths[1], faults.SCALED_X)


def special(finding: Finding, q_is_wrong: bool, k_is_wrong: bool) -> Finding:
    """A finding in one of q and k, under the name of what it means for their scores."""
    if q_is_wrong and k_is_wrong:
        return finding
    name = finding.fault.name if finding.fault else ""
    if name.startswith(faults.INPUT_RETURNED.name):
        return finding._replace(fault=faults.ONLY_Q_ROTATED if k_is_wrong else faults.ONLY_K_ROTATED)
    if name.startswith(faults.SIGN.name):
        return finding._replace(fault=faults.OPPOSITE)
    return finding


def independent(used: Tensor) -> list[list[int]]:
    """Groups of inputs of which no two reach the same output, so that one call shows all of a group."""
    groups: list[tuple[list[int], Tensor]] = []
    for number, outputs in enumerate(used.T):
        for inputs, taken in groups:
            if not (taken & outputs).any():
                inputs.append(number)
                taken |= outputs
                break
        else:
            groups.append(([number], outputs.clone()))
    return [inputs for inputs, _ in groups]


class Linear:
    """The matrices of one tensor, (TABLES, SIZE, SIZE), and what they show."""

    def __init__(self, matrix: Tensor, angle: Tensor) -> None:
        self.used = matrix.abs().amax(0) > 1e-6
        self.different = len({tuple(row) for row in (matrix[0] * 1e4).round().long().tolist() if any(row)})
        self.layout = ""
        entries = self.used.nonzero()  # (E, 2): output, input
        self.outputs = index_of(entries[:, 0])  # (E, 4)
        self.inputs = index_of(entries[:, 1])
        self.terms, self.cells = fit(matrix[:, entries[:, 0], entries[:, 1]], angle)  # (E, 5), (E, 2)

    def findings(self) -> Iterator[Finding]:
        found = next((finding for finding in self._origins() if finding), None)
        if found:
            yield found
            return
        pairs = self._pairs()
        if isinstance(pairs, Finding):
            yield pairs
            return
        self.layout = pairs
        yield from self._formulas()
        yield from self._angles()

    def _origins(self) -> Iterator[Finding | None]:
        """The first axis along which outputs come from other places."""
        for axis in range(3):
            moved = self.outputs[:, axis] != self.inputs[:, axis]
            if moved.any():
                out, source = self.outputs[moved][0].tolist(), self.inputs[moved][0].tolist()
                sentence = f"The number of {place(out)} is computed from that of"
                yield Finding(sentence, place(source), place(out), faults.VIEWED)

    def _pairs(self) -> str | Finding:
        """The layout of the pairs, or the finding that there is none."""
        partners: list[set[int]] = [set() for _ in range(D)]
        for out, source in zip(self.outputs[:, 3].tolist(), self.inputs[:, 3].tolist()):
            partners[out].add(source)
        layouts = {"neighbours": lambda c: {c, c ^ 1}, "halves": lambda c: {c, (c + D // 2) % D}}
        fitting = [name for name, pair in layouts.items() if all(partners[c] <= pair(c) for c in range(D))]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:  # no number depends on another, so the columns of the table tell the layout
            columns = {int(out): int(cell) for out, cell in zip(self.outputs[:, 3], self.cells[:, 1])}
            return "halves" if columns.get(1) == 1 and columns.get(3) == 0 else "neighbours"
        layout = "neighbours" if {0, 1} in partners else "halves"
        wrong = next((c for c in range(D) if not partners[c] <= layouts[layout](c)), 0)
        fault = None
        both = [{frozenset(pair(c)) for c in range(D)} for pair in layouts.values()]
        if self.different <= SIZE // 2:
            fault = faults.REAL_PART
        elif {frozenset(found) for found in partners} in both:
            fault = faults.MIXED
        expected = " and ".join(map(str, sorted(layouts[layout](wrong))))
        yours = " and ".join(map(str, sorted(partners[wrong]))) or "none"
        return Finding(f"Channel {wrong} of the result is computed from the channels", yours, expected, fault)

    def _numbers_of_pairs(self, channels: Tensor) -> tuple[Tensor, Tensor]:
        """The pair of each channel, and 0 for its first number or 1 for its second."""
        if self.layout == "neighbours":
            return channels // 2, channels % 2
        return channels % (D // 2), channels // (D // 2)

    def _formulas(self) -> Iterator[Finding]:
        formulas = torch.zeros(B, T, H, D // 2, 2, 2, 5, dtype=torch.float64)
        b, t, h, channel = self.outputs.T
        pair, number = self._numbers_of_pairs(channel)
        formulas[b, t, h, pair, number, self._numbers_of_pairs(self.inputs[:, 3])[1]] = self.terms
        wrong = ~((formulas - RIGHT).abs().amax((-1, -2, -3)) < 1e-3)  # (B, T, H, D/2), True for NaN
        if not wrong.any():
            return
        at = tuple(wrong.nonzero()[0].tolist())
        fault = formula_fault(formulas[at])
        where = ""
        if not wrong.all():
            where = f" at {place(at, 'pair')}"
            axes = [axis for axis in range(4) if is_along(wrong, axis)]
            if axes and fault in (faults.INPUT_RETURNED, faults.ONE_NUMBER):
                fault = SOME[axes[0]]
        sentence = f"A pair (x, y) becomes, by the angle a{where}"
        yield Finding(sentence, formula_text(formulas[at]), formula_text(RIGHT), fault)

    def _angles(self) -> Iterator[Finding]:
        known = self.cells[:, 0] >= 0
        b, t, h, channel = self.outputs[known].T
        pair, number = self._numbers_of_pairs(channel)
        row, column = self.cells[known].T
        if (row != t).any():
            orders = [
                (h, faults.HEADS), (b, faults.BATCH), (T - 1 - t, faults.ROW_ORDER),
                ((t + 1) % T, faults.ROW_SHIFTED), ((t - 1) % T, faults.ROW_SHIFTED),
                ((t + 1).clamp(max=T - 1), faults.ROW_SHIFTED), ((t - 1).clamp(min=0), faults.ROW_SHIFTED),
                (row[:1].expand_as(row), faults.ONE_ROW),
            ]  # fmt: skip
            # The first row of the batch is rotated by row 0 in several of these, so all places are compared.
            fault = next((fault for order, fault in orders if torch.equal(row, order)), None)
            wrong = (row != t).nonzero()[0]
            at = place((int(b[wrong]), int(t[wrong]), int(h[wrong])))
            sentence = f"The row of freqs_cis that rotates {at}"
            yield Finding(sentence, str(int(row[wrong])), str(int(t[wrong])), fault)
        if (column != pair).any():
            fault = None
            if (column == column[0]).all():
                fault = faults.ONE_ANGLE
            elif torch.equal(column, D // 2 - 1 - pair):
                fault = faults.COLUMN_ORDER
            elif len(torch.stack((pair, number, column)).unique(dim=1).T) == D and any(
                torch.equal(column, other) for other in (channel // 2, channel % (D // 2))
            ):
                fault = faults.MIXED
            wrong = (column != pair).nonzero()[0]
            sentence = f"The column of freqs_cis that rotates pair {int(pair[wrong])}, number {int(number[wrong])}"
            yield Finding(sentence, str(int(column[wrong])), str(int(pair[wrong])), fault)


def index_of(flat: Tensor) -> Tensor:
    """(E,) -> (E, 4): row of the batch, token, head, channel."""
    return torch.stack(torch.unravel_index(flat, SHAPE), 1)


def is_along(wrong: Tensor, axis: int) -> bool:
    """Whether the place on this axis alone decides what is wrong."""
    moved = wrong.movedim(axis, 0).flatten(1)
    return bool((moved.all(1) | ~moved.any(1)).all()) and not bool(wrong.all())


def place(index: tuple[int, ...] | list[int], last: str = "channel") -> str:
    names = (*AXES[:3], last)
    return ", ".join(f"{name} {number}" for name, number in zip(names, index))


def fit(values: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The terms of each coefficient, (E, 5), and the cell of the table that has its angle, (E, 2).

    ``values`` are the coefficients for each table, (TABLES, E), and ``angle`` (TABLES, T, D/2).
    """
    terms = torch.zeros(values.shape[1], 5, dtype=torch.float64)
    terms[:, 0] = values.mean(0)
    best = (values - values.mean(0)).abs().amax(0)
    cells = torch.full((values.shape[1], 2), -1)
    for row in range(T):
        for column in range(D // 2):
            c, s = angle[:, row, column].cos(), angle[:, row, column].sin()
            basis = torch.stack((torch.ones_like(c), c, s, c * c, c * s), 1)  # (TABLES, 5)
            found = torch.linalg.lstsq(basis, values).solution  # (5, E)
            error = (basis @ found - values).abs().amax(0)
            better = (error < best) & (error < 1e-3) & (best > 1e-3)
            terms[better], best[better] = found.T[better], error[better]
            cells[better] = torch.tensor([row, column])
    terms[best > 1e-3] = torch.nan
    return terms, cells


def formula_fault(formula: Tensor) -> Fault:
    """The fault of a wrong formula, (2, 2, 5): for each new number, the coefficients of x and y."""

    def is_like(*others: Tensor) -> bool:
        return any(bool((formula - other).abs().max() < 2e-3) for other in others)

    first, second = RIGHT
    twice = torch.stack((torch.stack((2 * C2 - ONE, -2 * CS)), torch.stack((2 * CS, 2 * C2 - ONE))))
    size = float((formula * RIGHT).sum() / 4)
    exchanged = [RIGHT.flip(1), torch.stack((first.flip(0), second)), RIGHT.flip(0), IDENTITY.flip(0)]
    absolute = formula.abs()
    if is_like(RIGHT.transpose(0, 1)):
        return faults.SIGN
    if is_like(IDENTITY):
        return faults.INPUT_RETURNED
    if is_like(twice):
        return faults.TWICE
    if is_like(size * RIGHT) and abs(size) > 1e-3:
        return faults.SCALED_X
    if is_like(*exchanged):
        return faults.NUMBERS_EXCHANGED
    if is_like(RIGHT * torch.tensor([1.0, -1])[:, None]):
        return faults.CONJUGATED
    if is_like(torch.stack((torch.stack((S, -C)), torch.stack((C, S))))):
        return faults.SWAPPED
    if is_like(RIGHT * IDENTITY.sum(-1, keepdim=True)):
        return faults.REAL
    only_sines = torch.stack((S, S))[:, None] * torch.eye(2, dtype=torch.float64)[..., None]
    if is_like(only_sines, RIGHT * (1 - torch.eye(2, dtype=torch.float64))[..., None]):
        return faults.ONLY_SINES
    if is_like(torch.stack((first, IDENTITY[1])), torch.stack((IDENTITY[0], second))):
        return faults.ONE_NUMBER
    if (absolute - RIGHT.abs()).abs().max() < 2e-3:
        return faults.ONE_SIGN
    if is_like(torch.stack((first, first)), torch.stack((second, second))) or (absolute.amax((1, 2)) < 1e-6).any():
        return faults.REAL_PART
    mixed = C + C2 - ONE  # cos a - sin^2 a
    if is_like(torch.stack((first, torch.stack((CS, mixed)))), torch.stack((torch.stack((mixed, -CS)), second))):
        return faults.OVERWRITTEN
    if ((absolute.sum(-1) - 1).abs() < 2e-3).all() and absolute[..., 0].max() < 1e-3:
        return faults.ONE_TRIG
    if ((absolute.sum(1) - (C + S)).abs() < 2e-3).all():  # the right terms, with the wrong number
        return faults.PARTNER
    is_sum = absolute[..., 0].max() > 1e-3 or absolute[[0, 1], [1, 0]].max() < 1e-3
    return faults.PRODUCT if is_sum else faults.FORMULA


def formula_text(formula: Tensor) -> str:
    """``(x cos a - y sin a, x sin a + y cos a)``."""
    return "(" + ", ".join(sum_text(number) for number in formula) + ")"


def sum_text(coefficients: Tensor) -> str:
    if coefficients.isnan().any():
        return "no sum of x and y times cos a and sin a"
    text = ""
    for letter, terms in zip("xy", coefficients):
        for term, value in zip(TERMS, terms.tolist()):
            if abs(value) < 1e-3:
                continue
            factor = "" if abs(abs(value) - 1) < 1e-3 else f"{abs(value):.3g} "
            sign = "-" if value < 0 else "+"
            product = letter if term == "1" else f"{letter} {term}"
            text += f" {sign} {factor}{product}"
    text = text.strip() or "0"
    return text.removeprefix("+ ").replace("- ", "-", 1) if text.startswith("- ") else text.removeprefix("+ ")


def numbers(x: Tensor) -> str:
    return ", ".join(f"{float(value) + 0.0:.4g}" for value in x)
