"""The verdicts on the reader's functions: the first number that differs from ours, and the usual mistakes."""

import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from model.config import ModelArgs

from ..topic import Translate
from . import attention, kv_cache, layouts, rope
from .compare import UNSUITABLE, Exercise, Finding, Mistake, View, difference, measured
from .reader import Caller, Raised, Reader, Unwritten, count_of_required
from .rope import BATCH_FORM, COMPLEX, FORMS, HALVES, HEADS_FIRST, NEIGHBOURS, read_table

TABLE, RESHAPE, ROTATE = "precompute_freqs_cis", "reshape_for_broadcast", "apply_rotary_emb"
EXERCISES = {
    TABLE: rope.TABLE,
    RESHAPE: rope.RESHAPE,
    ROTATE: rope.ROTATE,
    "to_neighbours": layouts.TO_NEIGHBOURS,
    "to_halves": layouts.TO_HALVES,
    "causal_mask": kv_cache.MASK,
    "KVCache": kv_cache.EXERCISE,
    "attention": attention.EXERCISE,
}
OF_NETWORK = ("args", "batch_size")  # of the cache of a network, as in model/cache.py
ROTATED = ("xq", "xk", "xv", "mask")  # of an attention of (B, H, T, D), rotated before, as in model/attention.py
OUTCOMES = {
    "right": "right",
    "halves": "right, in the half-split layout (channel i pairs with i + D/2)",
    "wrong": "wrong",
    "raised": "raised",
    "unwritten": "not written yet",
}
RANDOM = Mistake("different numbers on each call: no dropout", 7)
OVERWRITTEN = Mistake("an argument is overwritten: write to a new tensor", 4)


@dataclass
class Verdict:
    """The outcome for one function, a key of OUTCOMES, with the first difference and the mistakes."""

    function: str
    outcome: str
    problem: str = ""  # an exception that it raised
    finding: Finding | None = None
    mistakes: Sequence[Mistake] = ()

    @property
    def is_good(self) -> bool:
        return self.outcome in ("right", "halves")

    def lines(self, hint_only: bool, translate: Translate = str) -> Iterator[str]:
        """The text, in English or another language; as a hint, without the mistakes."""
        colon = translate(": ")
        mistakes = [] if hint_only else [name_and_reason(mistake, translate) for mistake in self.mistakes]
        names = translate(", and ").join(name for name, _ in mistakes)
        yield colon.join(filter(None, (self.function, translate(OUTCOMES[self.outcome]), names, self.problem)))
        if self.finding is None:
            return
        label, place, yours, expected = self.finding
        where = translate(", ").join(translate(f"{axis} {index}") for axis, index in place)
        yield from wrapped(": ".join(filter(None, (translate(label), where))) + colon.strip())
        yield from wrapped(translate(f"yours {yours}; expected {expected}."), "    ")
        if hint_only:
            return
        texts = [colon.join(filter(None, each)) + translate(". ") for each in mistakes]
        for text, step in zip(texts or [""], [mistake.step for mistake in self.mistakes] or [0]):
            step = step or EXERCISES[self.function].step
            page = "rope" if step <= 8 else "rope-models"
            yield from wrapped(f"{text[:1].upper()}{text[1:]}{translate(f'See docs/{page}.md, step {step}.')}")


def name_and_reason(mistake: Mistake, translate: Translate) -> tuple[str, str]:
    """The text before the first colon, and after it, "" if there is none."""
    name, reason = (*re.split(": |：", translate(mistake.text), maxsplit=1), "")[:2]
    return name + (translate(f", in {mistake.part} only") if mistake.part else ""), reason


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


@dataclass
class Solution:
    """The reader's functions with our arguments, and what they agree on."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    calls: dict[str, Caller] = field(default_factory=dict)  # the functions that ran
    views: dict[str, View] = field(default_factory=dict)  # these, with our arguments
    form: str = ""  # of the table, a key of FORMS; "" is not known
    layout: str = NEIGHBOURS


def judge_all(reader: Reader) -> Solution:
    """Judge all functions. One that is not right is replaced by ours, so that no other fails because of it."""
    solution = Solution()
    ours = counterparts(solution)
    functions = reader.functions(EXERCISES)
    for name in ours.keys() - functions.keys():
        reader.use(name, ours[name])
    with warnings.catch_warnings(action="ignore"):
        for name, (function, path) in functions.items():
            solution.verdicts[name] = judge(name, Caller(function, arguments_of(name, function), path), solution)
            if name in ours and not solution.verdicts[name].is_good:
                reader.use(name, ours[name])
    for name, (function, _) in functions.items():
        reader.use(name, function)
    return solution


def judge(name: str, call: Caller, solution: Solution) -> Verdict:
    """The verdict on one function, which is added to the solution."""
    exercise = EXERCISES[name]
    try:
        if name == ROTATE:
            solution.form, solution.layout = form_and_layout(call, solution.form)
        view = view_of(name, call, solution)
        results, problem = measured(exercise, view)
        if name == TABLE and results:
            solution.form = read_table(call(8, 7, 3.0), 4)[0]
    except Unwritten:
        return Verdict(name, "unwritten")
    if results:
        solution.calls[name], solution.views[name] = call, view
    findings = differences(exercise, results, exercise.ours(solution.layout))
    mistakes: list[Mistake] = []
    if differences(exercise, results, view):
        mistakes = [RANDOM]
    elif findings:
        with suppress(Raised, *UNSUITABLE):  # then the mistakes so far remain
            mistakes.extend(exercise.mistakes(view, solution.layout))
    if call.overwritten:
        mistakes.append(OVERWRITTEN)
        findings.append(Finding(f"{call.overwritten} after the call", (), "changed", "as before"))
    if findings:
        return Verdict(name, "wrong", finding=findings[0], mistakes=mistakes)
    if problem:
        return Verdict(name, "raised", problem)
    return Verdict(name, "halves" if solution.layout == HALVES and name in (ROTATE, "attention") else "right")


def differences(exercise: Exercise, results: Sequence[tuple[str, Any]], other: View) -> list[Finding]:
    """The first difference of each probe from those of another function."""
    pairs = zip(results, measured(exercise, other)[0])
    return [*filter(None, (difference(exercise, label, yours, expected) for (label, yours), (_, expected) in pairs))]


def form_and_layout(call: Caller, known: str) -> tuple[str, str]:
    """The form in which this rotation takes the table, that of the reader's table if there is one, and its layout."""
    forms = {"": [COMPLEX, "tuple", HALVES], BATCH_FORM: [BATCH_FORM, HEADS_FIRST]}.get(known, [known])
    found = {form: measured(rope.ROTATE, view_of(ROTATE, call, Solution(form=form)))[0] for form in forms}
    form = max(forms, key=lambda each: len(found[each]))  # of those that raise no exception
    return form, rope.layout_of(found[form][0][1]) if found[form] else NEIGHBOURS


# The reader's functions with our arguments.


def arguments_of(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    count = count_of_required(function)
    if name == "KVCache" and count < 3:
        return OF_NETWORK
    return ROTATED if name == "attention" and count < 5 else EXERCISES[name].arguments


def view_of(name: str, call: Caller, solution: Solution) -> View:
    if name == TABLE:
        return lambda *given: read_table(call(*given), given[0] // 2)[1]
    if name == "KVCache":
        return lambda: Caller(
            kv_cache.update_of(cache_of(call, kv_cache.ARGS, kv_cache.B)), ("start_pos", "xk", "xv"), call.path
        )
    if name not in (ROTATE, "attention"):
        return call
    form, layout = solution.form or COMPLEX, solution.layout

    if call.names == ROTATED:
        return attention.of_rotated(call, layout)

    def view(*given: Any) -> Any:
        written = [FORMS[form](x.real.float(), x.imag.float()) if x.is_complex() else x for x in given]
        if name == ROTATE and form == HEADS_FIRST:
            # In transformers, cosines and sines have the dtype of the vectors.
            rotated = call(*(x.float().transpose(1, 2) for x in given[:2]), written[2])
            return tuple(y.transpose(1, 2).type_as(x) for x, y in zip(given, rotated))
        return call(*written)

    return view


def cache_of(call: Caller, args: ModelArgs, batch_size: int) -> Any:
    """The reader's cache for a network, with its ``layers``."""
    if call.names == OF_NETWORK:
        cache = call(args, batch_size)
        return cache if hasattr(cache, "layers") else SimpleNamespace(layers=[cache])
    sizes = (batch_size, args.n_kv_heads, args.max_seq_len, args.head_dim)
    return SimpleNamespace(layers=[call(*sizes) for _ in range(args.n_layers)])


def counterparts(solution: Solution) -> dict[str, View]:
    """Right functions in the reader's form and layout, which the reader's functions may call."""

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *parts: Any, **named_parts: Any) -> Any:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = (*parts, *named_parts.values())
        freqs_cis = read_table(parts[0] if len(parts) == 1 else parts, xq.shape[-1] // 2)[1]
        return rope.right(solution.layout)(xq, xk, freqs_cis)

    return {RESHAPE: lambda freqs_cis, x: freqs_cis[None, :, None], ROTATE: apply_rotary_emb}
