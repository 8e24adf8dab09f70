"""``apply_rotary_emb``: what it must give, and what each known mistake makes of it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, Trial, parameters, required
from .faults import Fault
from .forms import FORMS, Conventions, Form
from .recipe import Explanation, Mistake, Recipe, explain, matches, same
from .table import angles, unit
from .verdict import Comparison, Property, Verdict, demanded, in_other_order, kind, wrong

FUNCTION = "apply_rotary_emb"
LAYOUTS = ("neighbours", "halves")
OUTCOMES = {"neighbours": "right", "halves": "half-split"}  # of a function that is right in a layout
MAIN = 4  # the probe whose sizes all differ


# The recipe. x is (B, T, H, D) and the angles (T, D/2); a and b are the two numbers of each pair, (B, T, H, D/2), and
# c and s the cosines and sines of the angle of the first number of each pair, u and v those of the second.


def neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def interleaved(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2)


def concatenated(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), -1)


def along_tokens(angle: Tensor, x: Tensor) -> Tensor:
    return angle[None, :, None]


def turn(a: Tensor, b: Tensor, c: Tensor, s: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return a * c - b * s, a * v + b * u


def once(rotated: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return rotated(x)


def as_it_is(x: Tensor) -> Tensor:
    return x


RECIPES: dict[str, Recipe] = {
    "neighbours": {
        "split": neighbours,
        "spread": lambda angle: neighbours(interleaved(angle, angle)),
        "laid": along_tokens,
        "turn": turn,
        "join": interleaved,
        "applied": once,
        "result": as_it_is,
    },
    "halves": {
        "split": halves,
        "spread": lambda angle: halves(concatenated(angle, angle)),
        "laid": along_tokens,
        "turn": turn,
        "join": concatenated,
        "applied": once,
        "result": as_it_is,
    },
}


def rotate(x: Tensor, angle: Tensor, parts: Recipe) -> Tensor:
    """x (B, T, H, D) rotated by angle (T, D/2) as the recipe says, in float64; a mistake may give another shape."""

    def rotated(x: Tensor) -> Tensor:
        a, b = parts["split"](x)
        first, second = parts["spread"](parts["laid"](angle, x))
        a, b = parts["turn"](a, b, first.cos(), first.sin(), second.cos(), second.sin())
        return parts["join"](a, b)

    return parts["result"](parts["applied"](rotated, x.double()))


def only_first(axis: int) -> Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]:
    """Rotate only index 0 of an axis."""

    def applied(rotated: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        chosen = torch.arange(x.shape[axis]) == 0
        shape = [1] * x.ndim
        shape[axis] = -1
        return torch.where(chosen.reshape(shape), rotated(x), x)

    return applied


def first_half(rotated: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.where(torch.arange(x.shape[-1]) < x.shape[-1] // 2, rotated(x), x)


MISTAKES = [
    Mistake(known.SIGN, "turn", lambda a, b, c, s, u, v: (a * c + b * s, b * u - a * v)),
    Mistake(known.HEADS, "laid", lambda angle, x: angle[: x.shape[2]][None, None]),
    Mistake(known.HEADS, "laid", lambda angle, x: angle[None, None]),  # with one head it is broadcast over T of them
    Mistake(known.BATCH, "laid", lambda angle, x: angle[: x.shape[0]][:, None, None]),
    Mistake(known.ONE_ROW, "laid", lambda angle, x: angle[:1][None, :, None]),
    Mistake(known.ONE_ROW, "laid", lambda angle, x: angle[1:2][None, :, None]),
    Mistake(known.ONE_ROW, "laid", lambda angle, x: angle[-1:][None, :, None]),
    Mistake(known.POSITIONS, "laid", lambda angle, x: angle.flip(0)[None, :, None]),
    Mistake(known.SHIFTED, "laid", lambda angle, x: angle.roll(1, 0)[None, :, None]),
    Mistake(known.SHIFTED, "laid", lambda angle, x: angle.roll(-1, 0)[None, :, None]),
    Mistake(known.REVERSED, "laid", lambda angle, x: angle.flip(1)[None, :, None]),
    Mistake(known.ONE_ANGLE, "laid", lambda angle, x: angle[:, :1].expand_as(angle)[None, :, None]),
    Mistake(known.ONE_ANGLE, "laid", lambda angle, x: angle[:, -1:].expand_as(angle)[None, :, None]),
    Mistake(known.REAL, "turn", lambda a, b, c, s, u, v: (a * c, b * u)),
    Mistake(known.ONLY_SINES, "turn", lambda a, b, c, s, u, v: (a * s, b * v)),
    Mistake(known.ONLY_SINES, "turn", lambda a, b, c, s, u, v: (-b * s, a * v)),
    Mistake(known.SWAPPED, "turn", lambda a, b, c, s, u, v: (a * s - b * c, a * u + b * v)),
    Mistake(known.OVERWRITTEN, "turn", lambda a, b, c, s, u, v: (a * c - b * s, (a * c - b * s) * v + b * u)),
    Mistake(known.OVERWRITTEN, "turn", lambda a, b, c, s, u, v: (a * c - (a * v + b * u) * s, a * v + b * u)),
    Mistake(known.ONE_SIGN, "turn", lambda a, b, c, s, u, v: (a * c + b * s, a * v + b * u)),
    Mistake(known.ONE_SIGN, "turn", lambda a, b, c, s, u, v: (a * c - b * s, b * u - a * v)),
    Mistake(known.ONE_SIGN, "turn", lambda a, b, c, s, u, v: (a * c - b * s, a * v - b * u)),
    Mistake(known.ONE_SIGN, "turn", lambda a, b, c, s, u, v: (a * c + b * s, a * v - b * u)),
    Mistake(known.ONE_SIGN, "turn", lambda a, b, c, s, u, v: (b * s - a * c, a * v + b * u)),
    Mistake(known.ONE_SIGN, "turn", lambda a, b, c, s, u, v: (-a * c - b * s, a * v + b * u)),
    Mistake(known.PARTNER, "turn", lambda a, b, c, s, u, v: (a * c - a * s, a * v + b * u)),
    Mistake(known.PARTNER, "turn", lambda a, b, c, s, u, v: (a * c - b * s, b * v + b * u)),
    Mistake(known.PARTNER, "turn", lambda a, b, c, s, u, v: (a * c - a * s, b * v + b * u)),
    Mistake(known.PARTNER, "turn", lambda a, b, c, s, u, v: (a * c + a * s, b * v + b * u)),
    Mistake(known.PARTNER, "turn", lambda a, b, c, s, u, v: (a * c - b * s, a * v + a * u)),
    Mistake(known.PARTNER, "turn", lambda a, b, c, s, u, v: (b * c - b * s, a * v + b * u)),
    Mistake(known.ONE_TRIG, "turn", lambda a, b, c, s, u, v: (a * c - b * c, a * u + b * u)),
    Mistake(known.ONE_TRIG, "turn", lambda a, b, c, s, u, v: (a * s - b * s, a * v + b * v)),
    Mistake(known.ONE_TRIG, "turn", lambda a, b, c, s, u, v: (a * c - b * s, a * u + b * v)),
    Mistake(known.ONE_TRIG, "turn", lambda a, b, c, s, u, v: (a * s - b * c, a * v + b * u)),
    Mistake(known.PRODUCT, "turn", lambda a, b, c, s, u, v: (a + c, b + v)),
    Mistake(known.PRODUCT, "turn", lambda a, b, c, s, u, v: (a * c, b * v)),
    Mistake(known.PRODUCT, "turn", lambda a, b, c, s, u, v: (a + a * c - b * s, b + a * v + b * u)),
    Mistake(known.CONJUGATED, "turn", lambda a, b, c, s, u, v: (a * c + b * s, a * v - b * u)),
    Mistake(known.NUMBERS_EXCHANGED, "turn", lambda a, b, c, s, u, v: (a * v + b * u, a * c - b * s)),
    Mistake(known.NUMBERS_EXCHANGED, "turn", lambda a, b, c, s, u, v: (b * c - a * s, b * v + a * u)),
    Mistake(known.NUMBERS_EXCHANGED, "turn", lambda a, b, c, s, u, v: (b * c - a * s, a * v + b * u)),
    Mistake(known.NUMBERS_EXCHANGED, "turn", lambda a, b, c, s, u, v: (b, a)),
    Mistake(known.ONE_NUMBER, "turn", lambda a, b, c, s, u, v: (a * c - b * s, b)),
    Mistake(known.ONE_NUMBER, "turn", lambda a, b, c, s, u, v: (a, a * v + b * u)),
    Mistake(known.STILL, "turn", lambda a, b, c, s, u, v: (a, b)),
    Mistake(known.TWICE, "applied", lambda rotated, x: rotated(rotated(x))),
    Mistake(known.SOME_BATCH, "applied", only_first(0)),
    Mistake(known.SOME_HEADS, "applied", only_first(2)),
    Mistake(known.SOME_TOKENS, "applied", only_first(1)),
    Mistake(known.SOME_PAIRS, "applied", first_half),
    Mistake(known.SOME_PAIRS, "applied", lambda rotated, x: torch.where(torch.arange(x.shape[-1]) < 2, rotated(x), x)),
    Mistake(known.SOME_BATCH, "result", lambda x: x[:1]),
    Mistake(known.SOME_BATCH, "result", lambda x: x[0]),
    Mistake(known.SOME_HEADS, "result", lambda x: x[:, :, :1]),
    Mistake(known.AXES, "result", lambda x: x.transpose(1, 2)),
    Mistake(known.AXES, "result", lambda x: x.flatten(2)),
    Mistake(known.VIEWED, "result", lambda x: x.transpose(1, 2).reshape(x.shape)),
    Mistake(known.LENGTH, "result", lambda x: x / x.shape[-1] ** 0.5),
    Mistake(known.LENGTH, "result", lambda x: x * 2),
    Mistake(known.LENGTH, "result", lambda x: x / x.norm(dim=-1, keepdim=True)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -1)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -2)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -1).flatten(2, 3)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -1).flatten(2)),
    Mistake(known.VIEWED, "join", lambda a, b: torch.stack((a, b), 0).reshape(*a.shape[:-1], -1)),
    Mistake(known.VIEWED, "join", lambda a, b: torch.stack((a, b), 1).reshape(*a.shape[:-1], -1)),
    Mistake(known.VIEWED, "join", lambda a, b: torch.stack((a, b), 2).reshape(*a.shape[:-1], -1)),
    Mistake(known.STILL_COMPLEX, "join", lambda a, b: torch.complex(a, b)),
    Mistake(known.REAL_PART, "join", lambda a, b: a),
    Mistake(known.REAL_PART, "join", lambda a, b: b),
    Mistake(known.REAL_PART, "join", lambda a, b: interleaved(a, a)),
    Mistake(known.REAL_PART, "join", lambda a, b: concatenated(a, a)),
    Mistake(known.REAL_PART, "join", lambda a, b: interleaved(a, 0 * b)),
]


def mistakes_in(layout: str) -> list[Mistake]:
    """The known mistakes of a function meant for this layout: its own, and those of mixing it with the other."""
    if layout == "neighbours":
        join, spread = concatenated, lambda angle: neighbours(concatenated(angle, angle))
    else:
        join, spread = interleaved, lambda angle: halves(interleaved(angle, angle))
    return [Mistake(known.MIXED, "spread", spread), Mistake(known.MIXED, "join", join), *MISTAKES]


class Probe(NamedTuple):
    """Queries (B, T, H, D) and keys (B, T, K, D) for positions ``start`` .. ``start + T - 1``."""

    xq: Tensor
    xk: Tensor
    start: int
    theta: float

    @property
    def angle(self) -> Tensor:
        T, D = self.xq.shape[1], self.xq.shape[3]
        return angles(D, self.start + T, self.theta)[self.start :]


def counted(*shape: int) -> Tensor:
    """1, 2, 3 .. in this shape: numbers to follow with a pencil."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def probes() -> list[Probe]:
    """The smallest first; then T == H == K, where every axis fits; then sizes that all differ."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    still = random(1, 1, 1, 8).expand(1, 6, 2, 8).contiguous()  # one vector at all positions
    one = torch.zeros(1, 5, 2, 6, dtype=torch.float32)
    one[..., 0] = 1
    return [
        Probe(counted(1, 2, 1, 2), counted(1, 2, 1, 2), 0, 10000.0),
        Probe(counted(1, 3, 1, 4), counted(1, 3, 1, 4), 0, 10000.0),
        Probe(counted(1, 3, 2, 4), counted(1, 3, 1, 4), 1, 10000.0),
        Probe(random(1, 3, 3, 6), random(1, 3, 3, 6), 0, 500.0),
        Probe(random(2, 5, 4, 8), random(2, 5, 2, 8), 0, 10000.0),
        Probe(still, random(1, 1, 1, 8).expand(1, 6, 1, 8).contiguous(), 0, 10000.0),
        Probe(one, one[:, :, :1].clone(), 0, 10000.0),
        Probe(random(1, 7, 6, 10), random(1, 7, 3, 10), 20, 10000.0),
    ]


def is_rotated(value: Any, case: Probe, layout: str) -> bool:
    right = [rotate(x, case.angle, RECIPES[layout]) for x in (case.xq, case.xk)]
    if isinstance(value, Tensor) and value.shape[:1] != (2,):
        return False
    return same(list(value) if isinstance(value, tuple | list | Tensor) else value, right)


def worst(found: Tensor, right: Tensor) -> tuple[int, ...]:
    """Where two tensors of one shape differ most."""
    gap = torch.nan_to_num((found.double() - right.double()).abs(), nan=torch.inf)
    return tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))


def gap(found: Tensor, right: Tensor) -> float:
    """The mean difference: of two layouts, the one with the smaller difference was intended."""
    return float((found.double() - right.double()).abs().mean().nan_to_num(nan=torch.inf))


def judge_rotation(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function, cases = names[FUNCTION], probes()
    attempts: list[tuple[Form, list[Trial]]] = []
    for form in dict.fromkeys([conventions.table or FORMS[0], *FORMS]):
        trials = caller.trials(call_with(function, form), [given(case, form) for case in cases], parameters(FUNCTION))
        for layout, outcome in OUTCOMES.items():
            if all(is_rotated(trial.value, case, layout) for trial, case in zip(trials, cases)):
                return right_rotation(function, form, trials, conventions, (layout, outcome), caller)
        attempts.append((form, trials))
    if caller.brief:
        return Verdict(FUNCTION, "wrong")
    if conventions.table:
        attempts = attempts[:1]
    form, trials = min(attempts, key=lambda attempt: sum(trial.error is not None for trial in attempt[1]))
    conventions.table = form
    call = call_with(function, form)
    tried = cases[MAIN - 1 : MAIN + 1]

    def fits(value: Any, number: int) -> bool:
        return any(is_rotated(value, tried[number], layout) for layout in LAYOUTS)

    problem = next((trial.problem for trial in trials if trial.problem), "")
    ran = [(trial.value, case) for trial, case in zip(trials, cases) if trial.error is None]
    # If some raised, what the smallest cases give says nothing: with H == 1 many a mistake fits.
    telling = ran if len(ran) == len(cases) else [(value, case) for value, case in ran if case.xq.shape[3] > MAIN]
    explanation = rotation_explanation(telling) if telling else None
    if explanation is None:
        order = caller.other_order(call, [given(case, form) for case in tried], fits)
        if order:
            return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    return wrong(FUNCTION, explanation, rotation_properties(ran), comparisons(ran), 5, problem)


def given(case: Probe, form: Form) -> tuple[Any, ...]:
    return case.xq, case.xk, form.write(unit(case.angle))


def call_with(function: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """The reader's function; with (cos, sin) as two arguments if it takes four."""
    if form.container != "tuple" or required(function) < 4:
        return function
    return lambda xq, xk, table: function(xq, xk, *table)


def right_rotation(
    function: Callable[..., Any],
    form: Form,
    trials: list[Trial],
    conventions: Conventions,
    layout: tuple[str, str],
    caller: Caller,
) -> Verdict:
    """Right for tables of one form: wrong all the same if that is not the form of the reader's table."""
    conventions.layout, outcome = layout
    if conventions.table != form and "precompute_freqs_cis" in conventions.right:
        fault = known.OTHER_FORM
        if conventions.table and conventions.table._replace(width=form.width) == form:
            fault = known.MIXED  # angles of one layout, pairs of the other
        measured = Property(
            "It takes the table as precompute_freqs_cis gives it", in_words(form), in_words(conventions.table)
        )
        return Verdict(FUNCTION, "wrong", str(measured), [(fault.name, fault.why, fault.step)])
    conventions.table = form
    case = probes()[MAIN]
    call = call_with(function, form)
    casts = {}
    for dtype in (torch.float64, torch.bfloat16):
        cast = case._replace(xq=case.xq.to(dtype), xk=case.xk.to(dtype))
        casts[dtype] = caller.trial(call, given(cast, form), parameters(FUNCTION))
    verdict = demanded(FUNCTION, rotation_demands(trials, casts), outcome)
    error = casts[torch.bfloat16].error
    if verdict.outcome == outcome and error is not None:
        verdict.remarks.append(
            f"Queries in bfloat16 end in {type(error).__name__}: rotate in float32 (.float()), then .type_as(xq)."
        )
    return verdict


def in_words(form: Form | None) -> str:
    if form is None:
        return "unknown"
    width = {
        "single": "D/2",
        "halves": "D (each angle twice, in halves)",
        "neighbours": "D (each angle twice, side by side)",
    }
    columns = width[form.width]
    names = "sin and cos" if form.sin_first else "cos and sin"
    forms = {
        "complex": f"complex of {columns} columns",
        "last": f"{names} in a last axis of 2",
        "tuple": f"{names} of {columns} columns",
        "stack": f"{names} of {columns} columns, stacked",
    }
    return forms[form.container] + (", laid out already" if form.before or form.between else "")


def rotation_demands(trials: list[Trial], casts: dict[torch.dtype, Trial]) -> Iterator[tuple[Fault, Property]]:
    changed = dict.fromkeys(name for trial in trials for name in trial.changed)
    yield known.CHANGED, Property("What it is given stays as it is; overwritten", ", ".join(changed), "")
    for trial in trials:
        found = ", ".join(str(x.dtype)[6:] for x in trial.value)
        yield known.DTYPE, Property("Dtypes stay; those of xq and xk in float32", found, "float32, float32")
    for dtype, trial in casts.items():
        if trial.error is None:
            name = str(dtype)[6:]
            found = ", ".join(str(x.dtype)[6:] for x in trial.value)
            yield known.DTYPE, Property(f"Dtypes stay; those of xq and xk in {name}", found, f"{name}, {name}")


def rotation_explanation(ran: list[tuple[Any, Probe]]) -> Explanation | None:
    """Queries and keys are explained one by one: a mistake may be in one of them only."""
    if all(value is None for value, _ in ran):
        return (known.NOT_RETURNED,)
    if all(isinstance(value, Tensor) and value.shape == case.xq.shape for value, case in ran):
        return (known.ONE_RETURNED,)
    if not any(isinstance(value, tuple | list) and len(value) == 2 for value, _ in ran):
        return (known.NOT_TWO,)
    if not all(isinstance(value, tuple | list) and len(value) == 2 for value, _ in ran):
        return None
    for layout in LAYOUTS:
        swapped = [((value[1], value[0]), case) for value, case in ran]
        if all(is_rotated(value, case, layout) for value, case in swapped):
            return (known.EXCHANGED_QK,)
    if all(same_tensor(*value) for value, _ in ran):
        q = tensor_explanation([(value[0], case.xq, case) for value, case in ran])
        k = tensor_explanation([(value[1], case.xk, case) for value, case in ran])
        if q == () or k == ():
            return (known.SAME_QK,)
    q = tensor_explanation([(value[0], case.xq, case) for value, case in ran])
    if q is None:
        return None
    k = tensor_explanation([(value[1], case.xk, case) for value, case in ran])
    if k is None:
        return None
    if q == k:
        return q
    if (known.STILL,) in (q, k) and () in (q, k):
        return (known.ONLY_Q_ROTATED if k == (known.STILL,) else known.ONLY_K_ROTATED,)
    if (known.SIGN,) in (q, k) and () in (q, k):
        return (known.OPPOSITE,)
    in_q = [fault.only_in("q") for fault in q if fault not in k]
    in_k = [fault.only_in("k") for fault in k if fault not in q]
    in_both = [fault for fault in q if fault in k]
    return (*in_q, *in_k, *in_both)


def same_tensor(x: Any, y: Any) -> bool:
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and torch.equal(x, y)


def tensor_explanation(ran: list[tuple[Any, Tensor, Probe]]) -> Explanation | None:
    """What was done to queries, or to keys: (result, input, probe) of each call that ended without an exception."""
    for recipe in RECIPES.values():
        if all(same(value, rotate(x, case.angle, recipe)) for value, x, case in ran):
            return ()
    for at_once in (1, 2):
        for layout, recipe in RECIPES.items():
            found = explain(recipe, mistakes_in(layout), partial(rotation_gives, ran, recipe), at_once)
            if found is not None:
                return found
    return None


def rotation_gives(ran: list[tuple[Any, Tensor, Probe]], recipe: Recipe, parts: Recipe) -> bool:
    def compared() -> Iterator[tuple[Any, Any, Any]]:
        for value, x, case in ran:
            yield value, rotate(x, case.angle, parts), rotate(x, case.angle, recipe)

    return matches(compared())


LOOK_SHAPES = "Look at the end of the function: view_as_real and flatten(-2) undo what made the pairs."
LOOK_AT_0 = "Look at how pairs are taken apart and put together again: with angle 0 both must undo each other."
LOOK_LENGTHS = "Look at the four products: x cos - y sin, x sin + y cos, with one minus."
LOOK_DISTANCE = "Look at what differs between q and k: both are rotated, by the same table and in the same way."
LOOK_SIGN = "Look at the signs: (1, 0) turns towards (0, 1)."
LOOK_ANGLES = "Look at which angle each pair gets: column i of the table belongs to pair i, row t to token t."


def rotation_properties(ran: list[tuple[Any, Probe]]) -> Iterator[Property]:
    for value, case in ran:
        if isinstance(value, tuple | list) and all(isinstance(x, Tensor) for x in value):
            found = str(tuple(tuple(x.shape) for x in value))
        else:
            found = kind(value)
        expected = str((tuple(case.xq.shape), tuple(case.xk.shape)))
        yield Property("It returns queries and keys in the shapes they came in", found, expected, LOOK_SHAPES)
        complex_ones = [name for name, x in zip("qk", value) if x.is_complex()]
        yield Property("It returns real numbers; complex are", " and ".join(complex_ones), "", LOOK_SHAPES)
    named = []  # q or k, what it became, what it was, and where
    for value, case in ran:
        named += [("q", value[0], case.xq, case), ("k", value[1], case.xk, case)]
    for name, rotated, x, case in named:
        if case.start == 0:
            _, h, i = at = worst(rotated[:, 0], x[:, 0])
            sentence = f"Position 0 is not rotated; {name} of head {h}, channel {i} there"
            yield Property(sentence, float(rotated[:, 0][at]), float(x[:, 0][at]), LOOK_AT_0)
    for name, rotated, x, case in named:
        after = rotated.double().norm(dim=-1)  # (B, T, H)
        before = x.double().norm(dim=-1)  # (B, T, H)
        _, t, h = at = worst(after, before)
        sentence = f"A rotation keeps lengths; that of {name} at position {case.start + t}, head {h}"
        yield Property(
            sentence, float(after[at]), float(before[at]), LOOK_LENGTHS, tolerance=3e-3 * float(1 + before[at])
        )
    for value, case in ran:
        if case.xq.shape[1] == 6:
            early = float((value[0][0, 1, 0] * value[1][0, 0, 0]).sum())
            late = float((value[0][0, 5, 0] * value[1][0, 4, 0]).sum())
            sentence = "A score depends on the distance only; one q and k, moved from positions (1, 0) to (5, 4)"
            yield Property(sentence, late, early, LOOK_DISTANCE)
        if case.xq.shape[1] == 5 and case.xq[0, 0, 0, 0] == 1:
            first = value[0][0, 1, 0]
            yield Property("(1, 0) at position 1 becomes (cos 1, sin 1); its x", float(first[0]), 0.5403, LOOK_SIGN)
            y = float(first[1:].sum())
            yield Property("(1, 0) at position 1 becomes (cos 1, sin 1); its y", y, 0.8415, LOOK_SIGN)
    recipe = RECIPES[intended_layout(ran)]
    for name, rotated, x, case in named:
        right = rotate(x, case.angle, recipe)
        _, t, h, i = at = worst(rotated, right)
        sentence = (
            f"Each pair i rotates by p theta^(-2i/D); {name} at p = {case.start + t}, head {h}, "
            f"channel {i} of {x.shape[-1]}"
        )
        yield Property(
            sentence, float(rotated[at]), float(right[at]), LOOK_ANGLES, tolerance=3e-3 * float(1 + abs(right[at]))
        )


def intended_layout(ran: list[tuple[Any, Probe]]) -> str:
    """The layout whose numbers are nearer to the reader's."""

    def distance(layout: str) -> float:
        total = 0.0
        for value, case in ran:
            for found, x in zip(value, (case.xq, case.xk)):
                total += gap(found, rotate(x, case.angle, RECIPES[layout]))
        return total

    shaped = all(
        isinstance(value, tuple | list) and [getattr(x, "shape", None) for x in value] == [case.xq.shape, case.xk.shape]
        for value, case in ran
    )
    return min(LAYOUTS, key=distance) if shaped else LAYOUTS[0]


def comparisons(ran: list[tuple[Any, Probe]]) -> Iterator[Comparison]:
    recipe = RECIPES[intended_layout(ran)]
    for value, case in ran:
        pair = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
        results: list[tuple[str, Any, Tensor]] = []
        inputs: list[tuple[str, Tensor]] = []
        for name, found, x in zip("qk", pair, (case.xq, case.xk)):
            right = rotate(x, case.angle, recipe)
            results.append((name, found, right))
            if not same(found, right):
                inputs.append((f"x{name}", x))
        end = case.start + case.xq.shape[1]
        positions = f"positions {case.start} .. {end - 1}, theta {case.theta:g}"
        yield Comparison(
            f"{FUNCTION}(xq {kind(case.xq)}, xk {kind(case.xk)}, table of {positions})", results, tuple(inputs[:1])
        )
