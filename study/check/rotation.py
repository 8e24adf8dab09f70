"""Measure ``apply_rotary_emb``: from which input each output comes, and by which formula of which angle.

The function is linear in queries and keys, so one-hot inputs show its matrix. The angles of the tables are random, so
that every coefficient tells which row and which column of the table it was computed from.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .calls import Caller, Raised, kind, pair_fault
from .forms import COMPLEX, FORMS, Conventions, angles, close, missing_axis, reached, row_fault, unit, write_table
from .verdict import Finding, numbers

B, T, H, D = 2, 3, 3, 6  # T, H, K and D/2 are equal, so that a table along another axis raises no error
PAIRS = D // 2
VECTORS = B * T * H
TABLES = 8  # with different angles, from which the five coefficients of a formula are fitted
LAYOUTS = ("neighbours", "halves")
CHANNELS = {"neighbours": [0, 1, 2, 3, 4, 5], "halves": [0, 3, 1, 4, 2, 5]}  # of the pairs, one after the other
AXES = ("batch", "token", "head")
SOME = ("SOME_BATCH", "SOME_TOKENS", "SOME_HEADS", "SOME_PAIRS")

# A coefficient is a sum of these, with the cosine c and the sine s of one angle. s^2 is 1 - c^2.
TERMS = ("1", "cos a", "sin a", "cos^2 a", "cos a sin a")
C, S = torch.eye(5, dtype=torch.float64)[1:3]
RIGHT = torch.stack((torch.stack((C, -S)), torch.stack((S, C))))  # (2, 2, 5): x cos a - y sin a, x sin a + y cos a


def rotated(x: Tensor, angle: Tensor, layout: str) -> Tensor:
    """x (B, T, H, D), rotated by angle (T, D/2), float64."""
    x, c, s = x.double(), angle.cos()[None, :, None], angle.sin()[None, :, None]
    if layout == "halves":
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def inputs(batch: int, tokens: int, heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries and keys, and RoPE's angles from position 20 on."""
    generator = torch.Generator().manual_seed(1)
    xq, xk = (torch.randn(batch, tokens, n, dim, generator=generator) for n in (heads, kv_heads))
    return xq, xk, angles(dim, 20 + tokens, 500.0)[20:]


XQ, XK, ANGLE = inputs(2, 5, 4, 2, 8)


# float64 (TABLES, T, D/2), between 0.3 and 2.8
ANGLES = 0.3 + 2.5 * torch.rand(TABLES, T, PAIRS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    own = conventions.table
    values: dict[str, Any] = {}
    for form in dict.fromkeys([own or COMPLEX, *FORMS]):
        values[form] = call.attempt(XQ, XK, write_table(form, unit(ANGLE)))
        layout = right_layout(values[form])
        if layout:
            break
    if not layout:
        form = own or next((form for form in values if not isinstance(values[form], Raised)), COMPLEX)
    elif own and form != own and "precompute_freqs_cis" in conventions.right:
        sentence = "It reads the table in the form that precompute_freqs_cis returns"
        yield Finding(sentence, form, own, "OTHER_FORM" if COMPLEX in (form, own) else "MIXED")
        return
    conventions.table = form
    if layout:
        conventions.layout = layout
        yield from dtype_findings(call, form)
        return
    found = list(result_findings(call, form)) or list(matrix_findings(call, form))
    yield from found
    if not found:
        value = call(XQ, XK, write_table(form, unit(ANGLE)))  # raises if the function is right for equal sizes only
        sentence = "For xq (2, 5, 4, 8) and xk (2, 5, 2, 8) from position 20 on, q of token 1, head 0"
        yours = numbers(value[0][0, 1, 0]) if kind(value) == kind((XQ, XK)) else kind(value)
        yield Finding(sentence, yours, numbers(rotated(XQ, ANGLE, LAYOUTS[0])[0, 1, 0]))


def right_layout(value: Any) -> str:
    """The layout in which these are XQ and XK rotated by ANGLE; empty if there is none."""
    if pair_fault(value):
        return ""
    for layout in LAYOUTS:
        right = [rotated(x, ANGLE, layout) for x in (XQ, XK)]
        if all(not x.is_complex() and close(x.double(), y) for x, y in zip(value, right)):
            return layout
    return ""


def dtype_findings(call: Caller, form: str) -> Iterator[Finding]:
    value = call.attempt(XQ.bfloat16(), XK.bfloat16(), write_table(form, unit(ANGLE)))
    if not isinstance(value, Raised) and any(x.dtype != torch.bfloat16 for x in value):
        yours = ", ".join(str(x.dtype)[6:] for x in value)
        yield Finding("The dtypes of the results for xq and xk in bfloat16", yours, "bfloat16, bfloat16", "DTYPE")


def result_findings(call: Caller, form: str) -> Iterator[Finding]:
    """Whether two tensors of the right shapes are returned."""
    for sizes in ((2, 3, 4, 4, 10), (B, T, H, H, D)):  # the second if the first raises
        xq, xk, angle = inputs(*sizes)
        value = call.attempt(xq, xk, write_table(form, unit(angle)))
        if not isinstance(value, Raised):
            break
    else:
        raise value
    sentence = "Queries and keys are returned in the shapes of the arguments"
    expected = kind((xq, xk))
    if pair_fault(value):
        yield Finding(sentence, kind(value), expected, pair_fault(value))
        return
    wrong = [x.shape != y.shape or x.is_complex() for x, y in zip(value, (xq, xk))]
    if any(wrong):
        yours = " and ".join(f"{tuple(x.shape)}{' complex' if x.is_complex() else ''}" for x in value)
        one = wrong.index(True)
        finding = Finding(sentence, yours, expected, shape_fault(value[one], xq))
        yield finding if all(wrong) else finding.only_in("qk"[one])


def shape_fault(found: Tensor, x: Tensor) -> str:
    """The fault of a result in another shape than x (B, T, H, D)."""
    shape, (b, t, h, d) = tuple(found.shape), x.shape
    if found.is_complex():
        return "VIEW_AS_REAL"
    if found.numel() == x.numel():
        return "UNFLATTENED" if found.ndim == 5 or shape == (b, t, h * d // 2, 2) else "AXES"
    return "REAL_PART" if shape == (b, t, h, d // 2) else missing_axis(shape, (b, t, h, d))


def matrix_findings(call: Caller, form: str) -> Iterator[Finding]:
    """The matrices from inputs to outputs, of q and of k, and what they show."""

    def output(xq: Tensor, xk: Tensor, number: int = 0) -> Tensor:
        """The outputs of the queries and of the keys: float64 (2, B, T, H, D)."""
        return torch.stack([part.double() for part in call(xq, xk, write_table(form, unit(ANGLES[number])))])

    zero, random = torch.zeros(B, T, H, D), torch.randn(B, T, H, D, generator=torch.Generator().manual_seed(6))
    constant = output(zero, zero)
    if not constant.isfinite().all() or constant.abs().max() > 1e-3:
        sentence = "Vectors of zeros stay zero; the first numbers that do not"
        yours = numbers(constant[constant.isnan() | (constant.abs() > 1e-3)][:3])
        yield Finding(sentence, yours, "0, 0, 0", "PRODUCT" if constant.isfinite().all() else "SCALED_X")
        return
    # Whether each number of the output depends on each input vector: (2, B, T, H, D, B, T, H).
    from_q = reached(lambda x: output(x, random)[..., None], random)
    from_k = reached(lambda x: output(random, x)[..., None], random)
    uses = [" and ".join(name for name, x in zip(("xq", "xk"), each) if x.any()) for each in zip(from_q, from_k)]
    if uses != ["xq", "xk"]:
        same = "SAME_QK" if uses[0] == uses[1] else ""
        fault = "EXCHANGED_QK" if uses == ["xk", "xq"] else same
        yield Finding("The two results are computed from", " and then ".join(uses), "xq and then xk", fault)
        return
    every = torch.eye(D)[:, None, None, None].expand(D, B, T, H, D)  # one channel of all vectors
    matrix = torch.stack([output(x, x, number) for number in range(TABLES) for x in every])
    # For q and k and each table, from the channels of each vector to those of its result.
    matrix = matrix.reshape(TABLES, D, 2, VECTORS, D).permute(2, 0, 3, 4, 1)
    if not matrix.isfinite().all():
        yield Finding("The results for vectors of zeros and ones", "not finite", "finite")
        return
    in_q, in_k = vector_findings(from_q[0], matrix[0]), vector_findings(from_k[1], matrix[1])
    yield from (finding for finding in in_q if finding in in_k)
    for tensor, found, others in (("q", in_q, in_k), ("k", in_k, in_q)):
        yield from (finding.only_in(tensor) for finding in found if finding not in others)


def vector_findings(sources: Tensor, vectors: Tensor) -> list[Finding]:
    """What q or k shows.

    ``sources`` says whether each number depends on each vector, (B, T, H, D, B, T, H), and ``vectors`` are the matrices
    of the vectors for each table, (TABLES, VECTORS, D of the result, D).
    """
    elsewhere = sources.any(3) & ~torch.eye(VECTORS).bool().reshape(2 * (B, T, H))
    if elsewhere.any():
        first = elsewhere.nonzero()[0].tolist()
        out, source = place(first[:3]), place(first[3:])
        is_moved = sources.flatten(4).sum(-1).max() == 1  # each number still comes from one vector
        return [Finding(f"Numbers of {out} are computed from those of", source, out, "VIEWED" if is_moved else "")]
    fitting = []
    for layout, order in CHANNELS.items():
        pairs = vectors[..., order, :][..., order].unflatten(3, (PAIRS, 2)).unflatten(2, (PAIRS, 2))
        own_pair = torch.einsum("nvpxpy->nvpxy", pairs).unflatten(1, (B, T, H))
        if close(own_pair.abs().sum(), vectors.abs().sum()):
            fitting.append([*formula_findings(own_pair, layout)])
    if fitting:  # both if no number depends on another: then the columns of the table tell the layout
        return min(fitting, key=len)
    partners = [set(row.nonzero()[:, 0].tolist()) for row in vectors.abs().amax((0, 1)) > 1e-6]
    layouts = [[{c, c ^ 1} for c in range(D)], [{c, (c + PAIRS) % D} for c in range(D)]]
    wrong = next((c for c in range(D) if not any(partners[c] <= layout[c] for layout in layouts)), 0)
    fault = ""
    rows = vectors[0].unflatten(0, (B, T, H))[0, :, 0].flatten(0, 1)  # of a row of the batch and a head
    if len(rows.round(decimals=3).unique(dim=0)) <= len(rows) // 2 + 1:  # each is there twice, or is 0
        fault = "REAL_PART"
    elif any(set(map(frozenset, partners)) == set(map(frozenset, layout)) for layout in layouts):
        fault = "MIXED"
    expected = ", or ".join(" and ".join(map(str, sorted(layout[wrong]))) for layout in layouts)
    yours = " and ".join(map(str, sorted(partners[wrong]))) or "none"
    return [Finding(f"Channel {wrong} of the result is computed from the channels", yours, expected, fault)]


def formula_findings(pairs: Tensor, layout: str) -> Iterator[Finding]:
    """Formulas and angles from the matrices of the pairs, (TABLES, B, T, H, D/2, 2, 2): output, input."""
    terms, cells = fit(pairs.flatten(1))
    formulas = terms.reshape(B, T, H, PAIRS, 2, 2, 5)
    wrong = ~((formulas - RIGHT).abs().amax((-1, -2, -3)) < 1e-3)  # (B, T, H, D/2), True for NaN
    if (cells < 0).all() and not close(formulas, formulas[:1, :1, :1, :1].expand_as(formulas)):
        sentence = f"With every table, a pair (x, y) of token {T - 1} becomes"
        yield Finding(sentence, formula_text(formulas[0, -1, 0, 0]), formula_text(RIGHT))
        return
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        where, fault = "", formula_fault(formulas[at])
        if not wrong.all():
            where = f" at {place(at[:3])}, pair {at[3]}"
            slices = [wrong.movedim(axis, 0).flatten(1) for axis in range(4)]
            axes = [axis for axis in range(4) if (slices[axis].all(1) | ~slices[axis].any(1)).all()]
            if axes and fault in ("UNROTATED", "ONE_NUMBER"):
                fault = SOME[axes[0]]
        sentence = f"A pair (x, y) becomes, by the angle a{where}"
        yield Finding(sentence, formula_text(formulas[at]), formula_text(RIGHT), fault)
    b, t, h, pair, number, _ = (cells >= 0).reshape(B, T, H, PAIRS, 2, 2).nonzero().T
    row, column = cells[cells >= 0] // PAIRS, cells[cells >= 0] % PAIRS
    channel = torch.tensor(CHANNELS[layout])[2 * pair + number]
    columns = [(torch.full_like(column, n), "ONE_ANGLE") for n in range(PAIRS)]
    columns += [(PAIRS - 1 - pair, "COLUMN_ORDER")]
    columns += [(channel // 2, "MIXED"), (channel % PAIRS, "MIXED")]
    column_fault = next((fault for order, fault in columns if torch.equal(column, order)), "")
    for name, found, right, fault in (("row", row, t, row_fault(row, b, t, h)), ("column", column, pair, column_fault)):
        if (found != right).any():
            n = int((found != right).nonzero()[0])
            sentence = f"The {name} of freqs_cis that rotates {place([int(x[n]) for x in (b, t, h, channel)])}"
            yield Finding(sentence, str(int(found[n])), str(int(right[n])), fault)


def place(index: Sequence[int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in zip((*AXES, "channel"), index))


def fit(values: Tensor) -> tuple[Tensor, Tensor]:
    """The terms of each coefficient, (E, 5), and the cell of the table that has its angle, (E,), -1 for a constant.

    ``values`` are the coefficients for each table, (TABLES, E).
    """
    c, s = ANGLES.flatten(1).T.cos(), ANGLES.flatten(1).T.sin()  # (cells, TABLES)
    basis = torch.stack((torch.ones_like(c), c, s, c * c, c * s), -1)  # (cells, TABLES, 5)
    solutions = torch.linalg.lstsq(basis, values.expand(len(c), -1, -1)).solution  # (cells, 5, E)
    error, cell = (basis @ solutions - values).abs().amax(1).min(0)
    terms = solutions[cell, :, torch.arange(len(cell))]
    terms[error > 1e-3] = torch.nan
    return terms, torch.where(terms[:, 1:].abs().amax(1) > 1e-3, cell, -1)


# Wrong formulas, as ``formula_text`` writes them.
FORMULAS = {
    "(x cos a + y sin a, -x sin a + y cos a)": "SIGN",
    "(x, y)": "UNROTATED",
    "(-x + 2 x cos^2 a - 2 y cos a sin a, 2 x cos a sin a - y + 2 y cos^2 a)": "TWICE",
    "(-x sin a + y cos a, x cos a + y sin a)": "NUMBERS_EXCHANGED",
    "(-x sin a + y cos a, x sin a + y cos a)": "NUMBERS_EXCHANGED",
    "(x sin a + y cos a, x cos a - y sin a)": "NUMBERS_EXCHANGED",
    "(y, x)": "NUMBERS_EXCHANGED",
    "(x cos a + y sin a, x sin a - y cos a)": "CONJUGATED",
    "(x sin a - y cos a, x cos a + y sin a)": "SWAPPED",
    "(x cos a, y sin a)": "PRODUCT",
    "(x cos a, y cos a)": "REAL",
    "(x sin a, y sin a)": "ONLY_SINES",
    "(-y sin a, x sin a)": "ONLY_SINES",
    "(x cos a - y sin a, y)": "ONE_NUMBER",
    "(x, x sin a + y cos a)": "ONE_NUMBER",
    "(x cos a - y sin a, x cos a - y sin a)": "REAL_PART",
    "(x sin a + y cos a, x sin a + y cos a)": "REAL_PART",
    "(x cos a - y sin a, x cos a sin a - y + y cos a + y cos^2 a)": "OVERWRITTEN",
    "(-x + x cos a + x cos^2 a - y cos a sin a, x sin a + y cos a)": "OVERWRITTEN",
}


def formula_fault(formula: Tensor) -> str:
    """The fault of a wrong formula, (2, 2, 5): for each new number, the coefficients of x and y."""
    text = formula_text(formula)
    if text in FORMULAS:
        return FORMULAS[text]
    absolute = formula.abs()
    size = float((formula * RIGHT).sum() / 4)
    if abs(size) > 1e-3 and close(formula, size * RIGHT):
        return "SCALED_X"
    if close(absolute, RIGHT.abs()):
        return "ONE_SIGN"
    if (absolute.amax((1, 2)) < 1e-6).any():
        return "REAL_PART"
    return "PRODUCT" if absolute[..., 0].max() > 1e-3 else "FORMULA"


def formula_text(formula: Tensor) -> str:
    """``(x cos a - y sin a, x sin a + y cos a)``."""
    return "(" + ", ".join(sum_text(number) for number in formula) + ")"


def sum_text(coefficients: Tensor) -> str:
    if coefficients.isnan().any():
        return "no sum of x and y times cos a and sin a"
    parts = []
    for letter, terms in zip("xy", coefficients):
        for term, value in zip(TERMS, terms.tolist()):
            factor = "" if abs(abs(value) - 1) < 1e-3 else f"{abs(value):.3g} "
            product = letter if term == "1" else f"{letter} {term}"
            parts += [f"{'-' if value < 0 else '+'} {factor}{product}"] if abs(value) > 1e-3 else []
    text = " ".join(parts) or "0"
    return f"-{text[2:]}" if text.startswith("- ") else text.removeprefix("+ ")
