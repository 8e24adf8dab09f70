"""Judge ``attention`` with grouped heads: the right output, the known mistakes, and the properties tested in order."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import faults as known
from .calls import Caller, Trial, error_count, first_problem, parameters, written_signature
from .forms import FORMS, Conventions, Form
from .properties import Comparison, Property, Requirement, keeps_arguments, kind
from .recipe import Explanation, Mistake, Recipe, explain, matches, same
from .rotation import (
    LAYOUTS,
    MAIN,
    OUTCOMES,
    RECIPES,
    SMALL_D,
    Probe,
    mistakes_in,
    nearest_layout,
    probes,
    rotate,
    worst,
)
from .table import unit
from .verdict import Verdict, in_other_order, with_requirements, wrong

FUNCTION = "attention"
FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
COUNTED = 3  # the first cases: queries and keys are 0.25, 0.5, 0.75 .., values 1, 2, 3 ..


class Case(NamedTuple):
    probe: Probe  # queries and keys
    xv: Tensor  # (B, T, K, D)
    mask: Tensor  # (T, T)


def cases() -> list[Case]:
    """The smallest first. Masks are triangles, except in ``MAIN`` and the next, because a mask may hide any key."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for number, probe in enumerate(probes()):
        T = probe.xq.shape[1]
        values = torch.randn(probe.xk.shape, generator=generator, dtype=torch.float32)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        if number < COUNTED:  # with scores of 1, 2, 3 .. the softmax would give all weight to one key
            probe = probe._replace(xq=probe.xq / 4, xk=probe.xk / 4)
            values = probe.xk * 4  # 1, 2, 3 ..
        if number in (MAIN, MAIN + 1):
            mask = torch.rand(T, T, generator=generator) < 0.6
            mask[torch.arange(T), torch.arange(T).flip(0)] = True  # each token sees at least one key
        if number == MAIN + 1:  # one vector at all positions, and values of 1
            values = torch.ones_like(values)
        found.append(Case(probe, values, mask))
    last = found[-1]
    found.append(last._replace(probe=last.probe._replace(start=3)))  # the same tensors at other positions
    return found


# The recipe: q is (B, T, H, D), k and v (B, T, K, D). After ``group`` all have H heads, and after ``heads_first`` they
# are (B, H, T, D). Scores and weights are (B, H, T, S).


def repeated_heads(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, 2)


def tiled_heads(x: Tensor, groups: int) -> Tensor:
    return x.repeat(1, 1, groups, 1)


def first_head(x: Tensor, groups: int) -> Tensor:
    return x[:, :, :1].repeat(1, 1, groups * x.shape[2], 1)


def reversed_heads(x: Tensor, groups: int) -> Tensor:
    return repeated_heads(x, groups).flip(2)


def averaged_heads(x: Tensor, groups: int) -> Tensor:
    return x.mean(2, keepdim=True).repeat(1, 1, groups * x.shape[2], 1)


def group(keys: Callable[[Tensor, int], Tensor], values: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """The part that assigns a key/value head to each query head."""
    return lambda k, v, groups: (keys(k, groups), values(v, groups))


def divided_by(scale: Callable[[Tensor], float]) -> Callable[[Tensor, Tensor], Tensor]:
    """The part that divides the scores by a number computed from q (B, H, T, D)."""
    return lambda scores, q: scores / scale(q)


def view(x: Tensor) -> Tensor:
    """Exchange the sizes of axes 1 and 2 and keep the order of the numbers in memory."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], *x.shape[3:])


def recipe_in(layout: str) -> Recipe:
    """The right recipe, with a rotation in this layout."""
    return {
        "rotate": lambda q, k, angle: (rotate(q, angle, RECIPES[layout]), rotate(k, angle, RECIPES[layout])),
        "values": lambda v, angle: v,
        "group": group(repeated_heads, repeated_heads),
        "heads_first": lambda x: x.transpose(1, 2),
        "scores": lambda q, k: q @ k.mT,
        "scale": divided_by(lambda q: math.sqrt(q.shape[-1])),
        "visible": lambda mask: mask,
        "mask": lambda scores, mask: scores.masked_fill(~mask, -torch.inf),
        "softmax": lambda scores: scores.softmax(-1),
        "weights": lambda masked, softmax, scores, mask: softmax(masked(scores, mask)),
        "sum": lambda weights, q, k, v: weights @ v,
        "tokens_first": lambda out: out.transpose(1, 2),
        "result": lambda out, case: out,
    }


def attend(case: Case, parts: Recipe) -> Tensor:
    """The output of a recipe, (B, T, H, D) in float64. A mistake may return another shape."""
    angle, mask = case.probe.angle, parts["visible"](case.mask)
    q, k = parts["rotate"](case.probe.xq.double(), case.probe.xk.double(), angle)
    v = parts["values"](case.xv.double(), angle)
    groups = case.probe.xq.shape[2] // case.xv.shape[2]
    k, v = parts["group"](k, v, groups)
    q, k, v = (parts["heads_first"](x) for x in (q, k, v))
    scores = parts["scale"](parts["scores"](q, k), q)
    weights = parts["weights"](parts["mask"], parts["softmax"], scores, mask)
    return parts["result"](parts["tokens_first"](parts["sum"](weights, q, k, v)), case)


def mistakes_of(layout: str) -> list[Mistake]:
    """The mistakes of attention itself, of which two at once are tried too."""

    def rotated(x: Tensor, angle: Tensor) -> Tensor:
        return rotate(x, angle, RECIPES[layout])

    return [
        Mistake(known.MASK_UNUSED, "mask", lambda scores, mask: scores),
        Mistake(known.INVERTED_MASK, "visible", lambda mask: ~mask),
        Mistake(known.TRANSPOSED_MASK, "visible", lambda mask: mask.T),
        Mistake(known.OWN_MASK, "visible", lambda mask: torch.ones_like(mask).tril()),
        Mistake(known.SELF_HIDDEN, "visible", lambda mask: mask & ~torch.eye(len(mask), dtype=torch.bool)),
        Mistake(known.SELF_HIDDEN, "visible", lambda mask: mask.tril(-1)),
        Mistake(known.OWN_MASK, "visible", lambda mask: mask.tril()),
        Mistake(known.OWN_MASK, "visible", lambda mask: mask | torch.eye(len(mask), dtype=torch.bool)),
        Mistake(known.OWN_MASK, "visible", lambda mask: torch.ones_like(mask).triu()),
        Mistake(known.OWN_MASK, "visible", lambda mask: mask.triu()),
        Mistake(known.OWN_MASK, "visible", lambda mask: mask[-1:].expand_as(mask)),
        Mistake(known.OWN_MASK, "visible", lambda mask: mask[:1].expand_as(mask)),
        Mistake(known.UNSCALED, "scale", divided_by(lambda q: 1.0)),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[-1])),
        Mistake(known.SCALE, "scale", divided_by(lambda q: math.sqrt(q.shape[-1] * q.shape[1]))),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[-1] ** -0.5)),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[-1] ** 0.25)),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[-1] ** 2)),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[-1] ** -1.0)),
        Mistake(known.SCALE, "scale", divided_by(lambda q: math.sqrt(q.shape[-1] / 2))),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[-1] / 2)),
        Mistake(known.SCALE, "scale", divided_by(lambda q: math.sqrt(q.shape[1]))),
        Mistake(known.SCALE, "scale", divided_by(lambda q: math.sqrt(q.shape[2]))),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[1])),
        Mistake(known.SCALE, "scale", divided_by(lambda q: q.shape[2])),
        Mistake(known.SCALE, "scale", divided_by(lambda q: math.log(q.shape[-1]))),
        Mistake(known.SCALE, "scale", divided_by(lambda q: -math.sqrt(q.shape[-1]))),
        Mistake(known.MASK_ZERO, "mask", lambda scores, mask: scores.masked_fill(~mask, 0.0)),
        Mistake(known.MASK_SMALL, "mask", lambda scores, mask: scores.masked_fill(~mask, -1.0)),
        Mistake(known.MASK_SMALL, "mask", lambda scores, mask: scores.masked_fill(~mask, 1.0)),
        Mistake(known.MASK_SMALL, "mask", lambda scores, mask: scores.masked_fill(~mask, -10.0)),
        Mistake(known.MASK_ADDED, "mask", lambda scores, mask: scores + mask),
        Mistake(known.MASK_ADDED, "mask", lambda scores, mask: scores - mask.double()),
        Mistake(known.MASK_ADDED, "mask", lambda scores, mask: scores - (~mask).double()),
        Mistake(known.MASK_ADDED, "mask", lambda scores, mask: scores + ~mask),
        Mistake(known.MASK_AFTER, "weights", lambda masked, softmax, scores, mask: softmax(scores) * mask),
        Mistake(known.MASK_AFTER, "weights", lambda masked, softmax, scores, mask: masked(softmax(scores), mask)),
        Mistake(known.SOFTMAX, "softmax", lambda scores: scores.softmax(-2)),
        Mistake(known.SOFTMAX, "softmax", lambda scores: scores.softmax(0)),
        Mistake(known.SOFTMAX_HEADS, "softmax", lambda scores: scores.softmax(1)),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: scores),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: scores.masked_fill(scores.isinf(), 0)),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: scores.sigmoid()),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: scores.relu()),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: scores.tanh()),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: (scores == scores.amax(-1, keepdim=True)).double()),
        Mistake(known.NO_SOFTMAX, "softmax", lambda scores: scores / scores.sum(-1, keepdim=True)),
        Mistake(known.NOT_NORMALISED, "softmax", lambda scores: scores.exp()),
        Mistake(known.NOT_NORMALISED, "softmax", lambda scores: (scores - scores.amax(-1, keepdim=True)).exp()),
        Mistake(
            known.NOT_NORMALISED, "softmax", lambda scores: scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
        ),
        Mistake(known.SOFTMAX_TWICE, "softmax", lambda scores: scores.softmax(-1).softmax(-1)),
        Mistake(known.NEGATED, "softmax", lambda scores: (-scores).softmax(-1)),
        Mistake(known.LOGARITHM, "softmax", lambda scores: scores.log_softmax(-1)),
        Mistake(known.LOGARITHM, "softmax", lambda scores: scores.log_softmax(-1).nan_to_num(neginf=0)),
        # Tried before the next mistake, which gives the same numbers if H equals K
        Mistake(known.EXCHANGED_QK, "rotate", lambda q, k, angle: (rotated(k, angle), rotated(q, angle))),
        Mistake(known.SCORES_TRANSPOSED, "scores", lambda q, k: k @ q.mT),
        Mistake(
            known.WEIGHTS_TRANSPOSED, "weights", lambda masked, softmax, scores, mask: softmax(masked(scores, mask)).mT
        ),
        Mistake(known.SCORES_OF_ONE, "scores", lambda q, k: q @ q.mT),
        Mistake(known.SCORES_OF_ONE, "scores", lambda q, k: k @ k.mT),
        Mistake(known.COSINES, "scores", lambda q, k: unit_length(q) @ unit_length(k).mT),
        Mistake(known.KEYS_MIXED, "sum", lambda weights, q, k, v: weights @ k),
        Mistake(known.QUERIES_MIXED, "sum", lambda weights, q, k, v: weights @ q),
        Mistake(known.WEIGHTS, "sum", lambda weights, q, k, v: weights),
        Mistake(known.RESIDUAL, "result", lambda out, case: out + case.probe.xq),
        Mistake(known.RESIDUAL, "result", lambda out, case: out + rotated(case.probe.xq.double(), case.probe.angle)),
        Mistake(known.MEAN, "sum", lambda weights, q, k, v: weights @ v / v.shape[2]),
        Mistake(known.ONE_HEAD_RETURNED, "result", lambda out, case: out.mean(2, keepdim=True).expand_as(out)),
        Mistake(known.ONE_HEAD_RETURNED, "result", lambda out, case: out.mean(2)),
        Mistake(known.ONE_HEAD_RETURNED, "result", lambda out, case: out.sum(2)),
        Mistake(known.SOME_BATCH, "result", lambda out, case: out[:1]),
        Mistake(known.SOME_BATCH, "result", lambda out, case: out[0]),
        Mistake(known.SOME_BATCH, "result", lambda out, case: out[:1].expand_as(out)),
        Mistake(known.SOME_TOKENS, "result", lambda out, case: out[:, -1:]),
        Mistake(known.SOME_TOKENS, "result", lambda out, case: out[:, -1]),
        Mistake(known.REGROUPED, "result", regrouped),
        Mistake(known.NOT_BACK, "tokens_first", lambda out: out),
        Mistake(known.NOT_BACK, "tokens_first", lambda out: out.flatten(2)),
        Mistake(known.VIEWED, "tokens_first", view),
        Mistake(known.OVER_HEADS, "heads_first", lambda x: x),  # before the next: the same numbers if T equals H
        Mistake(known.VIEWED, "heads_first", view),
        Mistake(known.UNROTATED, "rotate", lambda q, k, angle: (q, k)),
        Mistake(known.ONLY_Q_ROTATED, "rotate", lambda q, k, angle: (rotated(q, angle), k)),
        Mistake(known.ONLY_K_ROTATED, "rotate", lambda q, k, angle: (q, rotated(k, angle))),
        Mistake(known.TWICE, "rotate", lambda q, k, angle: (rotated(q, 2 * angle), rotated(k, 2 * angle))),
        Mistake(known.TWICE.only_in("q"), "rotate", lambda q, k, angle: (rotated(q, 2 * angle), rotated(k, angle))),
        Mistake(known.TWICE.only_in("k"), "rotate", lambda q, k, angle: (rotated(q, angle), rotated(k, 2 * angle))),
        Mistake(known.OPPOSITE, "rotate", lambda q, k, angle: (rotated(q, angle), rotated(k, -angle))),
        Mistake(known.OPPOSITE, "rotate", lambda q, k, angle: (rotated(q, -angle), rotated(k, angle))),
        Mistake(
            known.ROW_ORDER.only_in("k"), "rotate", lambda q, k, angle: (rotated(q, angle), rotated(k, angle.flip(0)))
        ),
        Mistake(
            known.ROW_ORDER.only_in("q"), "rotate", lambda q, k, angle: (rotated(q, angle.flip(0)), rotated(k, angle))
        ),
        Mistake(known.VALUES, "values", rotated),
        Mistake(known.OUTPUT, "result", lambda out, case: rotated(out, case.probe.angle)),
        Mistake(known.OUTPUT, "result", lambda out, case: rotated(out, -case.probe.angle)),
        Mistake(known.TILED, "group", group(tiled_heads, tiled_heads)),
        Mistake(known.TILED_KEYS, "group", group(tiled_heads, repeated_heads)),
        Mistake(known.TILED_VALUES, "group", group(repeated_heads, tiled_heads)),
        Mistake(known.ONE_GROUP, "group", group(first_head, first_head)),
        Mistake(known.ONE_GROUP, "group", group(averaged_heads, averaged_heads)),
        Mistake(known.ONE_GROUP.only_in("k"), "group", group(first_head, repeated_heads)),
        Mistake(known.ONE_GROUP.only_in("v"), "group", group(repeated_heads, first_head)),
        Mistake(known.HEADS_REVERSED, "group", group(reversed_heads, reversed_heads)),
        Mistake(known.HEADS_REVERSED.only_in("k"), "group", group(reversed_heads, repeated_heads)),
        Mistake(known.HEADS_REVERSED.only_in("v"), "group", group(repeated_heads, reversed_heads)),
    ]


def unit_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def regrouped(out: Tensor, case: Case) -> Tensor:
    """Heads in the order of (H / K, K) instead of (K, H / K)."""
    groups = out.shape[2] // case.xv.shape[2]
    return out.unflatten(2, (groups, -1)).transpose(2, 3).flatten(2, 3)


def rotation_mistakes(layout: str) -> Iterator[Mistake]:
    """The mistakes of a rotation inside attention, made in both q and k."""
    for mistake in mistakes_in(layout):
        if mistake.part == "result":  # what apply_rotary_emb returns, which attention never shows
            continue
        parts = RECIPES[layout] | {mistake.part: mistake.wrong}

        def rotated(q: Tensor, k: Tensor, angle: Tensor, parts: Recipe = parts) -> tuple[Tensor, Tensor]:
            return rotate(q, angle, parts), rotate(k, angle, parts)

        yield Mistake(mistake.fault, "rotate", rotated)


def is_attended(value: Any, case: Case, layout: str) -> bool:
    return same(in_heads(value, case), attend(case, recipe_in(layout)))


def in_heads(value: Any, case: Case) -> Any:
    """The output with its heads split, if the reader's function joined them, (B, T, H D), as most networks do next."""
    shape = case.probe.xq.shape
    if isinstance(value, Tensor) and value.shape == (*shape[:2], shape[2] * shape[3]):
        return value.reshape(shape)
    return value


class FusedCalls(TorchFunctionMode):
    """Records whether a function that computes attention as a whole is called."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in FUSED:
            self.name = name
        return func(*args, **(kwargs or {}))


def judge_attention(names: dict[str, Any], conventions: Conventions, caller: Caller) -> Verdict:
    function, all_cases, fused = names[FUNCTION], cases(), FusedCalls()

    def call(*given: Any) -> Any:
        with fused:
            return function(*given)

    attempts: list[tuple[Form, list[Trial]]] = []
    for form in [conventions.table] if conventions.table else FORMS:
        trials = caller.trials(call, [arguments(case, form) for case in all_cases], parameters(FUNCTION))
        for layout in (conventions.layout, *LAYOUTS):
            if all(is_attended(trial.value, case, layout) for trial, case in zip(trials, all_cases)):
                conventions.attention_layout = layout
                return with_requirements(FUNCTION, attention_requirements(trials, fused), OUTCOMES[layout])
        attempts.append((form, trials))
    if not caller.explain_mistakes:
        return Verdict(FUNCTION, "wrong")
    form, trials = min(attempts, key=lambda attempt: error_count(attempt[1]))
    results = [(in_heads(trial.value, case), case) for trial, case in zip(trials, all_cases) if trial.error is None]
    main = all_cases[MAIN]
    explanation: Explanation | None = None
    if results and all(value is None for value, _ in results):
        explanation = (known.NOT_RETURNED,)
    elif not same(caller.trial(call, arguments(main, form)).value, trials[MAIN].value):
        explanation = (known.RANDOM,)
    else:
        explanation = attention_explanation(results, conventions.layout, complete=not error_count(trials))
    if explanation is None:

        def is_right(value: Any, number: int) -> bool:
            return any(is_attended(value, main, layout) for layout in LAYOUTS)

        # Only one case is tried, because there are 119 other orders.
        order = caller.other_order(lambda: call, [arguments(main, form)], is_right)
        if order == (1, 0, 2, 3, 4) and written_signature(function).startswith("(xq, xk"):
            explanation = (known.EXCHANGED_QK,)  # inside the function, because its parameters are in order
        elif order:
            return in_other_order(FUNCTION, parameters(FUNCTION), order, function)
    elif fused.name:
        explanation = (*explanation, known.SDPA)
    verdict = wrong(
        FUNCTION, explanation, attention_properties(results), comparisons(results), 6, first_problem(trials)
    )
    overwritten = dict.fromkeys(name for trial in trials for name in trial.overwritten)
    if overwritten:
        verdict.remarks.append(f"It overwrites {', '.join(overwritten)}, which the caller may still need.")
    return verdict


def arguments(case: Case, form: Form) -> tuple[Any, ...]:
    return case.probe.xq, case.probe.xk, case.xv, form.write(unit(case.probe.angle)), case.mask


def attention_requirements(trials: list[Trial], fused: FusedCalls) -> Iterator[Requirement]:
    yield keeps_arguments(trials)
    yield known.SDPA, Property("Fused attention functions called", fused.name or "none", "none")


def attention_explanation(results: list[tuple[Any, Case]], layout: str, complete: bool) -> Explanation | None:
    """The mistake in the outputs of the calls that did not raise; ``complete`` if none raised.

    If some raised, the smallest cases prove nothing, because many mistakes fit them. The mistakes that raise for some
    shapes are then tried first.
    """
    if not complete:
        results = [(value, case) for value, case in results if case.probe.xq.shape[3] > SMALL_D]
    if not results or not all(isinstance(value, Tensor) for value, _ in results):
        return None
    results = sorted(results, key=lambda pair: not rules_out_many(pair[1]))  # True comes after False
    layouts = list(dict.fromkeys((layout, *LAYOUTS)))
    for at_once in (1, 2):
        # There are thousands of pairs of mistakes, so these are tried only in the layout of the rotation.
        for each in layouts if at_once == 1 else layouts[:1]:
            recipe = recipe_in(each)
            right = [attend(case, recipe) for _, case in results]
            mistakes = mistakes_of(each)
            if at_once == 1 and complete:
                mistakes = [*mistakes, *rotation_mistakes(each)]
            elif at_once == 1:
                mistakes = [*rotation_mistakes(each), *mistakes]
            explanation = explain(recipe, mistakes, partial(fits_attention, results, right), at_once)
            if explanation is not None:
                return explanation
    return None


def rules_out_many(case: Case) -> bool:
    """Whether few mistakes fit the case: several rows, or as many heads as tokens."""
    B, T, H, _ = case.probe.xq.shape
    return B > 1 or T == H


def fits_attention(results: list[tuple[Any, Case]], right: list[Tensor], parts: Recipe) -> bool:
    return matches(
        (value, in_heads(attend(case, parts), case), expected) for (value, case), expected in zip(results, right)
    )


LOOK_SHAPE = "Look at the last lines: (B, H, T, D) becomes (B, T, H, D) by .transpose(1, 2)."
LOOK_ITSELF = "Look at the mask and at the heads: a token that sees one key gets the value of that key."
LOOK_SUM = "Look at the softmax: over the keys (dim=-1), after the mask."
LOOK_DISTANCE = "Look at the rotation: xq and xk are rotated once, and nothing else is."
LOOK_FORMULA = "Look at the scores: q k^T / sqrt(D), -inf where the mask is False, softmax over the keys, times v."


def attention_properties(results: list[tuple[Any, Case]]) -> Iterator[Property]:
    for value, case in results:
        shape = str(tuple(case.probe.xq.shape))
        yield Property("The output has the shape of xq", kind(value), shape, LOOK_SHAPE)
    for value, case in results:
        H, K, start = value.shape[2], case.xv.shape[2], case.probe.start
        if case.mask[0].sum() == 1 and case.mask[0, 0]:
            right = case.xv[:, 0].repeat_interleave(H // K, 1)  # (B, H, D)
            _, h, i = at = worst(value[:, 0], right)
            sentence = (
                f"A token that sees only itself gets its own value; query head {h} of {H} gets that of "
                f"key/value head {h // (H // K)} of {K}, at position {start}, channel {i}"
            )
            yield Property(sentence, float(value[:, 0][at]), float(right[at]), LOOK_ITSELF)
        if bool((case.xv == 1).all()):
            _, t, *_ = at = worst(value, torch.ones_like(value))
            sentence = f"Weights sum to 1, so values of 1 give 1; at position {start + t}"
            yield Property(sentence, float(value[at]), 1.0, LOOK_SUM)
    moved = [(value, case) for value, case in results if torch.equal(case.probe.xq, results[-1][1].probe.xq)]
    if len(moved) == 2:
        (late, case), (early, _) = moved
        _, t, h, i = at = worst(late, early)
        sentence = (
            "The output depends on distances only, so it is the same for the same tensors from position "
            f"{case.probe.start} on and from 3 on; token {t}, head {h}, channel {i}"
        )
        yield Property(sentence, float(late[at]), float(early[at]), LOOK_DISTANCE)
    recipe = recipe_in(intended_layout(results))
    for value, case in results:
        right = attend(case, recipe)
        _, t, h, i = at = worst(value, right)
        sentence = (
            f"softmax(q k^T / sqrt(D)) v over visible keys, q and k rotated, H = {value.shape[2]}, "
            f"D = {value.shape[3]}; position {case.probe.start + t}, head {h}, channel {i}"
        )
        yield Property(sentence, float(value[at]), float(right[at]), LOOK_FORMULA)


def intended_layout(results: list[tuple[Any, Case]]) -> str:
    right = {layout: [attend(case, recipe_in(layout)) for _, case in results] for layout in LAYOUTS}
    return nearest_layout([value for value, _ in results], right)


def comparisons(results: list[tuple[Any, Case]]) -> Iterator[Comparison]:
    recipe = recipe_in(intended_layout(results))
    for value, case in results:
        mask = "a triangle" if torch.equal(case.mask, torch.ones_like(case.mask).tril()) else "not a triangle"
        probe = case.probe
        rows = f"rows {probe.start} .. {probe.start + len(case.mask) - 1} of the table"
        call = f"{FUNCTION}(xq {kind(probe.xq)}, xk {kind(probe.xk)}, xv, {rows}, mask: {mask})"
        inputs = (("xq", probe.xq), ("xk", probe.xk), ("xv", case.xv)) if len(case.mask) == 2 else ()
        yield Comparison(call, [("out", value, attend(case, recipe))], inputs)
