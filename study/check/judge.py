"""The verdict on one function: the first number that differs from ours, and the usual mistakes that it makes."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.config import ModelArgs

from ..topic import Both
from . import attention, kv_cache, layouts, rotation, table
from .compare import COMPLEX, FORMS, HALVES, NEIGHBOURS, Finding, Mistake, Probe, difference, read_table, write_table
from .reader import Caller, Raised, Unwritten, count_of_required, kind

View = Callable[..., Any]  # the reader's function as one with the arguments and results of ours


class Exercise(NamedTuple):
    """A function to write: the step of the walk about it, what it is called with, our own, and what is measured."""

    step: int
    arguments: tuple[str, ...]
    ours: Callable[[str], View]  # for a layout
    probes: Sequence[Probe]
    axes: Sequence[Both]
    mistakes: Callable[[View, str], Iterator[Mistake]]


OF_TABLE = (*rotation.AXES[:3], table.AXES[1])
WEIGHTS = ("wq", "wk", "n_heads", "n_kv_heads")
SIZES = ("batch_size", "n_kv_heads", "max_seq_len", "head_dim")
VECTORS = ("xq", "xk", "xv", "freqs_cis", "mask")
# fmt: off
EXERCISES = {
    "precompute_freqs_cis": Exercise(
        5, ("dim",
            "end", "theta"), lambda _: table.right, table.PROBES, table.AXES, lambda view, _: table.mistakes(view)),
    "reshape_for_broadcast": Exercise(
        4, ("freqs_cis", "x"), lambda _: rotation.reshape_right, rotation.RESHAPE_PROBES, OF_TABLE,
        lambda view, _: rotation.reshape_mistakes(view)),
    "apply_rotary_emb": Exercise(
        3, ("xq", "xk", "freqs_cis"), rotation.right, rotation.PROBES, rotation.AXES, rotation.mistakes),
    "to_neighbours": Exercise(
        3, WEIGHTS, lambda _: layouts.to_layout(NEIGHBOURS), layouts.LAYOUT_PROBES, layouts.ROWS,
        lambda view, _: layouts.layout_mistakes(view, NEIGHBOURS)),
    "to_halves": Exercise(
        3, WEIGHTS, lambda _: layouts.to_layout(HALVES), layouts.LAYOUT_PROBES, layouts.ROWS,
        lambda view, _: layouts.layout_mistakes(view, HALVES)),
    "causal_mask": Exercise(
        8, (
            "start_pos",
            "T"), lambda _: layouts.mask_right, layouts.MASK_PROBES, (), lambda view, _: layouts.mask_mistakes(view)),
    "KVCache": Exercise(
        8, SIZES, lambda _: kv_cache.right, kv_cache.PROBES, kv_cache.AXES, lambda view, _: kv_cache.mistakes(view)),
    "attention": Exercise(7, VECTORS, attention.right, attention.PROBES, rotation.AXES, attention.mistakes),
}
OF_NETWORK = ("args", "batch_size")  # of the cache of a network, as in model/cache.py
ROTATED = ("xq", "xk", "xv", "mask")  # of an attention of (B, H, T, D), rotated before, as in model/attention.py
FORM = Mistake(
    "not the form of your table: precompute_freqs_cis writes another",
    "与你的表形式不同：precompute_freqs_cis 写的是另一种", 3)
OVERWRITTEN = Mistake("an argument is overwritten: write to a new tensor", "改写了传入的参数：写到新的张量里", 4)
RANDOM = Mistake(
    "different numbers on each call: no dropout, nothing kept",
    "每次调用结果不同：不要 dropout，也不要留下上次的东西", 7)
# fmt: on
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
    mistakes: list[Mistake] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.outcome in ("right", "halves", "unneeded")

    def lines(self, hint_only: bool, language: int = 0) -> Iterator[str]:
        """The text in English (0) or Chinese (1); as a hint, without the mistakes."""
        colon, semicolon, stop = ((": ", ", and ", ". "), ("：", "；", "。"))[language]
        texts = [] if hint_only else [mistake[language] for mistake in self.mistakes]
        head = [self.function, OUTCOMES[self.outcome][language]]
        head.append(semicolon.join(text.partition(colon.strip())[0] for text in texts))
        if not self.finding:
            head.append(self.problem)
        yield colon.join(filter(None, head))
        if self.finding:
            where, yours, expected = self.finding
            yield from wrapped(f"{where[language]}{colon.strip()}")
            yield from wrapped(
                (f"yours {yours}; expected {expected}.", f"你的是 {yours}；应为 {expected}。")[language], "    "
            )
            if self.problem:
                yield from wrapped(f"{('It also raises', '还会抛出异常')[language]}{colon}{self.problem}")
        if self.outcome == "wrong" and not hint_only:
            for text, mistake in zip(texts, self.mistakes):
                yield from wrapped(f"{text[:1].upper()}{text[1:]}{stop}{self.see(mistake.step, language)}")
            if not texts:
                yield from wrapped(self.see(0, language))

    def see(self, step: int, language: int) -> str:
        step = step or EXERCISES[self.function].step
        page = f"docs/{'rope' if step <= 8 else 'rope-models'}{('', '.zh')[language]}.md"
        return (f"See {page}, step {step}.", f"见 {page} 第 {step} 节。")[language]


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def judge(name: str, written: Callable[..., Any], path: Path, conventions: Conventions) -> Verdict:
    """The verdict on one function. What it shows is added to the conventions."""
    exercise = EXERCISES[name]
    call = Caller(written, arguments_of(name, written), path)
    possible = conventions.layouts if name in ("apply_rotary_emb", "attention") else ("",)
    tried = []
    try:
        for form, view in views_of(name, call, conventions).items():
            results = [probe.of(view) for probe in exercise.probes]
            for layout in possible:
                tried.append((form, layout, view, results, differences(name, results, layout)))
            if not isinstance(results[0], Raised) and (name != "apply_rotary_emb" or form == conventions.table):
                break
    except Unwritten:
        is_needed = name != "reshape_for_broadcast" or conventions.table in ("", COMPLEX)
        return Verdict(name, "unwritten" if is_needed else "unneeded")
    problems = [str(result) for result in tried[0][3] if isinstance(result, Raised)]
    form, layout, view, results, findings = min(tried, key=lambda each: badness(each[3], each[4]))
    if all(isinstance(result, Raised) for result in results):
        return Verdict(name, "raised", problems[0])
    problems = [str(result) for result in results if isinstance(result, Raised)]
    conventions.calls[name], conventions.views[name] = call, view
    if findings and name == "apply_rotary_emb":
        layout = rotation.layout_of(view)
        findings = differences(name, results, layout)
    mistakes = named(exercise, view, layout) if findings else []
    again = (probe.of(view) for probe in exercise.probes)
    pairs = [pair for pair in zip(exercise.probes, results, again) if not isinstance(pair[1], Raised)]
    if any(difference(probe, exercise.axes, *pair) for probe, *pair in pairs):
        mistakes = [RANDOM]
    if call.overwritten:
        mistakes.append(OVERWRITTEN)
        after = Both(f"{call.overwritten} after the call", f"调用之后的 {call.overwritten}")
        findings.append(Finding(after, "changed", "as before"))
    if name == "apply_rotary_emb" and conventions.table not in ("", form):
        mistakes.append(FORM)
        findings.append(Finding(Both("the form of the table that it reads", "它读的表的形式"), form, conventions.table))
    if name == "apply_rotary_emb":
        conventions.table, conventions.layouts = form, (layout,)
    if name == "precompute_freqs_cis":
        conventions.table = read_table(call(8, 7, 3.0), 4)[0]
    if not findings:
        return Verdict(name, "halves" if layout == HALVES else "right")
    return Verdict(name, "wrong", "".join(problems[:1]), findings[0], list(dict.fromkeys(mistakes)))


def arguments_of(name: str, written: Callable[..., Any]) -> tuple[str, ...]:
    count = count_of_required(written)
    if name == "KVCache" and count < 3:
        return OF_NETWORK
    return ROTATED if name == "attention" and count < 5 else EXERCISES[name].arguments


def differences(name: str, results: Sequence[Any], layout: str) -> list[Finding]:
    """The first number that differs in each probe, then exceptions."""
    exercise = EXERCISES[name]
    found, raised = [], []
    for probe, yours in zip(exercise.probes, results):
        expected = probe.of(exercise.ours(layout))
        if isinstance(yours, Raised):
            raised.append(Finding(probe.label, "an exception", kind(expected)))
        else:
            found.append(difference(probe, exercise.axes, yours, expected))
    return [*filter(None, found), *raised]


def badness(results: Sequence[Any], findings: Sequence[Finding]) -> int:
    return len(findings) + len(results) * sum(isinstance(result, Raised) for result in results)


def named(exercise: Exercise, view: View, layout: str) -> list[Mistake]:
    """The mistakes that were measured until a result had no shape that could be measured."""
    found = []
    try:
        for mistake in exercise.mistakes(view, layout):
            found.append(mistake)
    except Exception:  # raised by the reader's function, or here by a result of another type or shape
        pass
    return found


# The reader's functions with our arguments.


def views_of(name: str, call: Caller, conventions: Conventions) -> dict[str, View]:
    """The function for each form in which it may take the table, the reader's own first."""
    if name == "KVCache":
        return {"": lambda: new_cache(call)}
    if name == "reshape_for_broadcast":
        return {
            COMPLEX: call,
            "one": lambda *given: reshape_parts(call, *given),
            "both": lambda *given: reshape_both(call, *given),
        }
    if call.names == ROTATED:
        return {"": lambda *given: with_rotation(call, conventions.layouts[0], *given)}
    if "freqs_cis" not in call.names:
        return {"": call}
    place = call.names.index("freqs_cis")

    def written(form: str) -> View:
        return lambda *given: call(*given[:place], write_table(form, given[place]), *given[place + 1 :])

    forms = dict.fromkeys((conventions.table, *FORMS) if conventions.table else FORMS)
    return {form: written(form) for form in forms}


def reshape_parts(call: Caller, freqs_cis: Tensor, x: Tensor) -> Tensor:
    return torch.complex(call(freqs_cis.real.contiguous(), x.real), call(freqs_cis.imag.contiguous(), x.real))


def reshape_both(call: Caller, freqs_cis: Tensor, x: Tensor) -> Tensor:
    return torch.complex(*call((freqs_cis.real, freqs_cis.imag), x.real))


def with_rotation(
    call: Caller, layout: str, xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Tensor, mask: Tensor
) -> Any:
    """Attention (B, T, H, D) by one of rotated queries and keys (B, H, T, D)."""
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
