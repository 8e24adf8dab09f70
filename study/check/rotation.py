"""Judge ``apply_rotary_emb``: the right rotation in two layouts, the known mistakes, and the properties in order."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import faults as known
from .calls import Caller, Trial, error_count, first_problem, parameters, required
from .forms import FORMS, Conventions, Form
from .properties import Comparison, Property, Requirement, keeps_arguments, kind
from .recipe import Explanation, Mistake, Recipe, explain, matches, same
from .table import angles, unit
from .verdict import Verdict, in_other_order, with_requirements, wrong

FUNCTION = "apply_rotary_emb"
LAYOUTS = ("neighbours", "halves")
OUTCOMES = {"neighbours": "right", "halves": "half-split"}  # of a function that is right in a layout
MAIN = 4  # index of the probe whose T differs from B, H, K and D/2
SMALL_D = 4  # up to this width, many mistakes give the same numbers


# The recipe: x is (B, T, H, D), the angles (T, D/2), and a and b the two numbers of each pair, (B, T, H, D/2). c and s
# are the cosine and sine of the angle of a, u and v those of the angle of b, which differ if layouts are mixed.


def split_neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


def split_halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def interleaved(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2)


def concatenated(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), -1)


def recipe_of(split: Callable[[Tensor], tuple[Tensor, Tensor]], join: Callable[[Tensor, Tensor], Tensor]) -> Recipe:
    """The right recipe for the layout of these two functions."""
    return {
        "split": split,
        "pair_angles": lambda angle: split(join(angle, angle)),
        "broadcast": lambda angle, x: angle[None, :, None],
        "rotate_pair": lambda a, b, c, s, u, v: (a * c - b * s, a * v + b * u),
        "join": join,
        "apply": lambda rotation, x: rotation(x),
        "result": lambda x: x,
    }


RECIPES = {"neighbours": recipe_of(split_neighbours, interleaved), "halves": recipe_of(split_halves, concatenated)}


def rotate(x: Tensor, angle: Tensor, parts: Recipe) -> Tensor:
    """x (B, T, H, D), rotated by angle (T, D/2) with this recipe, in float64. A mistake may return another shape."""

    def rotation(x: Tensor) -> Tensor:
        a, b = parts["split"](x)
        first, second = parts["pair_angles"](parts["broadcast"](angle, x))
        a, b = parts["rotate_pair"](a, b, first.cos(), first.sin(), second.cos(), second.sin())
        return parts["join"](a, b)

    return parts["result"](parts["apply"](rotation, x.double()))


def only_first(axis: int, count: Callable[[int], int]) -> Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]:
    """Rotate only the first ``count`` indices of an axis; ``count`` is computed from its size."""

    def apply(rotation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        size = x.shape[axis]
        chosen = (torch.arange(size) < count(size)).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return torch.where(chosen, rotation(x), x)

    return apply


MISTAKES = [
    Mistake(known.SIGN, "rotate_pair", lambda a, b, c, s, u, v: (a * c + b * s, b * u - a * v)),
    Mistake(known.HEADS, "broadcast", lambda angle, x: angle[: x.shape[2]][None, None]),
    Mistake(known.HEADS, "broadcast", lambda angle, x: angle[None, None]),  # one head is broadcast to T heads
    Mistake(known.BATCH, "broadcast", lambda angle, x: angle[: x.shape[0]][:, None, None]),
    Mistake(known.ONE_ROW, "broadcast", lambda angle, x: angle[:1][None, :, None]),
    Mistake(known.ONE_ROW, "broadcast", lambda angle, x: angle[1:2][None, :, None]),
    Mistake(known.ONE_ROW, "broadcast", lambda angle, x: angle[-1:][None, :, None]),
    Mistake(known.ROW_ORDER, "broadcast", lambda angle, x: angle.flip(0)[None, :, None]),
    Mistake(known.ROW_SHIFTED, "broadcast", lambda angle, x: angle.roll(1, 0)[None, :, None]),
    Mistake(known.ROW_SHIFTED, "broadcast", lambda angle, x: angle.roll(-1, 0)[None, :, None]),
    Mistake(known.COLUMN_ORDER, "broadcast", lambda angle, x: angle.flip(1)[None, :, None]),
    Mistake(known.ONE_ANGLE, "broadcast", lambda angle, x: angle[:, :1].expand_as(angle)[None, :, None]),
    Mistake(known.ONE_ANGLE, "broadcast", lambda angle, x: angle[:, -1:].expand_as(angle)[None, :, None]),
    Mistake(known.REAL, "rotate_pair", lambda a, b, c, s, u, v: (a * c, b * u)),
    Mistake(known.ONLY_SINES, "rotate_pair", lambda a, b, c, s, u, v: (a * s, b * v)),
    Mistake(known.ONLY_SINES, "rotate_pair", lambda a, b, c, s, u, v: (-b * s, a * v)),
    Mistake(known.SWAPPED, "rotate_pair", lambda a, b, c, s, u, v: (a * s - b * c, a * u + b * v)),
    Mistake(known.OVERWRITTEN, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, (a * c - b * s) * v + b * u)),
    Mistake(known.OVERWRITTEN, "rotate_pair", lambda a, b, c, s, u, v: (a * c - (a * v + b * u) * s, a * v + b * u)),
    Mistake(known.ONE_SIGN, "rotate_pair", lambda a, b, c, s, u, v: (a * c + b * s, a * v + b * u)),
    Mistake(known.ONE_SIGN, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, b * u - a * v)),
    Mistake(known.ONE_SIGN, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, a * v - b * u)),
    Mistake(known.ONE_SIGN, "rotate_pair", lambda a, b, c, s, u, v: (b * s - a * c, a * v + b * u)),
    Mistake(known.ONE_SIGN, "rotate_pair", lambda a, b, c, s, u, v: (-a * c - b * s, a * v + b * u)),
    Mistake(known.PARTNER, "rotate_pair", lambda a, b, c, s, u, v: (a * c - a * s, a * v + b * u)),
    Mistake(known.PARTNER, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, b * v + b * u)),
    Mistake(known.PARTNER, "rotate_pair", lambda a, b, c, s, u, v: (a * c - a * s, b * v + b * u)),
    Mistake(known.PARTNER, "rotate_pair", lambda a, b, c, s, u, v: (a * c + a * s, b * v + b * u)),
    Mistake(known.PARTNER, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, a * v + a * u)),
    Mistake(known.PARTNER, "rotate_pair", lambda a, b, c, s, u, v: (b * c - b * s, a * v + b * u)),
    Mistake(known.ONE_TRIG, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * c, a * u + b * u)),
    Mistake(known.ONE_TRIG, "rotate_pair", lambda a, b, c, s, u, v: (a * s - b * s, a * v + b * v)),
    Mistake(known.ONE_TRIG, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, a * u + b * v)),
    Mistake(known.ONE_TRIG, "rotate_pair", lambda a, b, c, s, u, v: (a * s - b * c, a * v + b * u)),
    Mistake(known.PRODUCT, "rotate_pair", lambda a, b, c, s, u, v: (a + c, b + v)),
    Mistake(known.PRODUCT, "rotate_pair", lambda a, b, c, s, u, v: (a * c, b * v)),
    Mistake(known.PRODUCT, "rotate_pair", lambda a, b, c, s, u, v: (a + a * c - b * s, b + a * v + b * u)),
    Mistake(known.CONJUGATED, "rotate_pair", lambda a, b, c, s, u, v: (a * c + b * s, a * v - b * u)),
    Mistake(known.NUMBERS_EXCHANGED, "rotate_pair", lambda a, b, c, s, u, v: (a * v + b * u, a * c - b * s)),
    Mistake(known.NUMBERS_EXCHANGED, "rotate_pair", lambda a, b, c, s, u, v: (b * c - a * s, b * v + a * u)),
    Mistake(known.NUMBERS_EXCHANGED, "rotate_pair", lambda a, b, c, s, u, v: (b * c - a * s, a * v + b * u)),
    Mistake(known.NUMBERS_EXCHANGED, "rotate_pair", lambda a, b, c, s, u, v: (b, a)),
    Mistake(known.ONE_NUMBER, "rotate_pair", lambda a, b, c, s, u, v: (a * c - b * s, b)),
    Mistake(known.ONE_NUMBER, "rotate_pair", lambda a, b, c, s, u, v: (a, a * v + b * u)),
    Mistake(known.INPUT_RETURNED, "rotate_pair", lambda a, b, c, s, u, v: (a, b)),
    Mistake(known.TWICE, "apply", lambda rotation, x: rotation(rotation(x))),
    Mistake(known.SOME_BATCH, "apply", only_first(0, lambda B: 1)),
    Mistake(known.SOME_HEADS, "apply", only_first(2, lambda H: 1)),
    Mistake(known.SOME_TOKENS, "apply", only_first(1, lambda T: 1)),
    Mistake(known.SOME_PAIRS, "apply", only_first(3, lambda D: D // 2)),
    Mistake(known.SOME_PAIRS, "apply", only_first(3, lambda D: 2)),
    Mistake(known.SOME_BATCH, "result", lambda x: x[:1]),
    Mistake(known.SOME_BATCH, "result", lambda x: x[0]),
    Mistake(known.SOME_HEADS, "result", lambda x: x[:, :, :1]),
    Mistake(known.AXES, "result", lambda x: x.transpose(1, 2)),
    Mistake(known.AXES, "result", lambda x: x.flatten(2)),
    Mistake(known.VIEWED, "result", lambda x: x.transpose(1, 2).reshape(x.shape)),
    Mistake(known.SCALED_X, "result", lambda x: x / x.shape[-1] ** 0.5),
    Mistake(known.SCALED_X, "result", lambda x: x * 2),
    Mistake(known.SCALED_X, "result", lambda x: x / x.norm(dim=-1, keepdim=True)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -1)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -2)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -1).flatten(2, 3)),
    Mistake(known.UNFLATTENED, "join", lambda a, b: torch.stack((a, b), -1).flatten(2)),
    Mistake(known.VIEWED, "join", lambda a, b: torch.stack((a, b), 0).reshape(*a.shape[:-1], -1)),
    Mistake(known.VIEWED, "join", lambda a, b: torch.stack((a, b), 1).reshape(*a.shape[:-1], -1)),
    Mistake(known.VIEWED, "join", lambda a, b: torch.stack((a, b), 2).reshape(*a.shape[:-1], -1)),
    Mistake(known.VIEW_AS_REAL, "join", lambda a, b: torch.complex(a, b)),
    Mistake(known.REAL_PART, "join", lambda a, b: a),
    Mistake(known.REAL_PART, "join", lambda a, b: b),
    Mistake(known.REAL_PART, "join", lambda a, b: interleaved(a, a)),
    Mistake(known.REAL_PART, "join", lambda a, b: concatenated(a, a)),
    Mistake(known.REAL_PART, "join", lambda a, b: interleaved(a, 0 * b)),
]


def mistakes_in(layout: str) -> list[Mistake]:
    """The known mistakes of a rotation in this layout, including those that mix it with the other layout."""
    if layout == "neighbours":
        split, other_join = split_neighbours, concatenated
    else:
        split, other_join = split_halves, interleaved
    return [
        Mistake(known.MIXED, "pair_angles", lambda angle: split(other_join(angle, angle))),
        Mistake(known.MIXED, "join", other_join),
        *MISTAKES,
    ]


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
    """1, 2, 3 .. in this shape, so that the smallest cases can be computed by hand."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def probes() -> list[Probe]:
    """The smallest first; then T, H and K equal, so that exchanged axes raise no error; then different sizes."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    constant = random(1, 1, 1, 8).expand(1, 6, 2, 8).contiguous()  # one vector at all positions
    one = torch.zeros(1, 5, 2, 6, dtype=torch.float32)
    one[..., 0] = 1
    return [
        Probe(counted(1, 2, 1, 2), counted(1, 2, 1, 2), 0, 10000.0),
        Probe(counted(1, 3, 1, 4), counted(1, 3, 1, 4), 0, 10000.0),
        Probe(counted(1, 3, 2, 4), counted(1, 3, 1, 4), 1, 10000.0),
        Probe(random(1, 3, 3, 6), random(1, 3, 3, 6), 0, 500.0),
        Probe(random(2, 5, 4, 8), random(2, 5, 2, 8), 0, 10000.0),
        Probe(constant, random(1, 1, 1, 8).expand(1, 6, 1, 8).contiguous(), 0, 10000.0),
        Probe(one, one[:, :, :1].clone(), 0, 10000.0),
        Probe(random(1, 7, 6, 10), random(1, 7, 3, 10), 20, 10000.0),
    ]


def is_rotated(value: Any, case: Probe, layout: str) -> bool:
    right = [rotate(x, case.angle, RECIPES[layout]) for x in (case.xq, case.xk)]
    if isinstance(value, Tensor) and value.shape[:1] != (2,):
        return False
    return same(list(value) if isinstance(value, tuple | list | Tensor) else value, right)


def worst(found: Tensor, right: Tensor) -> tuple[int, ...]:
    """The index at which two tensors of equal shape differ most."""
    difference = torch.nan_to_num((found.double() - right.double()).abs(), nan=torch.inf)
    return tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))


def nearest_layout(found: list[Any], right: dict[str, list[Tensor]]) -> str:
    """The layout whose right results are nearest to the results that the reader's function returned."""

    def distance(layout: str) -> float:
        total = 0.0
        for x, y in zip(found, right[layout]):
            total += float((x.double() - y.double()).abs().mean().nan_to_num(nan=torch.inf))
        return total

    for x, y in zip(found, right[LAYOUTS[0]]):
        if not isinstance(x, Tensor) or x.shape != y.shape:
            return LAYOUTS[0]
    return min(LAYOUTS, key=distance)


def judge_rotation(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function, cases = names[FUNCTION], probes()
    attempts: list[tuple[Form, list[Trial]]] = []
    for form in dict.fromkeys([conventions.table or FORMS[0], *FORMS]):
        given = [arguments(case, form) for case in cases]
        trials = caller.trials(call_with(function, form), given, parameters(FUNCTION))
        for layout in LAYOUTS:
            if all(is_rotated(trial.value, case, layout) for trial, case in zip(trials, cases)):
                conventions.layout = layout
                return right_rotation(function, form, trials, conventions, caller)
        attempts.append((form, trials))
    if not caller.explain_mistakes:
        return Verdict(FUNCTION, "wrong")
    if conventions.table:
        attempts = attempts[:1]
    form, trials = min(attempts, key=lambda attempt: error_count(attempt[1]))
    conventions.table = form
    results = [(trial.value, case) for trial, case in zip(trials, cases) if trial.error is None]
    # If some calls raised, the smallest cases prove nothing, because many mistakes fit them.
    evidence = results
    if len(results) < len(cases):
        evidence = [(value, case) for value, case in results if case.xq.shape[3] > SMALL_D]
    explanation = rotation_explanation(evidence) if evidence else None
    if explanation is None:
        tried = cases[MAIN - 1 : MAIN + 1]

        def is_right(value: Any, number: int) -> bool:
            return any(is_rotated(value, tried[number], layout) for layout in LAYOUTS)

        given = [arguments(case, form) for case in tried]
        order = caller.other_order(lambda: call_with(function, form), given, is_right)
        if order:
            return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    return wrong(FUNCTION, explanation, rotation_properties(results), comparisons(results), 5, first_problem(trials))


def arguments(case: Probe, form: Form) -> tuple[Any, ...]:
    return case.xq, case.xk, form.write(unit(case.angle))


def call_with(function: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """The reader's function; a table (cos, sin) is passed as two arguments if the function takes four."""
    if form.container != "tuple" or required(function) < 4:
        return function
    return lambda xq, xk, table: function(xq, xk, *table)


def right_rotation(
    function: Callable[..., Any], form: Form, trials: list[Trial], conventions: Conventions, caller: Caller
) -> Verdict:
    """The verdict on a function that is right for tables of one form: wrong if the reader's table has another form."""
    outcome = OUTCOMES[conventions.layout]
    if conventions.table != form and "precompute_freqs_cis" in conventions.right:
        fault = known.OTHER_FORM
        if conventions.table and conventions.table._replace(width=form.width) == form:
            fault = known.MIXED  # the angles have one layout and the pairs the other
        sentence = "It reads the table in the form that precompute_freqs_cis returns"
        failing = Property(sentence, description(form), description(conventions.table))
        return Verdict(FUNCTION, "wrong", str(failing), [fault])
    conventions.table = form
    case = probes()[MAIN]
    casts = {}
    for dtype in (torch.float64, torch.bfloat16):
        cast = case._replace(xq=case.xq.to(dtype), xk=case.xk.to(dtype))
        casts[dtype] = caller.trial(call_with(function, form), arguments(cast, form), parameters(FUNCTION))
    verdict = with_requirements(FUNCTION, rotation_requirements(trials, casts), outcome)
    error = casts[torch.bfloat16].error
    if verdict.outcome == outcome and error is not None:
        verdict.remarks.append(
            f"Queries in bfloat16 raise {type(error).__name__}: rotate in float32 (.float()), then .type_as(xq)."
        )
    return verdict


def description(form: Form | None) -> str:
    if form is None:
        return "unknown"
    columns = {
        "single": "D/2 columns",
        "halves": "D columns (each angle twice, in halves)",
        "neighbours": "D columns (each angle twice, side by side)",
    }[form.width]
    names = "sin and cos" if form.sin_first else "cos and sin"
    text = {
        "complex": f"complex of {columns}",
        "last": f"{names} in a last axis of 2",
        "tuple": f"{names} of {columns}",
        "stack": f"{names} of {columns}, stacked",
    }[form.container]
    if form.before or form.between:
        text += ", already reshaped for broadcasting"
    return text


def rotation_requirements(trials: list[Trial], casts: dict[torch.dtype, Trial]) -> Iterator[Requirement]:
    yield keeps_arguments(trials)
    all_trials = [(torch.float32, trial) for trial in trials]
    all_trials += [(dtype, trial) for dtype, trial in casts.items() if trial.error is None]
    for dtype, trial in all_trials:
        name = str(dtype)[6:]
        found = ", ".join(str(x.dtype)[6:] for x in trial.value)
        yield known.DTYPE, Property(f"Dtypes are kept; those of xq and xk in {name}", found, f"{name}, {name}")


def rotation_explanation(results: list[tuple[Any, Probe]]) -> Explanation | None:
    """The mistake in q and k, which are explained separately, because only one of them may be wrong."""
    if all(value is None for value, _ in results):
        return (known.NOT_RETURNED,)
    if all(isinstance(value, Tensor) and value.shape == case.xq.shape for value, case in results):
        return (known.ONE_RETURNED,)
    pairs = [(value, case) for value, case in results if isinstance(value, tuple | list) and len(value) == 2]
    if not pairs:
        return (known.NOT_TWO,)
    if len(pairs) < len(results):
        return None
    for layout in LAYOUTS:
        if all(is_rotated((value[1], value[0]), case, layout) for value, case in pairs):
            return (known.EXCHANGED_QK,)
    q = tensor_explanation([(value[0], case.xq, case) for value, case in pairs])
    same_twice = all(equal_tensors(*value) for value, _ in pairs)
    if q is None and not same_twice:
        return None
    k = tensor_explanation([(value[1], case.xk, case) for value, case in pairs])
    if same_twice and () in (q, k):
        return (known.SAME_QK,)
    if q is None or k is None:
        return None
    if q == k:
        return q
    if (q, k) == ((), (known.INPUT_RETURNED,)):
        return (known.ONLY_Q_ROTATED,)
    if (q, k) == ((known.INPUT_RETURNED,), ()):
        return (known.ONLY_K_ROTATED,)
    if (known.SIGN,) in (q, k) and () in (q, k):
        return (known.OPPOSITE,)
    in_q = [fault.only_in("q") for fault in q if fault not in k]
    in_k = [fault.only_in("k") for fault in k if fault not in q]
    in_both = [fault for fault in q if fault in k]
    return (*in_q, *in_k, *in_both)


def equal_tensors(x: Any, y: Any) -> bool:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dtype != y.dtype:
        return False
    wide = torch.complex128 if x.is_complex() else torch.float64  # torch.equal does not support every dtype
    return torch.equal(x.to(wide), y.to(wide))


def tensor_explanation(results: list[tuple[Any, Tensor, Probe]]) -> Explanation | None:
    """The mistake in the queries, or in the keys: result, input and probe of each call that did not raise."""
    for recipe in RECIPES.values():
        if all(same(value, rotate(x, case.angle, recipe)) for value, x, case in results):
            return ()
    for at_once in (1, 2):
        for layout, recipe in RECIPES.items():
            found = explain(recipe, mistakes_in(layout), partial(fits_rotation, results, recipe), at_once)
            if found is not None:
                return found
    return None


def fits_rotation(results: list[tuple[Any, Tensor, Probe]], recipe: Recipe, parts: Recipe) -> bool:
    return matches((value, rotate(x, case.angle, parts), rotate(x, case.angle, recipe)) for value, x, case in results)


LOOK_SHAPES = "Look at the end of the function: view_as_real and flatten(-2) undo the splitting into pairs."
LOOK_AT_0 = "Look at the splitting into pairs and the joining: with angle 0, the second undoes the first."
LOOK_LENGTHS = "Look at the four products: x cos - y sin, x sin + y cos, with one minus."
LOOK_DISTANCE = "Look at the differences between q and k: both are rotated by the same table and in the same way."
LOOK_SIGN = "Look at the signs: (1, 0) rotates towards (0, 1)."
LOOK_ANGLES = "Look at the angle of each pair: column i of the table belongs to pair i, row t to token t."


def rotation_properties(results: list[tuple[Any, Probe]]) -> Iterator[Property]:
    for value, case in results:
        if isinstance(value, tuple | list) and all(isinstance(x, Tensor) for x in value):
            found = str(tuple(tuple(x.shape) for x in value))
        else:
            found = kind(value)
        expected = str((tuple(case.xq.shape), tuple(case.xk.shape)))
        yield Property("Queries and keys are returned in the shapes of the arguments", found, expected, LOOK_SHAPES)
        complex_names = [name for name, x in zip("qk", value) if x.is_complex()]
        names = " and ".join(complex_names) or "none"
        yield Property("Complex results", names, "none", LOOK_SHAPES)
    tensors = []  # name, result, input, probe
    for value, case in results:
        tensors += [("q", value[0], case.xq, case), ("k", value[1], case.xk, case)]
    for name, rotated, x, case in tensors:
        if case.start == 0:
            _, h, i = at = worst(rotated[:, 0], x[:, 0])
            sentence = f"Position 0 is not rotated; {name} of head {h}, channel {i} there"
            yield Property(sentence, float(rotated[:, 0][at]), float(x[:, 0][at]), LOOK_AT_0)
    for name, rotated, x, case in tensors:
        after = rotated.double().norm(dim=-1)  # (B, T, H)
        before = x.double().norm(dim=-1)  # (B, T, H)
        _, t, h = at = worst(after, before)
        sentence = f"A rotation keeps lengths; that of {name} at position {case.start + t}, head {h}"
        tolerance = 3e-3 * float(1 + before[at])
        yield Property(sentence, float(after[at]), float(before[at]), LOOK_LENGTHS, tolerance)
    for value, case in results:
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
    recipe = RECIPES[intended_layout(results)]
    for name, rotated, x, case in tensors:
        right = rotate(x, case.angle, recipe)
        _, t, h, i = at = worst(rotated, right)
        place = f"{name} at p = {case.start + t}, head {h}, channel {i} of {x.shape[-1]}"
        tolerance = 3e-3 * float(1 + abs(right[at]))
        sentence = f"Each pair i rotates by p theta^(-2i/D); {place}"
        yield Property(sentence, float(rotated[at]), float(right[at]), LOOK_ANGLES, tolerance)


def queries_and_keys(value: Any) -> tuple[Any, Any]:
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    return value, value


def intended_layout(results: list[tuple[Any, Probe]]) -> str:
    found = [x for value, _ in results for x in queries_and_keys(value)]
    inputs = [(x, case.angle) for _, case in results for x in (case.xq, case.xk)]
    return nearest_layout(
        found, {layout: [rotate(x, angle, recipe) for x, angle in inputs] for layout, recipe in RECIPES.items()}
    )


def comparisons(results: list[tuple[Any, Probe]]) -> Iterator[Comparison]:
    recipe = RECIPES[intended_layout(results)]
    for value, case in results:
        found = queries_and_keys(value)
        right = [rotate(x, case.angle, recipe) for x in (case.xq, case.xk)]
        inputs = (("xq", case.xq),) if not same(found[0], right[0]) else (("xk", case.xk),)
        end = case.start + case.xq.shape[1]
        table = f"table of positions {case.start} .. {end - 1}, theta {case.theta:g}"
        call = f"{FUNCTION}(xq {kind(case.xq)}, xk {kind(case.xk)}, {table})"
        yield Comparison(call, [("q", found[0], right[0]), ("k", found[1], right[1])], inputs)
