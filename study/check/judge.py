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
from .compare import (
    COMPLEX,
    FORMS,
    HALVES,
    NEIGHBOURS,
    Finding,
    Mistake,
    Probe,
    difference,
    read_table,
    rotate,
    write_table,
)
from .reader import Caller, Raised, Unwritten, count_of_required, kind

View = Callable[..., Any]  # the reader's function as one with the arguments and results of ours


class Exercise(NamedTuple):
    """A function to write: the step of the walk about it, its arguments, its probes, and the axes of its result."""

    step: int
    arguments: tuple[str, ...]
    probes: Sequence[Probe]
    axes: Sequence[Both]


EXERCISES = {
    "precompute_freqs_cis": Exercise(5, ("dim", "end", "theta"), table.PROBES, table.AXES),
    "reshape_for_broadcast": Exercise(
        4, ("freqs_cis", "x"), rotation.RESHAPE_PROBES, (*rotation.AXES[:3], table.AXES[1])
    ),
    "apply_rotary_emb": Exercise(3, ("xq", "xk", "freqs_cis"), rotation.PROBES, rotation.AXES),
    "to_neighbours": Exercise(3, ("wq", "wk", "n_heads", "n_kv_heads"), layouts.LAYOUT_PROBES, layouts.ROWS),
    "to_halves": Exercise(3, ("wq", "wk", "n_heads", "n_kv_heads"), layouts.LAYOUT_PROBES, layouts.ROWS),
    "causal_mask": Exercise(8, ("start_pos", "T"), layouts.MASK_PROBES, layouts.KEYS),
    "KVCache": Exercise(8, ("batch_size", "n_kv_heads", "max_seq_len", "head_dim"), kv_cache.PROBES, kv_cache.AXES),
    "attention": Exercise(7, ("xq", "xk", "xv", "freqs_cis", "mask"), attention.PROBES, rotation.AXES),
}
OF_NETWORK = ("args", "batch_size")  # of the cache of a network, as in model/cache.py
ROTATED = ("xq", "xk", "xv", "mask")  # of an attention of (B, H, T, D), rotated before, as in model/attention.py
OUTCOMES = {
    "right": Both("right", "正确"),
    "right in halves": Both(
        "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)",
        "正确，用前后两半的布局（第 i 个分量与第 i + D/2 个配对，同 Hugging Face）",
    ),
    "wrong": Both("wrong", "有错"),
    "raised": Both("raised", "抛出异常"),
    "unwritten": Both("not written yet", "还没写"),
    "unneeded": Both("not written, and not needed for cosines and sines", "没写，用 cos 和 sin 两张表时也用不着"),
}
FORM = Mistake(
    3,
    "not the form of your table: it reads another form than precompute_freqs_cis writes.",
    "与你的表形式不同：它读的不是 precompute_freqs_cis 写出的形式。",
)
OVERWRITTEN = Mistake(4, "an argument is overwritten: write to a new tensor.", "改写了传入的参数：请写到新的张量里。")
RANDOM = Mistake(
    7,
    "different numbers on each call: no dropout, and nothing kept from an earlier call.",
    "每次调用结果不同：不要 dropout，也不要留下上一次的东西。",
)


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged."""

    table: str = ""  # its form, one of FORMS, once it is known
    layouts: Sequence[str] = (NEIGHBOURS, HALVES)  # those that are possible
    calls: dict[str, Caller] = field(default_factory=dict)  # the functions that ran
    views: dict[str, View] = field(default_factory=dict)  # these, with our arguments


@dataclass
class Verdict:
    """The outcome for one function, a key of OUTCOMES."""

    function: str
    outcome: str
    problem: str = ""  # an exception that it raised
    finding: Finding | None = None
    mistakes: list[Mistake] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.outcome in ("right", "right in halves", "unneeded")

    def lines(self, hint_only: bool, language: int = 0) -> Iterator[str]:
        """The text in English (0) or Chinese (1); as a hint, without the mistakes."""
        colon, semicolon = ((": ", ", and "), ("：", "；"))[language]
        texts = [] if hint_only else [(mistake.en, mistake.zh)[language] for mistake in self.mistakes]
        head = [self.function, OUTCOMES[self.outcome][language]]
        if texts:
            head.append(semicolon.join(text.split(colon.strip(), 1)[0].rstrip(".。") for text in texts))
        if not self.finding and self.problem:
            head.append(self.problem)
        yield colon.join(head)
        if self.finding:
            where, yours, expected = self.finding
            yield from wrapped(f"{where[language]}{colon.strip()}")
            yield from wrapped(
                (f"yours {yours}; expected {expected}.", f"你的是 {yours}；应为 {expected}。")[language], "    "
            )
            if self.problem:
                yield from wrapped(
                    (f"It also raises an exception: {self.problem}", f"还会抛出异常：{self.problem}")[language]
                )
        for mistake, text in zip(self.mistakes, texts):
            yield from wrapped(f"{text[:1].upper()}{text[1:]} {see(mistake.step, language)}")
        if self.outcome == "wrong" and not hint_only and not texts:
            unnamed = ("This mistake has no name.", "这个错误没有名字。")[language]
            yield from wrapped(f"{unnamed} {see(EXERCISES[self.function].step, language)}")


def see(step: int, language: int) -> str:
    page = f"docs/{'rope' if step <= 8 else 'rope-models'}{('', '.zh')[language]}.md"
    return (f"See {page}, step {step}.", f"见 {page} 第 {step} 节。")[language]


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def judge(name: str, written: Callable[..., Any], path: Path, conventions: Conventions) -> Verdict:
    """The verdict on one function. What it shows is added to the conventions."""
    exercise = EXERCISES[name]
    call = Caller(written, arguments_of(name, written), path)
    possible = conventions.layouts if name in ("apply_rotary_emb", "attention") else ("",)
    found: list[tuple[str, View, list[Any]]] = []
    try:
        for form, view in views_of(name, call, conventions).items():
            found.append((form, view, [probe.of(view) for probe in exercise.probes]))
    except Unwritten:
        is_needed = name != "reshape_for_broadcast" or conventions.table in ("", COMPLEX)
        return Verdict(name, "unwritten" if is_needed else "unneeded")
    form, view, results = min(found, key=lambda each: min(count_of_wrong(name, each[2], layout) for layout in possible))
    if all(isinstance(result, Raised) for result in results):
        return Verdict(name, "raised", str(found[0][2][0]))
    conventions.calls[name], conventions.views[name] = call, view
    layout = layout_of(name, view, results, possible)
    verdict = Verdict(name, "right in halves" if layout == HALVES else "right")
    verdict.finding = first_difference(name, results, layout)
    verdict.problem = next((str(result) for result in results if isinstance(result, Raised)), "")
    if first_difference(name, [probe.of(view) for probe in exercise.probes], layout, results):
        verdict.mistakes = [RANDOM]
    elif verdict.finding:
        verdict.mistakes = named(name, call, view, layout)
    if call.overwritten:
        verdict.mistakes.append(OVERWRITTEN)
        text = Both(f"{call.overwritten} after the call", f"调用之后的 {call.overwritten}")
        verdict.finding = verdict.finding or Finding(text, "changed", "unchanged")
    if name == "apply_rotary_emb":
        conventions.layouts = (layout,)
        if conventions.table not in ("", form):
            verdict.mistakes.append(FORM)
            text = Both("the form of the table that it reads", "它读的表的形式")
            verdict.finding = verdict.finding or Finding(text, form, conventions.table)
        conventions.table = form
    if name == "precompute_freqs_cis":
        conventions.table = read_table(call(8, 7, 3.0), 4)[0]
    if verdict.finding:
        verdict.outcome = "wrong"
    return verdict


def arguments_of(name: str, written: Callable[..., Any]) -> tuple[str, ...]:
    count = count_of_required(written)
    if name == "KVCache" and count < 3:
        return OF_NETWORK
    return ROTATED if name == "attention" and count < 5 else EXERCISES[name].arguments


def layout_of(name: str, view: View, results: list[Any], possible: Sequence[str]) -> str:
    if len(possible) == 1:
        return possible[0]
    right = [layout for layout in possible if not first_difference(name, results, layout)]
    if right:
        return right[0]
    if name == "apply_rotary_emb":
        return rotation.layout_of(view)
    return min(possible, key=lambda layout: len(named(name, None, view, layout)))


def named(name: str, call: Caller | None, view: View, layout: str) -> list[Mistake]:
    """The mistakes that were measured until a result had no shape that could be measured."""
    makers: dict[str, Callable[[], Iterator[Mistake]]] = {
        "precompute_freqs_cis": lambda: table.mistakes(view),
        "reshape_for_broadcast": lambda: rotation.reshape_mistakes(view),
        "apply_rotary_emb": lambda: rotation.mistakes(view, layout),
        "to_neighbours": lambda: layouts.layout_mistakes(view, NEIGHBOURS),
        "to_halves": lambda: layouts.layout_mistakes(view, HALVES),
        "causal_mask": lambda: layouts.mask_mistakes(view),
        "KVCache": lambda: kv_cache.mistakes(view),
        "attention": lambda: attention.mistakes(view, layout),
    }
    found: list[Mistake] = []
    try:
        for mistake in makers[name]():
            found.append(mistake)
    except Exception:  # raised by the reader's function, or here by a result of another type or shape
        pass
    return list(dict.fromkeys(found))


def ours(name: str, layout: str) -> View:
    functions: dict[str, View] = {
        "precompute_freqs_cis": table.right,
        "reshape_for_broadcast": rotation.reshape_right,
        "apply_rotary_emb": rotation.right(layout),
        "to_neighbours": layouts.to_layout(NEIGHBOURS),
        "to_halves": layouts.to_layout(HALVES),
        "causal_mask": layouts.mask_right,
        "KVCache": kv_cache.right,
        "attention": attention.right(layout),
    }
    return functions[name]


def first_difference(name: str, results: list[Any], layout: str, expected: list[Any] | None = None) -> Finding | None:
    """The first number that differs from ours, or the first exception if no number does."""
    exercise = EXERCISES[name]
    raised = None
    for number, (probe, yours) in enumerate(zip(exercise.probes, results)):
        right = expected[number] if expected else probe.of(ours(name, layout))
        if isinstance(yours, Raised):
            raised = raised or Finding(probe.label, "an exception", kind(right))
            continue
        found = difference(probe.label, exercise.axes, yours, right, probe.tolerance)
        if found:
            return found
    return None if expected else raised


def count_of_wrong(name: str, results: list[Any], layout: str) -> int:
    """How many probes differ; an exception counts more."""
    probes, axes = EXERCISES[name].probes, EXERCISES[name].axes
    count = 0
    for probe, yours in zip(probes, results):
        if isinstance(yours, Raised):
            count += len(probes)
        elif difference(probe.label, axes, yours, probe.of(ours(name, layout)), probe.tolerance):
            count += 1
    return count


# The reader's functions with our arguments.


def views_of(name: str, call: Caller, conventions: Conventions) -> dict[str, View]:
    """The function for each form in which it may take the table, the reader's own first."""
    if name == "KVCache":
        return {"": lambda: new_cache(call)}
    if name == "reshape_for_broadcast":
        return {
            "complex": call,
            "one of two": lambda t, x: reshape_one(call, t, x),
            "both": lambda t, x: torch.complex(*call((t.real, t.imag), x.real)),
        }
    if call.names == ROTATED:
        return {"": lambda *given: with_rotation(call, conventions.layouts[0], *given)}
    if "freqs_cis" not in call.names:
        return {"": call}
    forms = dict.fromkeys((conventions.table, *FORMS)) if conventions.table else FORMS
    place = call.names.index("freqs_cis")

    def written(form: str) -> View:
        return lambda *given: call(*given[:place], write_table(form, given[place]), *given[place + 1 :])

    return {form: written(form) for form in forms}


def reshape_one(call: Caller, freqs_cis: Tensor, x: Tensor) -> Tensor:
    return torch.complex(*(call(part.contiguous(), x.real) for part in (freqs_cis.real, freqs_cis.imag)))


def with_rotation(
    call: Caller, layout: str, xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Tensor, mask: Tensor
) -> Any:
    """Attention (B, T, H, D) by one of rotated queries and keys (B, H, T, D)."""
    turned = rotate(xq, freqs_cis, layout), rotate(xk, freqs_cis, layout), xv
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
        if isinstance(freqs_cis, tuple):
            return tuple(part[None, :, None] for part in freqs_cis)
        return freqs_cis[None, :, None]

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *parts: Any, **named_parts: Any) -> tuple[Tensor, Tensor]:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = (*parts, *named_parts.values())
        freqs_cis = read_table(parts[0] if len(parts) == 1 else parts, xq.shape[-1] // 2)[1]
        return rotate(xq, freqs_cis, conventions.layouts[0]), rotate(xk, freqs_cis, conventions.layouts[0])

    return {"reshape_for_broadcast": reshape_for_broadcast, "apply_rotary_emb": apply_rotary_emb}
