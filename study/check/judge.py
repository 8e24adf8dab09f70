"""The verdict on one function: the first number that differs from ours, and the usual mistakes that it makes."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import ModelArgs

from ..topic import Both
from . import attention, kv_cache, layouts, rotation, table
from .compare import Exercise, Finding, Mistake, View, difference
from .reader import Caller, Raised, Unwritten, count_of_required, kind
from .tensors import COMPLEX, FORMS, HALVES, NEIGHBOURS, read_table

EXERCISES = {
    "precompute_freqs_cis": table.EXERCISE,
    "reshape_for_broadcast": rotation.RESHAPE,
    "apply_rotary_emb": rotation.EXERCISE,
    "to_neighbours": layouts.TO_NEIGHBOURS,
    "to_halves": layouts.TO_HALVES,
    "causal_mask": layouts.MASK,
    "KVCache": kv_cache.EXERCISE,
    "attention": attention.EXERCISE,
}
OF_NETWORK = ("args", "batch_size")  # of the cache of a network, as in model/cache.py
ROTATED = ("xq", "xk", "xv", "mask")  # of an attention of (B, H, T, D), rotated before, as in model/attention.py
OUTCOMES = {
    "right": Both("right", "正确"),
    "halves": Both(
        "right, in the half-split layout (channel i pairs with i + D/2)", "正确，用前后两半的布局（i 与 i + D/2 配对）"
    ),
    "wrong": Both("wrong", "有错"),
    "raised": Both("raised", "抛出异常"),
    "unwritten": Both("not written yet", "还没写"),
    "unneeded": Both("not written, and not needed for cosines and sines", "还没写，用 cos 和 sin 时也不需要"),
}


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged."""

    table: str = ""  # its form, one of FORMS, once it is known
    layouts: Sequence[str] = (NEIGHBOURS, HALVES)  # those that are possible
    calls: dict[str, Caller] = field(default_factory=dict)  # the functions that ran
    views: dict[str, View] = field(default_factory=dict)  # these, with our arguments


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
        return self.outcome in ("right", "halves", "unneeded")

    def lines(self, hint_only: bool, language: int = 0) -> Iterator[str]:
        """The text in English (0) or Chinese (1); as a hint, without the mistakes."""
        colon, semicolon, stop = ((": ", ", and ", ". "), ("：", "；", "。"))[language]
        texts = [] if hint_only else [(mistake.en, mistake.zh)[language] for mistake in self.mistakes]
        names = semicolon.join(text.partition(colon.strip())[0] for text in texts)
        problem = "" if self.finding else self.problem
        yield colon.join(filter(None, (self.function, OUTCOMES[self.outcome][language], names, problem)))
        if self.finding:
            where, yours, expected = self.finding
            values = (f"yours {yours}; expected {expected}.", f"你的是 {yours}；应为 {expected}。")[language]
            yield from wrapped(f"{where[language]}{colon.strip()}")
            yield from wrapped(values, "    ")
            if self.problem:
                yield from wrapped(f"{('It also raises', '还会抛出异常')[language]}{colon}{self.problem}")
        explained = [(f"{text[:1].upper()}{text[1:]}{stop}", each.step) for text, each in zip(texts, self.mistakes)]
        if self.finding and not explained and not hint_only:
            explained = [("", 0)]
        for text, step in explained:
            step = step or EXERCISES[self.function].step
            page = f"docs/{'rope' if step <= 8 else 'rope-models'}{('', '.zh')[language]}.md"
            see = (f"See {page}, step {step}.", f"见 {page} 第 {step} 节。")[language]
            yield from wrapped(f"{text}{see}")


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


FORM = Mistake("not the form of your table: see precompute_freqs_cis", "与 precompute_freqs_cis 的表形式不同", 3)
RANDOM = Mistake("different numbers on each call: no dropout", "每次调用结果不同：不要 dropout", 7)
OVERWRITTEN = Mistake("an argument is overwritten: write to a new tensor", "改写了传入的参数：写到新的张量里", 4)


def judge(name: str, written: Callable[..., Any], path: Path, conventions: Conventions) -> Verdict:
    """The verdict on one function. What it shows is added to the conventions."""
    exercise = EXERCISES[name]
    call = Caller(written, arguments_of(name, written), path)
    try:
        form, view, results = form_that_fits(exercise, views_of(name, call, conventions), conventions)
    except Unwritten:
        is_needed = name != "reshape_for_broadcast" or conventions.table in ("", COMPLEX)
        return Verdict(name, "unwritten" if is_needed else "unneeded")
    problem = next((str(result) for result in results if isinstance(result, Raised)), "")
    if all(isinstance(result, Raised) for result in results):
        return Verdict(name, "raised", problem)
    layout = min(conventions.layouts, key=lambda each: len(differences(exercise, results, each)))
    findings = differences(exercise, results, layout)
    if findings and name == "apply_rotary_emb":
        layout = rotation.layout_of(view)
        findings = differences(exercise, results, layout)
    mistakes = named(exercise, view, layout) if findings else []
    again = zip(exercise.probes, results, (probe.of(view) for probe in exercise.probes))
    if any(difference(exercise, *each) for each in again if not isinstance(each[1], Raised)):
        mistakes = [RANDOM]
    if call.overwritten:
        mistakes.append(OVERWRITTEN)
        after = Both(f"{call.overwritten} after the call", f"调用之后的 {call.overwritten}")
        findings.append(Finding(after, "changed", "as before"))
    if name == "apply_rotary_emb":
        if conventions.table not in ("", form) and form != "heads first":
            mistakes.append(FORM)
            findings.append(Finding(Both("the form of the table", "表的形式"), form, conventions.table))
        conventions.table, conventions.layouts = conventions.table or form, (layout,)
    if name == "precompute_freqs_cis" and not findings:
        conventions.table = read_table(call(8, 7, 3.0), 4)[0]
    conventions.calls[name], conventions.views[name] = call, view
    if findings:
        return Verdict(name, "wrong", problem, findings[0], mistakes)
    return Verdict(name, "halves" if layout == HALVES and "freqs_cis" in exercise.arguments else "right")


def arguments_of(name: str, written: Callable[..., Any]) -> tuple[str, ...]:
    count = count_of_required(written)
    if name == "KVCache" and count < 3:
        return OF_NETWORK
    return ROTATED if name == "attention" and count < 5 else EXERCISES[name].arguments


def form_that_fits(exercise: Exercise, views: dict[str, View], conventions: Conventions) -> tuple[str, View, list[Any]]:
    """The first form that runs, if it is the reader's own, or that with the fewest differences; and its results."""
    tried = []
    for form, view in views.items():
        results = [probe.of(view) for probe in exercise.probes]
        raised = sum(isinstance(result, Raised) for result in results)
        if not isinstance(results[0], Raised) and (
            exercise is not rotation.EXERCISE or form == conventions.table != "batch"
        ):
            return form, view, results
        count = min(len(differences(exercise, results, layout)) for layout in conventions.layouts)
        tried.append((count + len(results) * raised, form, view, results))
    return min(tried, key=lambda each: each[0])[1:]


def differences(exercise: Exercise, results: Sequence[Any], layout: str) -> list[Finding]:
    """The first number that differs in each probe, then exceptions."""
    found, raised = [], []
    for probe, yours in zip(exercise.probes, results):
        expected = probe.of(exercise.ours(layout))
        if isinstance(yours, Raised):
            raised.append(Finding(probe.label, "an exception", kind(expected)))
        else:
            found.append(difference(exercise, probe, yours, expected))
    return [*filter(None, found), *raised]


def named(exercise: Exercise, view: View, layout: str) -> list[Mistake]:
    """The mistakes that were measured until the function raised, or returned what could not be measured."""
    found: dict[Mistake, None] = {}
    with suppress(Raised, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        for mistake in exercise.mistakes(view, layout):
            found[mistake] = None
    return list(found)


# The reader's functions with our arguments.


def views_of(name: str, call: Caller, conventions: Conventions) -> dict[str, View]:
    """The function for each form in which it may take the table, the reader's own first."""
    if name == "KVCache":
        return {"": lambda: new_cache(call)}
    if name == "reshape_for_broadcast":
        return {COMPLEX: call} | {form: reshape_view(call, form) for form in ("one", "tuple")}
    if call.names == ROTATED:
        return {"": lambda *given: with_rotation(call, conventions.layouts[0], *given)}
    if "freqs_cis" not in call.names:
        return {"": call}
    own = {"": [], "batch": ["batch", "heads first"]}.get(conventions.table, [conventions.table])
    forms = dict.fromkeys([*own, *FORMS])
    return {form: view_of(call, form) for form in forms}


def view_of(call: Caller, form: str) -> View:
    place = call.names.index("freqs_cis")

    def view(*given: Any) -> Any:
        table = given[place]
        written = FORMS[form](table.real.float(), table.imag.float())
        if place < 2 or not call.unpacks:
            return call(*given[:place], written, *given[place + 1 :])
        # In transformers, cosines and sines have the dtype of the vectors, which may be (B, H, T, D).
        axes = (1, 2) if form == "heads first" else (1, 1)
        rotated = call(*(x.float().transpose(*axes) for x in given[:2]), written)
        return tuple(y.transpose(*axes).type_as(x) for x, y in zip(given, rotated))

    return view


def reshape_view(call: Caller, form: str) -> View:
    """For one of cosines and sines at a time, or for both."""

    def view(freqs_cis: Tensor, x: Tensor) -> Tensor:
        parts = freqs_cis.real.contiguous(), freqs_cis.imag.contiguous()
        return torch.complex(*([call(part, x.real) for part in parts] if form == "one" else call(parts, x.real)))

    return view


def with_rotation(call: Caller, layout: str, *given: Tensor) -> Any:
    """Attention (B, T, H, D) by one of rotated queries and keys (B, H, T, D)."""
    xq, xk, xv, freqs_cis, mask = given
    turned = *rotation.right(layout)(xq, xk, freqs_cis), xv
    return call(*(x.transpose(1, 2) for x in turned), mask).transpose(1, 2)


def new_cache(call: Caller) -> Callable[..., Any]:
    """The method ``update`` of a new cache of the reader."""
    B, K, S, D = kv_cache.SIZE
    cache, caches = caches_of(call, ModelArgs(dim=K * D, n_layers=1, n_heads=K, vocab_size=8, max_seq_len=S), B)
    update = Caller(caches[0].update, ("start_pos", "xk", "xv"), call.path)

    def checked(start_pos: int, xk: Tensor, xv: Tensor) -> Any:
        cache.make_room(start_pos, xk.shape[2])  # as the loop does that uses such a cache
        return update(start_pos, xk, xv)

    return checked if hasattr(cache, "make_room") else update


def caches_of(call: Caller, args: ModelArgs, batch_size: int) -> tuple[Any, list[Any]]:
    """The reader's cache for a network, if there is one, and its caches of the layers."""
    if call.names == OF_NETWORK:
        cache = call(args, batch_size)
        return cache, cache.layers if hasattr(cache, "layers") else [cache]
    sizes = (batch_size, args.n_kv_heads, args.max_seq_len, args.head_dim)
    return None, [call(*sizes) for _ in range(args.n_layers)]


# Right functions in the reader's form and layout, which the reader's functions may call.


def counterparts(conventions: Conventions) -> dict[str, Callable[..., Any]]:
    def reshape_for_broadcast(freqs_cis: Any, x: Tensor) -> Any:
        is_pair = isinstance(freqs_cis, tuple)
        return tuple(part[None, :, None] for part in freqs_cis) if is_pair else freqs_cis[None, :, None]

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *parts: Any, **named_parts: Any) -> Any:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = (*parts, *named_parts.values())
        freqs_cis = read_table(parts[0] if len(parts) == 1 else parts, xq.shape[-1] // 2)[1]
        return rotation.right(conventions.layouts[0])(xq, xk, freqs_cis)

    return {"reshape_for_broadcast": reshape_for_broadcast, "apply_rotary_emb": apply_rotary_emb}
