"""The verdict on one function: the version of mistakes.txt with the same results, and the first number that differs."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.config import ModelArgs

from .mistakes import FUNCTIONS, MISTAKES, Version
from .probes import (
    CACHE,
    COMPLEX,
    FORMS,
    PROBES,
    are_close,
    attempt,
    is_rounded,
    plain,
    read_table,
    same,
    write_table,
)
from .reader import Caller, Raised, Unwritten, count_of_required, kind, parameters, tensors_of
from .rotation import Finding, rotation_findings


class Exercise(NamedTuple):
    """A function to write: the step of docs/rope.md about it, the axes of its result, and the parts of a tuple."""

    step: int
    axes: tuple[str, ...]
    parts: tuple[str, ...] = ()


VECTORS = ("row of the batch", "token", "head", "channel")
EXERCISES = {
    "precompute_freqs_cis": Exercise(5, ("position", "pair")),
    "reshape_for_broadcast": Exercise(4, (*VECTORS[:3], "pair")),
    "apply_rotary_emb": Exercise(3, VECTORS, ("q", "k")),
    "to_neighbours": Exercise(3, ("row", "column"), ("wq", "wk")),
    "to_halves": Exercise(3, ("row", "column"), ("wq", "wk")),
    "causal_mask": Exercise(8, ("token", "key")),
    "KVCache": Exercise(8, ("row of the batch", "head", "slot", "channel"), ("keys", "values")),
    "attention": Exercise(7, VECTORS),
}
SIZES = ("batch_size", "n_kv_heads", "max_seq_len", "head_dim")  # of a cache
OF_NETWORK = ("args", "batch_size")  # of the cache of a network, as in model/cache.py
ROTATED = ("xq", "xk", "xv", "mask")  # of an attention of (B, H, T, D), rotated before, as in model/attention.py
WITH_VECTORS = ("apply_rotary_emb", "attention")
RIGHT, UNWRITTEN = "right", "not written yet"
UNNEEDED = "not written, and not needed for a table of cosines and sines"
HALF_SPLIT = "right, in the half-split layout (channel i pairs with i + D/2, as in Hugging Face)"
View = Callable[..., Any]  # the reader's function as one with the arguments and results of the right one


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged."""

    table: str = ""  # its form, one of FORMS, once it is known
    layouts: Sequence[str] = ("neighbours", "halves")  # those that are possible
    axes: str = ""  # of vectors, if not (B, T, H, D)
    calls: dict[str, Caller] = field(default_factory=dict)  # the functions that ran
    views: dict[str, View] = field(default_factory=dict)  # these, with our arguments


@dataclass
class Verdict:
    """The outcome for one function: one of the texts above, or wrong, or raised (an exception)."""

    function: str
    outcome: str
    problem: str = ""  # why it raised
    named: list[Version] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # the first number that differs, and what a rotation does

    @property
    def is_good(self) -> bool:
        return self.outcome.startswith(RIGHT) or self.outcome == UNNEEDED

    def lines(self, hint_only: bool) -> Iterator[str]:
        """The text; as a hint, without the names of mistakes and the reasons."""
        details = [each.where.removeprefix(", ") if hint_only else each.name for each in self.named]
        if not self.named and not self.findings:
            details = [self.problem]
        text = ", and ".join(dict.fromkeys(filter(None, details)))
        yield (", " if hint_only and self.named else ": ").join(
            filter(None, (f"{self.function}: {self.outcome}", text))
        )
        for finding in self.findings:
            yield from wrapped(f"{finding.measured}:")
            yield from wrapped(f"yours {finding.yours}; expected {finding.expected}.", "    ")
        if self.findings and self.problem:
            yield from wrapped(f"It also raises an exception: {self.problem}")
        if hint_only:
            return
        for each in self.named:
            if each.wrong and not each.calls_helpers:
                yield from wrapped(f"In our function, {each.wrong} in place of {each.right} gives the same results.")
        for mistake in dict.fromkeys(each.mistake for each in self.named):
            yield from wrapped(f"{mistake.why} {see(mistake.step)}")
        if self.outcome == "wrong" and not self.named:
            yield from wrapped(f"This mistake has no name. {see(EXERCISES[self.function].step)}")


def see(step: int) -> str:
    return f"See docs/{'rope.md' if step <= 8 else 'rope-models.md'}, step {step}."


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


class Form(NamedTuple):
    """A way to call the reader's function, and what it does in the probes."""

    table: str  # one of FORMS, or how reshape_for_broadcast takes the table
    axes: str  # of the vectors, if not (B, T, H, D)
    view: View
    results: list[Any]


class Match(NamedTuple):
    """The versions that give the reader's results, none if the function is right, and in which layout and form."""

    versions: Sequence[Version]
    layout: str
    form: Form


def judge(name: str, written: Callable[..., Any], path: Path, conventions: Conventions) -> Verdict:
    """The verdict on one function. What it shows is added to the conventions."""
    arguments = FUNCTIONS[name].parameters
    if name == "attention" and len(parameters(written)) == len(ROTATED):
        arguments = ROTATED
    if name == "KVCache":
        arguments = OF_NETWORK if count_of_required(written) in (1, 2) else SIZES
    call = Caller(written, arguments, path)
    layouts = conventions.layouts if name in WITH_VECTORS else ("",)
    try:
        forms = forms_that_run(name, call, conventions)
    except Unwritten:
        is_needed = name != "reshape_for_broadcast" or conventions.table in ("", COMPLEX)
        return Verdict(name, UNWRITTEN if is_needed else UNNEEDED)
    if not runs(forms[0]):
        return Verdict(name, "raised", str(forms[0].results[0]))
    conventions.calls[name], conventions.views[name] = call, forms[0].view
    if not all(map(same, results_of(name, forms[0].view), forms[0].results)):
        return Verdict(name, "wrong", named=[Version(MISTAKES["different numbers on each call"])])
    match = search(name, forms, layouts)
    if match is None and name == "apply_rotary_emb":
        match = search_in_q_and_k(forms, layouts)
    if match is None:
        form, named = forms[0], []
        layout = min(layouts, key=partial(count_of_differences, name, form.results))
    else:
        form, layout = match.form, match.layout
        named = list(match.versions) or right_but(name, form, call, conventions)
    conventions.views[name] = form.view
    if name == "apply_rotary_emb":
        conventions.layouts = (layout,)
        conventions.table, conventions.axes = form.table, form.axes
    if match is None or named or exceptions(form):
        return wrong(name, form, layout, named)
    if name == "precompute_freqs_cis":
        conventions.table = form_of(call)
    return Verdict(name, HALF_SPLIT if layout == "halves" else RIGHT)


def form_of(call: Caller) -> str:
    """The form of the reader's right table."""
    table = plain(call(8, 7, 3.0))
    right = version("precompute_freqs_cis", (), "")(8, 7, 3.0)
    return next((form for form in FORMS if same(plain(write_table(form, right)), table)), COMPLEX)


def right_but(name: str, form: Form, call: Caller, conventions: Conventions) -> list[Version]:
    """A mistake of a function with the right results."""
    if call.overwrites:
        return [Version(MISTAKES["an argument is overwritten"])]
    if name == "apply_rotary_emb" and not exceptions(form) and is_rounded(form.view):
        return [Version(MISTAKES["rotated in half precision"])]
    if name == "apply_rotary_emb" and conventions.table not in ("", form.table):
        return [Version(MISTAKES["not the form of your table"])]
    return []


def count_of_differences(name: str, seen: list[Any], layout: str) -> int:
    """How many numbers differ from the right ones of the layout."""
    right = results_of(name, version(name, (), layout))
    pairs = [[x.to(torch.complex128) for x in pair] for pair in zip(tensors_of(seen), tensors_of(right))]
    return sum(int((~are_close(x, y)).sum()) if x.shape == y.shape else y.numel() for x, y in pairs)


def wrong(name: str, form: Form, layout: str, named: list[Version]) -> Verdict:
    """The verdict with what differs first."""
    right = results_of(name, version(name, (), layout))
    verdict = Verdict(name, "wrong", named=named)
    for label, yours, expected in zip(PROBES[name], form.results, right):
        if isinstance(yours, Raised):
            verdict.problem = verdict.problem or str(yours)
        elif not verdict.findings:
            verdict.findings += filter(None, [difference(name, yours, expected, label)])
    if name == "apply_rotary_emb":
        verdict.findings += rotation_findings(form.view, layout)
    if not verdict.findings and not named:
        verdict.outcome = "raised"
    return verdict


# The ways to call a function: with the table in each form, and for vectors with fewer axes.


def forms_that_run(name: str, call: Caller, conventions: Conventions) -> list[Form]:
    """The forms in which the function raises the fewest exceptions.

    If it runs in the first form, that of the reader's own table, this is the only one. Vectors have fewer axes only if
    it does not run with all of them.
    """
    views = views_of(name, call, conventions)
    forms = [Form(table, "", view, results_of(name, view)) for table, view in views.items()]
    if not isinstance(forms[0].results[0], Raised):
        return forms[:1]
    if name in WITH_VECTORS and not any(map(runs, forms)):
        fewer = [
            Form(table, axes, each, results_of(name, each))
            for table, view in views.items()
            for axes, each in views_of_fewer_axes(view).items()
        ]
        forms = list(filter(runs, fewer)) or forms
    fewest = min(map(exceptions, forms))
    return [form for form in forms if exceptions(form) == fewest]


def runs(form: Form) -> bool:
    return not all(isinstance(result, Raised) for result in form.results[:2])


def exceptions(form: Form) -> int:
    return sum(isinstance(result, Raised) for result in form.results)


def views_of(name: str, call: Caller, conventions: Conventions) -> dict[str, View]:
    """The function for each form of the table."""
    if name == "KVCache":
        return {"": partial(new_cache, call)}
    if name == "reshape_for_broadcast":
        return reshape_views(call)
    if call.names == ROTATED:
        return {"": partial(with_rotation, call, conventions.layouts[0])}
    if "freqs_cis" not in call.names:
        return {"": call}
    forms = [conventions.table] if name == "attention" and conventions.table else FORMS
    return {form: partial(with_table, call, form) for form in dict.fromkeys([conventions.table or COMPLEX, *forms])}


def with_table(call: Caller, form: str, *given: Tensor) -> Any:
    return call(*(write_table(form, x) if x.is_complex() else x for x in given))


def with_rotation(call: Caller, layout: str, xq: Tensor, xk: Tensor, xv: Tensor, table: Tensor, mask: Tensor) -> Any:
    """An attention of rotated queries and keys (B, H, T, D)."""
    rotated = *version("rotate", (), layout)(xq, xk, table), xv
    return call(*(x.transpose(1, 2) for x in rotated), mask).transpose(1, 2)


def views_of_fewer_axes(view: View) -> dict[str, View]:
    """A function of vectors with these axes as one of vectors (B, T, H, D)."""
    return {
        "(B, T, D)": partial(one_by_one, view, 2),
        "(T, H, D)": partial(one_by_one, view, 0),
        "(T, D)": partial(one_by_one, partial(one_by_one, view, 1), 0),
    }


def one_by_one(view: View, axis: int, *given: Tensor) -> Any:
    """Call the function for each row of the batch or head. H / K heads of queries share one of keys."""
    vectors = [x for x in given if x.ndim > 2]
    others = [x for x in given if x.ndim <= 2]  # the table and the mask
    count = vectors[0].shape[axis]
    results = [view(*(x.select(axis, n * x.shape[axis] // count) for x in vectors), *others) for n in range(count)]
    if torch.is_tensor(results[0]):
        return torch.stack(results, axis)
    return tuple(
        torch.stack([result[part] for result in results[:: count // x.shape[axis]]], axis)
        for part, x in enumerate(vectors)
    )


def reshape_views(call: Caller) -> dict[str, View]:
    """For a table of cosines and sines, the function may take one of them or both."""

    def of_one(table: Tensor, x: Tensor) -> Any:
        return torch.complex(*(call(part, x.real) for part in (table.real.contiguous(), table.imag.contiguous())))

    def of_both(table: Tensor, x: Tensor) -> Any:
        return torch.complex(*call((table.real, table.imag), x.real))

    return {COMPLEX: call, "one": of_one, "both": of_both}


def new_cache(call: Caller) -> Callable[..., Any]:
    """The method ``update`` of a new cache of the reader."""
    B, K, S, D = CACHE
    args = ModelArgs(dim=K * D, n_layers=1, n_heads=K, vocab_size=8, max_seq_len=S)
    cache, layers = caches_of(call, args, B)
    update = Caller(layers[0].update, ("start_pos", "xk", "xv"), call.path)

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


# The search for a version with the reader's results.


def results_of(name: str, function: View) -> list[Any]:
    return [attempt(probe, function) for probe in PROBES[name].values()]


def version(name: str, versions: Sequence[Version], layout: str) -> View:
    """The function with these versions of its lines. That of ``rotate`` rotates both xq and xk."""
    run = partial(FUNCTIONS[name].run, versions, layout)
    if name == "rotate":
        return lambda xq, xk, freqs_cis: (run(xq, freqs_cis), run(xk, freqs_cis))
    if name != "KVCache":
        return run
    shared = empty_slots()
    return lambda: partial(run, SimpleNamespace(slots=empty_slots(), shared=shared, count=0, size=CACHE[2]))


def empty_slots() -> dict[str, Tensor]:
    return {"k": torch.zeros(CACHE), "v": torch.zeros(CACHE)}


def search(name: str, forms: Sequence[Form], layouts: Sequence[str], part: slice = slice(None)) -> Match | None:
    """The version with the fewest wrong lines, at most two, that has the reader's results in one of the forms.

    Where the reader's function raises an exception, the version may do anything. Only a part of results that are tuples
    is compared.
    """
    for count in range(3):
        for layout, versions, form in product(layouts, FUNCTIONS[name].choices(count), forms):
            if agrees(name, version(name, versions, layout), form.results, part):
                return Match(versions, layout, form)
    return None


def agrees(name: str, function: View, results: list[Any], part: slice) -> bool:
    for probe, theirs in zip(PROBES[name].values(), results):
        if isinstance(theirs, Raised):
            continue
        ours = attempt(probe, function)
        if isinstance(ours, tuple) and isinstance(theirs, tuple):
            ours, theirs = ours[part], theirs[part]
        if not same(ours, theirs):
            return False
    return True


def search_in_q_and_k(forms: Sequence[Form], layouts: Sequence[str]) -> Match | None:
    """The versions of ``rotate`` that give q, and those that give k."""
    q = search("rotate", forms, layouts, slice(0, 1))
    k = search("rotate", [q.form], [q.layout], slice(1, 2)) if q else None
    if q is None or k is None:
        return None
    in_both = [each for each in q.versions if each in k.versions]
    only_q = [each._replace(only="q") for each in q.versions if each not in in_both]
    only_k = [each._replace(only="k") for each in k.versions if each not in in_both]
    return q._replace(versions=in_both + only_q + only_k)


# The first number that differs.


def difference(name: str, yours: Any, expected: Any, where: str) -> Finding | None:
    if same(yours, expected):
        return None
    if isinstance(yours, tuple) and isinstance(expected, tuple) and len(yours) == len(expected):
        if isinstance(expected[0], tuple):  # calls of KVCache, each with its label
            pairs = [(label, x, y) for (_, x), (label, y) in zip(yours, expected)]
        else:
            pairs = [(f"{where}, {part}", x, y) for part, x, y in zip(EXERCISES[name].parts, yours, expected)]
        return next(filter(None, (difference(name, x, y, part) for part, x, y in pairs)), None)
    if isinstance(yours, Raised):
        return Finding(where, "an exception", kind(expected))
    if not torch.is_tensor(yours) or not torch.is_tensor(expected):
        return Finding(where, kind(yours), kind(expected))
    if yours.shape != expected.shape:
        return Finding(f"{where}: the shape", kind(yours), kind(expected))
    if yours.dtype != expected.dtype:
        return Finding(f"{where}: the dtype", *(str(x.dtype)[6:].rstrip("0123456789") for x in (yours, expected)))
    if name == "causal_mask":
        token = int((yours != expected).any(1).nonzero()[0])
        seen = (", ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in (yours[token], expected[token]))
        position = expected.shape[1] - expected.shape[0] + token
        return Finding(f"{where}: token {token} is at position {position}; it sees the keys", *seen)
    at = tuple((~are_close(yours, expected)).nonzero()[0].tolist())
    place = ", ".join(f"{axis} {number}" for axis, number in zip(EXERCISES[name].axes, at))
    return Finding(f"{where}: {place}", f"{yours[at].item():.6g}", f"{expected[at].item():.6g}")


# Right functions in the reader's form and layout, which the reader's functions may call.


def counterparts(conventions: Conventions) -> dict[str, Callable[..., Any]]:
    def reshape_for_broadcast(table: Any, x: Tensor) -> Any:
        return tuple(part[None, :, None] for part in table) if isinstance(table, tuple) else table[None, :, None]

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *table: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Rotate by the table, which is one argument or two, passed by position or by name.

        Raises ValueError for more axes than the reader's function takes.
        """
        if conventions.axes and xq.ndim != len(conventions.axes.split()):
            raise ValueError(f"vectors {kind(xq)} instead of {conventions.axes}")
        parts = (*table, *named.values())
        freqs_cis = read_table(parts[0] if len(parts) == 1 else parts, xq.shape[-1] // 2)
        q, k = (x if "B" in conventions.axes or x.ndim == 4 else x[None] for x in (xq, xk))
        q, k = (x if x.ndim == 4 else x.unsqueeze(2) for x in (q, k))  # (B, T, H, D)
        q, k = version("rotate", (), conventions.layouts[0])(q, k, freqs_cis)
        return q.view_as(xq), k.view_as(xk)

    return {"reshape_for_broadcast": reshape_for_broadcast, "apply_rotary_emb": apply_rotary_emb}
