"""``attention`` with grouped heads: what it must give, and what known mistakes make of it."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import faults as known
from .calls import Caller, Trial, parameters
from .faults import Fault
from .forms import FORMS, Conventions, Form
from .recipe import Explanation, Mistake, Recipe, explain, matches, same
from .rotation import LAYOUTS, OUTCOMES, RECIPES, Probe, gap, mistakes_in, probes, rotate, worst
from .table import unit
from .verdict import Comparison, Property, Verdict, demanded, in_other_order, kind, wrong

FUNCTION = "attention"
FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
MAIN = 4  # the case whose sizes all differ; its mask is no triangle
ALL_FIT = 3  # the case with T == H == K


class Case(NamedTuple):
    probe: Probe  # queries and keys
    xv: Tensor  # (B, T, K, D)
    mask: Tensor  # (T, T)


def cases() -> list[Case]:
    """Triangles first, the smallest first; then masks that are none, because the argument says what may be seen."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for number, probe in enumerate(probes()):
        T = probe.xq.shape[1]
        values = torch.randn(probe.xk.shape, generator=generator, dtype=torch.float32)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        if number < ALL_FIT:
            probe = probe._replace(xq=probe.xq / 4, xk=probe.xk / 4)
            values = probe.xk * 4
        if number in (MAIN, MAIN + 1):
            mask = torch.rand(T, T, generator=generator) < 0.6
            mask[torch.arange(T), torch.arange(T).flip(0)] = True  # each token sees at least one key
        if number == MAIN + 1:  # one vector at all positions, and values of 1
            values = torch.ones_like(values)
        found.append(Case(probe, values, mask))
    last = found[-1]
    found.append(last._replace(probe=last.probe._replace(start=3)))  # the same at other positions
    return found


# The recipe. q is (B, T, H, D), k and v (B, T, K, D); after ``grouped`` all have H heads, and after ``heads_first``
# they are (B, H, T, D). Scores and weights are (B, H, T, S).


def repeated(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, 2)


def tiled(x: Tensor, groups: int) -> Tensor:
    return x.repeat(1, 1, groups, 1)


def first_head(x: Tensor, groups: int) -> Tensor:
    return x[:, :, :1].repeat(1, 1, groups * x.shape[2], 1)


def reversed_heads(x: Tensor, groups: int) -> Tensor:
    return repeated(x, groups).flip(2)


def averaged_heads(x: Tensor, groups: int) -> Tensor:
    return x.mean(2, keepdim=True).repeat(1, 1, groups * x.shape[2], 1)


def group(keys: Callable[[Tensor, int], Tensor], values: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """The part that gives each query head its key/value head."""
    return lambda k, v, groups: (keys(k, groups), values(v, groups))


def scaled(scores: Tensor, q: Tensor) -> Tensor:
    return scores / math.sqrt(q.shape[-1])


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf)


def unmasked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores


def triangle(mask: Tensor) -> Tensor:
    return torch.ones_like(mask).tril()


def swap(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def view(x: Tensor) -> Tensor:
    """The numbers of x in their order in memory, with axes 1 and 2 exchanged in name only."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], *x.shape[3:])


def recipe_in(layout: str) -> Recipe:
    """The right recipe, for a rotation in this layout."""
    return {
        "rotated": lambda q, k, angle: (rotate(q, angle, RECIPES[layout]), rotate(k, angle, RECIPES[layout])),
        "values": lambda v, angle: v,
        "grouped": group(repeated, repeated),
        "heads_first": swap,
        "scores": lambda q, k: q @ k.mT,
        "scaled": scaled,
        "seen": lambda mask: mask,
        "masked": masked,
        "weights": lambda scores: scores.softmax(-1),
        "weighed": lambda masked, weights, scores, mask: weights(masked(scores, mask)),
        "mixed": lambda weights, q, k, v: weights @ v,
        "back": swap,
        "result": lambda out, case: out,
    }


def attend(case: Case, parts: Recipe) -> Tensor:
    """(B, T, H, D) in float64; a mistake may give another shape."""
    angle, mask = case.probe.angle, parts["seen"](case.mask)
    q, k = parts["rotated"](case.probe.xq.double(), case.probe.xk.double(), angle)
    v = parts["values"](case.xv.double(), angle)
    groups = case.probe.xq.shape[2] // case.xv.shape[2]
    k, v = parts["grouped"](k, v, groups)
    q, k, v = (parts["heads_first"](x) for x in (q, k, v))
    scores = parts["scaled"](parts["scores"](q, k), q)
    weights = parts["weighed"](parts["masked"], parts["weights"], scores, mask)
    return parts["result"](parts["back"](parts["mixed"](weights, q, k, v)), case)


def mistakes_of(layout: str) -> list[Mistake]:
    """Those of attention itself; two of them are tried at once."""
    right = RECIPES[layout]

    def rotated(x: Tensor, angle: Tensor) -> Tensor:
        return rotate(x, angle, right)

    def per_row(scale: Callable[[Tensor], float]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda scores, q: scores / scale(q)

    return [
        Mistake(known.MASK_UNUSED, "masked", unmasked),
        Mistake(known.INVERTED_MASK, "seen", lambda mask: ~mask),
        Mistake(known.TRANSPOSED_MASK, "seen", lambda mask: mask.T),
        Mistake(known.OWN_MASK, "seen", triangle),
        Mistake(known.SELF_HIDDEN, "seen", lambda mask: mask & ~torch.eye(len(mask), dtype=torch.bool)),
        Mistake(known.SELF_HIDDEN, "seen", lambda mask: mask.tril(-1)),
        Mistake(known.OWN_MASK, "seen", lambda mask: mask.tril()),
        Mistake(known.OWN_MASK, "seen", lambda mask: mask | torch.eye(len(mask), dtype=torch.bool)),
        Mistake(known.OWN_MASK, "seen", lambda mask: torch.ones_like(mask).triu()),
        Mistake(known.OWN_MASK, "seen", lambda mask: mask.triu()),
        Mistake(known.OWN_MASK, "seen", lambda mask: mask[-1:].expand_as(mask)),
        Mistake(known.OWN_MASK, "seen", lambda mask: mask[:1].expand_as(mask)),
        Mistake(known.UNSCALED, "scaled", per_row(lambda q: 1.0)),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[-1])),
        Mistake(known.SCALE, "scaled", per_row(lambda q: math.sqrt(q.shape[-1] * q.shape[1]))),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[-1] ** -0.5)),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[-1] ** 0.25)),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[-1] ** 2)),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[-1] ** -1.0)),
        Mistake(known.SCALE, "scaled", per_row(lambda q: math.sqrt(q.shape[-1] / 2))),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[-1] / 2)),
        Mistake(known.SCALE, "scaled", per_row(lambda q: math.sqrt(q.shape[1]))),
        Mistake(known.SCALE, "scaled", per_row(lambda q: math.sqrt(q.shape[2]))),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[1])),
        Mistake(known.SCALE, "scaled", per_row(lambda q: q.shape[2])),
        Mistake(known.SCALE, "scaled", per_row(lambda q: math.log(q.shape[-1]))),
        Mistake(known.SCALE, "scaled", per_row(lambda q: -math.sqrt(q.shape[-1]))),
        Mistake(known.MASK_ZERO, "masked", lambda scores, mask: scores.masked_fill(~mask, 0.0)),
        Mistake(known.MASK_SMALL, "masked", lambda scores, mask: scores.masked_fill(~mask, -1.0)),
        Mistake(known.MASK_SMALL, "masked", lambda scores, mask: scores.masked_fill(~mask, 1.0)),
        Mistake(known.MASK_SMALL, "masked", lambda scores, mask: scores.masked_fill(~mask, -10.0)),
        Mistake(known.MASK_ADDED, "masked", lambda scores, mask: scores + mask),
        Mistake(known.MASK_ADDED, "masked", lambda scores, mask: scores - mask.double()),
        Mistake(known.MASK_ADDED, "masked", lambda scores, mask: scores - (~mask).double()),
        Mistake(known.MASK_ADDED, "masked", lambda scores, mask: scores + ~mask),
        Mistake(known.MASK_MULTIPLIED, "masked", lambda scores, mask: scores * mask),
        Mistake(known.MASK_AFTER, "weighed", lambda masked, weights, scores, mask: weights(scores) * mask),
        Mistake(known.MASK_AFTER, "weighed", lambda masked, weights, scores, mask: masked(weights(scores), mask)),
        Mistake(known.SOFTMAX, "weights", lambda scores: scores.softmax(-2)),
        Mistake(known.SOFTMAX, "weights", lambda scores: scores.softmax(0)),
        Mistake(known.SOFTMAX_HEADS, "weights", lambda scores: scores.softmax(1)),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: scores),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: scores.masked_fill(scores.isinf(), 0)),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: scores.sigmoid()),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: scores.relu()),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: scores.tanh()),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: (scores == scores.amax(-1, keepdim=True)).double()),
        Mistake(known.NO_SOFTMAX, "weights", lambda scores: scores / scores.sum(-1, keepdim=True)),
        Mistake(known.NOT_NORMALISED, "weights", lambda scores: scores.exp()),
        Mistake(known.NOT_NORMALISED, "weights", lambda scores: (scores - scores.amax(-1, keepdim=True)).exp()),
        Mistake(known.NOT_NORMALISED, "weights", lambda scores: scores.exp() / scores.exp().sum(-2, keepdim=True)),
        Mistake(
            known.NOT_NORMALISED, "weights", lambda scores: scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
        ),
        Mistake(known.SOFTMAX_TWICE, "weights", lambda scores: scores.softmax(-1).softmax(-1)),
        Mistake(known.NOT_NORMALISED, "weights", lambda scores: (-scores).softmax(-1)),
        Mistake(known.LOGARITHM, "weights", lambda scores: scores.log_softmax(-1)),
        Mistake(known.LOGARITHM, "weights", lambda scores: scores.log_softmax(-1).nan_to_num(neginf=0)),
        Mistake(known.SCORES_TRANSPOSED, "scores", lambda q, k: k @ q.mT),
        Mistake(
            known.WEIGHTS_TRANSPOSED, "weighed", lambda masked, weights, scores, mask: weights(masked(scores, mask)).mT
        ),
        Mistake(known.SCORES_OF_ONE, "scores", lambda q, k: q @ q.mT),
        Mistake(known.SCORES_OF_ONE, "scores", lambda q, k: k @ k.mT),
        Mistake(known.COSINES, "scores", lambda q, k: unit_length(q) @ unit_length(k).mT),
        Mistake(known.KEYS_MIXED, "mixed", lambda weights, q, k, v: weights @ k),
        Mistake(known.QUERIES_MIXED, "mixed", lambda weights, q, k, v: weights @ q),
        Mistake(known.WEIGHTS, "mixed", lambda weights, q, k, v: weights),
        Mistake(known.RESIDUAL, "result", lambda out, case: out + case.probe.xq),
        Mistake(known.RESIDUAL, "result", lambda out, case: out + rotated(case.probe.xq.double(), case.probe.angle)),
        Mistake(known.MEAN, "mixed", lambda weights, q, k, v: weights @ v / v.shape[2]),
        Mistake(known.ONE_HEAD_RETURNED, "result", lambda out, case: out.mean(2, keepdim=True).expand_as(out)),
        Mistake(known.ONE_HEAD_RETURNED, "result", lambda out, case: out.mean(2)),
        Mistake(known.ONE_HEAD_RETURNED, "result", lambda out, case: out.sum(2)),
        Mistake(known.SOME_BATCH, "result", lambda out, case: out[:1]),
        Mistake(known.SOME_BATCH, "result", lambda out, case: out[0]),
        Mistake(known.SOME_BATCH, "result", lambda out, case: out[:1].expand_as(out)),
        Mistake(known.SOME_TOKENS, "result", lambda out, case: out[:, -1:]),
        Mistake(known.SOME_TOKENS, "result", lambda out, case: out[:, -1]),
        Mistake(known.REGROUPED, "result", regrouped),
        Mistake(known.NOT_BACK, "back", lambda out: out),
        Mistake(known.NOT_BACK, "back", lambda out: out.flatten(2)),
        Mistake(known.VIEWED, "back", view),
        Mistake(known.VIEWED, "heads_first", view),
        Mistake(known.OVER_HEADS, "heads_first", lambda x: x),
        Mistake(known.UNROTATED, "rotated", lambda q, k, angle: (q, k)),
        Mistake(known.ONLY_Q_ROTATED, "rotated", lambda q, k, angle: (rotated(q, angle), k)),
        Mistake(known.ONLY_K_ROTATED, "rotated", lambda q, k, angle: (q, rotated(k, angle))),
        Mistake(known.TWICE, "rotated", lambda q, k, angle: (rotated(q, 2 * angle), rotated(k, 2 * angle))),
        Mistake(known.TWICE.only_in("q"), "rotated", lambda q, k, angle: (rotated(q, 2 * angle), rotated(k, angle))),
        Mistake(known.TWICE.only_in("k"), "rotated", lambda q, k, angle: (rotated(q, angle), rotated(k, 2 * angle))),
        Mistake(known.OPPOSITE, "rotated", lambda q, k, angle: (rotated(q, angle), rotated(k, -angle))),
        Mistake(known.OPPOSITE, "rotated", lambda q, k, angle: (rotated(q, -angle), rotated(k, angle))),
        Mistake(known.EXCHANGED_QK, "rotated", lambda q, k, angle: (rotated(k, angle), rotated(q, angle))),
        Mistake(
            known.POSITIONS.only_in("k"), "rotated", lambda q, k, angle: (rotated(q, angle), rotated(k, angle.flip(0)))
        ),
        Mistake(
            known.POSITIONS.only_in("q"), "rotated", lambda q, k, angle: (rotated(q, angle.flip(0)), rotated(k, angle))
        ),
        Mistake(known.VALUES, "values", rotated),
        Mistake(known.OUTPUT, "result", lambda out, case: rotated(out, case.probe.angle)),
        Mistake(known.OUTPUT, "result", lambda out, case: rotated(out, -case.probe.angle)),
        Mistake(known.TILED, "grouped", group(tiled, tiled)),
        Mistake(known.TILED_KEYS, "grouped", group(tiled, repeated)),
        Mistake(known.TILED_VALUES, "grouped", group(repeated, tiled)),
        Mistake(known.ONE_GROUP, "grouped", group(first_head, first_head)),
        Mistake(known.ONE_GROUP, "grouped", group(averaged_heads, averaged_heads)),
        Mistake(known.ONE_GROUP.only_in("k"), "grouped", group(first_head, repeated)),
        Mistake(known.ONE_GROUP.only_in("v"), "grouped", group(repeated, first_head)),
        Mistake(known.HEADS_REVERSED, "grouped", group(reversed_heads, reversed_heads)),
        Mistake(known.HEADS_REVERSED.only_in("k"), "grouped", group(reversed_heads, repeated)),
        Mistake(known.HEADS_REVERSED.only_in("v"), "grouped", group(repeated, reversed_heads)),
    ]


def unit_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def regrouped(out: Tensor, case: Case) -> Tensor:
    """Heads in the order of (H / K, K) instead of (K, H / K)."""
    groups = out.shape[2] // case.xv.shape[2]
    return out.unflatten(2, (groups, -1)).transpose(2, 3).flatten(2, 3)


def rotation_mistakes(layout: str) -> Iterator[Mistake]:
    """Those of a rotation that attention does itself, made in both q and k."""
    for mistake in mistakes_in(layout):
        if mistake.part == "result":  # of the function, and not of the rotation
            continue
        parts = RECIPES[layout] | {mistake.part: mistake.wrong}

        def rotated(q: Tensor, k: Tensor, angle: Tensor, parts: Recipe = parts) -> tuple[Tensor, Tensor]:
            return rotate(q, angle, parts), rotate(k, angle, parts)

        yield Mistake(mistake.fault, "rotated", rotated)


def is_attended(value: Any, case: Case, layout: str) -> bool:
    return same(in_heads(value, case), attend(case, recipe_in(layout)))


def in_heads(value: Any, case: Case) -> Any:
    """Heads that were joined, (B, T, H D), taken apart again: the next line of most networks joins them."""
    shape = case.probe.xq.shape
    if isinstance(value, Tensor) and value.shape == (*shape[:2], shape[2] * shape[3]):
        return value.reshape(shape)
    return value


class Watch(TorchFunctionMode):
    """Notices a call of a function that computes attention as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in FUSED:
            self.seen = name
        return func(*args, **(kwargs or {}))


def judge_attention(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function, asked, watch = names[FUNCTION], cases(), Watch()

    def call(*given: Any) -> Any:
        with watch:
            return function(*given)

    attempts: list[tuple[Form, list[Trial]]] = []
    forms = [conventions.table] if conventions.table else FORMS
    for form in forms:
        trials = caller.trials(call, [given(case, form) for case in asked], parameters(FUNCTION))
        for layout in (conventions.layout, *LAYOUTS):
            if all(is_attended(trial.value, case, layout) for trial, case in zip(trials, asked)):
                conventions.attention_layout = layout
                return demanded(FUNCTION, attention_demands(trials, watch), OUTCOMES[layout])
        attempts.append((form, trials))
    if caller.brief:
        return Verdict(FUNCTION, "wrong")
    form, trials = min(attempts, key=lambda attempt: sum(trial.error is not None for trial in attempt[1]))
    problem = next((trial.problem for trial in trials if trial.problem), "")
    ran = [(in_heads(trial.value, case), case) for trial, case in zip(trials, asked) if trial.error is None]
    explanation: Explanation | None = None
    large = []  # if some raised, what the smallest cases give says nothing: with T == D many a mistake fits
    if len(ran) < len(asked):
        large = [
            (value, case) for value, case in ran if len(case.mask) >= ALL_FIT and case.probe.xq.shape[3] > ALL_FIT + 1
        ]
    if ran and all(value is None for value, _ in ran):
        explanation = (known.NOT_RETURNED,)
    elif not same(caller.trial(call, given(asked[MAIN], form)).value, trials[MAIN].value):
        explanation = (known.RANDOM,)
    elif len(ran) == len(asked) or large:
        explanation = attention_explanation(large or ran, conventions.layout, complete=not large)
    if explanation is None:
        order = other_order(call, caller, asked, form)
        if order:
            return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    elif watch.seen:
        explanation = (*explanation, known.SDPA)
    verdict = wrong(FUNCTION, explanation, attention_properties(ran), comparisons(ran), 6, problem)
    changed = dict.fromkeys(name for trial in trials for name in trial.changed)
    if changed:
        verdict.remarks.append(f"It overwrites {', '.join(changed)}, which the caller may still need.")
    return verdict


def given(case: Case, form: Form) -> tuple[Any, ...]:
    return case.probe.xq, case.probe.xk, case.xv, form.write(unit(case.probe.angle)), case.mask


def other_order(call: Callable[..., Any], caller: Caller, asked: list[Case], form: Form) -> tuple[int, ...]:
    """The order of arguments in which it would be right. One case is tried: there are 119 orders."""
    case = asked[MAIN]

    def fits(value: Any, number: int) -> bool:
        return any(is_attended(value, case, layout) for layout in LAYOUTS)

    return caller.other_order(call, [given(case, form)], fits)


def attention_demands(trials: list[Trial], watch: Watch) -> Iterator[tuple[Fault, Property]]:
    changed = dict.fromkeys(name for trial in trials for name in trial.changed)
    yield known.CHANGED, Property("What it is given stays as it is; overwritten", ", ".join(changed), "")
    yield known.SDPA, Property("The softmax is written out; it is left to", watch.seen or "nobody", "nobody")


def attention_explanation(ran: list[tuple[Any, Case]], layout: str, complete: bool) -> Explanation | None:
    """``complete`` if no case raised: if one did, the mistakes that do not fit all shapes are tried first."""
    if not all(isinstance(value, Tensor) for value, _ in ran):
        return None
    # A case that tells mistakes apart comes first, because most are ruled out by it.
    ran = sorted(ran, key=lambda pair: not (pair[1].xv.shape[0] > 1 or len(pair[1].mask) == ALL_FIT))
    layouts = list(dict.fromkeys((layout, *LAYOUTS)))

    def gives(right: list[Tensor], parts: Recipe) -> bool:
        def compared() -> Iterator[tuple[Any, Any, Any]]:
            for (value, case), expected in zip(ran, right):
                yield value, in_heads(attend(case, parts), case), expected

        return matches(compared())

    for at_once in (1, 2):
        for each in layouts[: 3 - at_once]:  # there are thousands of pairs, so these only in the layout of the rotation
            recipe = recipe_in(each)
            right = [attend(case, recipe) for _, case in ran]
            mistakes = mistakes_of(each)
            if at_once == 1 and complete:
                mistakes = [*mistakes, *rotation_mistakes(each)]
            elif at_once == 1:
                mistakes = [*rotation_mistakes(each), *mistakes]
            found = explain(recipe, mistakes, partial(gives, right), at_once)
            if found is not None:
                return found
    return None


LOOK_SHAPE = "Look at the last lines: (B, H, T, D) becomes (B, T, H, D) by .transpose(1, 2)."
LOOK_ITSELF = "Look at the mask and at the heads: a token that sees one key gets that key's value, whatever the scores."
LOOK_SUM = "Look at the softmax: over the keys (dim=-1), after the mask."
LOOK_DISTANCE = "Look at the rotation: xq and xk, both and once, and nothing else."
LOOK_FORMULA = "Look at the scores: q k^T / sqrt(D), -inf where the mask is False, softmax over the keys, times v."


def attention_properties(ran: list[tuple[Any, Case]]) -> Iterator[Property]:
    for value, case in ran:
        shape = str(tuple(case.probe.xq.shape))
        yield Property("The output has the shape of xq", kind(value), shape, LOOK_SHAPE)
    for value, case in ran:
        H, K, start = value.shape[2], case.xv.shape[2], case.probe.start
        if case.mask[0].sum() == 1 and case.mask[0, 0]:
            right = case.xv[:, 0].repeat_interleave(H // K, 1)  # (B, H, D)
            _, h, i = at = worst(value[:, 0], right)
            sentence = (
                f"A token that sees only itself gets its own value, head {h} of {H} that of "
                f"key/value head {h // (H // K)} of {K}; at position {start}, channel {i}"
            )
            yield Property(sentence, float(value[:, 0][at]), float(right[at]), LOOK_ITSELF)
        if bool((case.xv == 1).all()):
            _, t, *_ = at = worst(value, torch.ones_like(value))
            sentence = f"Weights sum to 1, so values of 1 give 1; at position {start + t}"
            yield Property(sentence, float(value[at]), 1.0, LOOK_SUM)
    by_start = [(value, case) for value, case in ran if torch.equal(case.probe.xq, ran[-1][1].probe.xq)]
    if len(by_start) == 2:
        (late, case), (early, _) = by_start
        _, t, h, i = at = worst(late, early)
        sentence = (
            f"The output depends on distances only: from position {case.probe.start} on it is that from 3 on; "
            f"token {t}, head {h}, channel {i}"
        )
        yield Property(sentence, float(late[at]), float(early[at]), LOOK_DISTANCE)
    recipe = recipe_in(intended_layout(ran))
    for value, case in ran:
        right = attend(case, recipe)
        _, t, h, i = at = worst(value, right)
        sentence = (
            f"softmax(q k^T / sqrt(D)) v over visible keys, q and k rotated, H = {value.shape[2]}, "
            f"D = {value.shape[3]}; position {case.probe.start + t}, head {h}, channel {i}"
        )
        yield Property(sentence, float(value[at]), float(right[at]), LOOK_FORMULA)


def intended_layout(ran: list[tuple[Any, Case]]) -> str:
    """The layout whose numbers are nearer to the reader's."""

    def distance(layout: str) -> float:
        return sum(gap(value, attend(case, recipe_in(layout))) for value, case in ran)

    shaped = all(isinstance(value, Tensor) and value.shape == case.probe.xq.shape for value, case in ran)
    return min(LAYOUTS, key=distance) if shaped else LAYOUTS[0]


def comparisons(ran: list[tuple[Any, Case]]) -> Iterator[Comparison]:
    recipe = recipe_in(intended_layout(ran))
    for value, case in ran:
        mask = "a triangle" if torch.equal(case.mask, triangle(case.mask)) else "no triangle"
        probe = case.probe
        call = (
            f"{FUNCTION}(xq {kind(probe.xq)}, xk {kind(probe.xk)}, xv, rows {probe.start} .. "
            f"{probe.start + len(case.mask) - 1} of the table, mask: {mask})"
        )
        shown = (("xq", probe.xq), ("xk", probe.xk), ("xv", case.xv)) if len(case.mask) == 2 else ()
        yield Comparison(call, [("out", value, attend(case, recipe))], shown)
