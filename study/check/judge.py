"""The verdict on one function: the version of mistakes.txt with the same results, and the first number that differs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.config import ModelArgs

from .calls import Caller, kind, parameters
from .mistakes import FUNCTIONS, MISTAKES, Version
from .probes import (
    CACHE,
    COMPLEX,
    FORMS,
    HALVES,
    NEIGHBOURS,
    PROBES,
    SINGLE,
    STACKED,
    TABLE_TOLERANCE,
    TOLERANCE,
    Check,
    Probe,
    Raised,
    Slots,
    Unwritten,
    attempt,
    form_of,
    same,
    side,
    write_table,
)  # fmt: skip
from .rotation import rotation_findings
from .verdict import HALF_SPLIT, RIGHT, UNWRITTEN, Finding, Named, Verdict

LAYOUTS = ("neighbours", "halves")
PARAMETERS = {
    "precompute_freqs_cis": ("dim", "end", "theta"),
    "reshape_for_broadcast": ("freqs_cis", "x"),
    "apply_rotary_emb": ("xq", "xk", "freqs_cis"),
    "to_neighbours": ("wq", "wk", "n_heads", "n_kv_heads"),
    "to_halves": ("wq", "wk", "n_heads", "n_kv_heads"),
    "causal_mask": ("start_pos", "T"),
    "KVCache": ("batch_size", "n_kv_heads", "max_seq_len", "head_dim"),
    "attention": ("xq", "xk", "xv", "freqs_cis", "mask"),
}
AXES = {
    "precompute_freqs_cis": ("position", "pair"),
    "reshape_for_broadcast": ("row of the batch", "token", "head", "pair"),
    "apply_rotary_emb": ("row of the batch", "token", "head", "channel"),
    "to_neighbours": ("row", "column"),
    "to_halves": ("row", "column"),
    "causal_mask": ("token", "key"),
    "KVCache": ("row of the batch", "head", "slot", "channel"),
    "attention": ("row of the batch", "token", "head", "channel"),
}
PARTS = {
    "precompute_freqs_cis": ("table", "half precision"),
    "apply_rotary_emb": ("q", "k"),
    "to_neighbours": ("wq", "wk"),
    "to_halves": ("wq", "wk"),
    "KVCache": ("keys", "values"),
}


@dataclass
class Conventions:
    """What the reader's functions agree on, collected as they are judged, and the functions that are right."""

    table: str = ""  # one of FORMS, once it is known
    layout: str = "neighbours"
    right: set[str] = field(default_factory=set)


class Match(NamedTuple):
    """The versions that give the reader's results, none if the function is right, and in which layout and form."""

    versions: Sequence[Version]
    layout: str
    form: str


class FusedCalls(TorchFunctionMode):
    """Records whether a function that computes attention as a whole is called."""

    name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in getattr(func, "__name__", ""):
            self.name = func.__name__
        return func(*args, **(kwargs or {}))


@dataclass
class Observed:
    """What a function of the reader did at the probes, in each form of the table in which it was called."""

    name: str
    call: Caller
    views: dict[str, Callable[..., Any]]
    seen: dict[str, list[Any]]
    fused: str  # a function of torch for all of attention, if it was called
    is_written: bool = True


def observe(name: str, written: Callable[..., Any], path: Path, conventions: Conventions) -> Observed:
    """Call the function; only this may take long or end the process."""
    names = PARAMETERS[name]
    if name == "attention" and len(parameters(written)) == 4:  # (B, H, T, D), rotated before, as in model/attention.py
        names = ("xq", "xk", "xv", "mask")
    call = Caller(written, names, path)
    observed = Observed(name, call, views_of(name, call, conventions), {}, "")
    try:
        with FusedCalls() as fused:
            for form, view in observed.views.items():
                observed.seen[form] = results_of(name, view)
                if len(observed.seen) == 1 and not isinstance(observed.seen[form][0], Raised):
                    break  # it reads this form, the one of the reader's own table
        observed.fused = fused.name
    except Unwritten:
        observed.is_written = False
    return observed


def judge(observed: Observed, conventions: Conventions) -> Verdict:
    """The verdict on one function; what it shows is added to the conventions."""
    name, call, views, seen = observed.name, observed.call, observed.views, observed.seen
    if not observed.is_written:
        return Verdict(name, UNWRITTEN)
    running = without_exceptions(seen)
    if not running:
        return Verdict(name, "raised", str(next(iter(seen.values()))[0]))
    form = next(iter(running))
    if not all(map(same, results_of(name, views[form]), running[form])):
        return Verdict(name, "wrong", named=[Named(MISTAKES["different numbers on each call"])])
    match = search(name, running, layouts_of(name, conventions))
    named = [] if match is None else [named_version(version) for version in match.versions]
    if match is None and name == "apply_rotary_emb":
        match, named = search_in_q_and_k({form: views[form] for form in running}, layouts_of(name, conventions))
    if match is None or named:
        form, layout = (match.form, match.layout) if match else (form, conventions.layout)
        if name == "apply_rotary_emb":
            conventions.table, conventions.layout = form, layout
        return wrong(name, views[form], seen[form], layout, named)

    named = right_but(match, conventions, observed)
    if named:
        return Verdict(name, "wrong", named=named)
    if name == "precompute_freqs_cis":
        conventions.table = form_of(call(8, 7, 3.0), pairs=4)
    if name in ("apply_rotary_emb", "attention"):
        conventions.table, conventions.layout = match.form, match.layout
    conventions.right.add(name)
    outcome = HALF_SPLIT if match.layout == "halves" else RIGHT
    order = call.other_order()
    return Verdict(name, f"{outcome}, with the arguments in the order ({order})" if order else outcome)


def without_exceptions(seen: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Without the forms in which the function raised an exception at the first two probes."""
    return {form: results for form, results in seen.items() if not all(isinstance(x, Raised) for x in results[:2])}


def right_but(match: Match, conventions: Conventions, observed: Observed) -> list[Named]:
    """Mistakes of a function with the right results."""
    name = observed.name
    if observed.call.overwritten:
        return [Named(MISTAKES["an argument is overwritten"])]
    if name == "attention" and observed.fused:
        return [Named(MISTAKES["a fused attention function"])]
    if name == "apply_rotary_emb" and match.form != conventions.table and "precompute_freqs_cis" in conventions.right:
        is_mixed = {match.form, conventions.table} == {HALVES, NEIGHBOURS}
        return [Named(MISTAKES["pairs mixed with halves" if is_mixed else "not the form of your table"])]
    return []


def wrong(name: str, view: Callable[..., Any], results: list[Any], layout: str, named: list[Named]) -> Verdict:
    """The verdict with what differs first."""
    right = results_of(name, version(name, (), layout))
    verdict = Verdict(name, "wrong", named=named)
    for label, yours, expected in zip(PROBES[name], results, right):
        if isinstance(yours, Raised):
            verdict.problem = verdict.problem or str(yours)
        elif not verdict.findings:
            verdict.findings += list(differences(name, yours, expected, label))[:1]
    if name == "apply_rotary_emb":
        verdict.findings += rotation_findings(view, layout)
    if not verdict.findings and not named:
        verdict.outcome = "raised"
    return verdict


# Views: the reader's function as one with the arguments and results of the right one, for each form of the table.


def views_of(name: str, call: Caller, conventions: Conventions) -> dict[str, Callable[..., Any]]:
    if name == "KVCache":
        return {"": partial(new_cache, call)}
    if name == "reshape_for_broadcast":
        return reshape_views(call, conventions)
    forms = dict.fromkeys([conventions.table or COMPLEX, *FORMS])
    if name == "apply_rotary_emb":
        return {form: lambda xq, xk, table, form=form: call(xq, xk, write_table(form, table)) for form in forms}
    if name == "attention" and len(call.names) == 4:
        return {"": partial(with_rotation, call, conventions.layout)}
    if name == "attention":
        return {
            form: lambda xq, xk, xv, table, mask, form=form: call(xq, xk, xv, write_table(form, table), mask)
            for form in ([conventions.table] if conventions.table else forms)
        }
    return {"": call}


def reshape_views(call: Caller, conventions: Conventions) -> dict[str, Callable[..., Any]]:
    """For a table of cosines and sines, the function may take one of them or both."""

    def of_one(table: Tensor, x: Tensor) -> Any:
        return torch.complex(*(call(part, x.real) for part in (table.real.contiguous(), table.imag.contiguous())))

    def of_both(table: Tensor, x: Tensor) -> Any:
        return torch.complex(*call((table.real, table.imag), x.real))

    return (
        {COMPLEX: call} if conventions.table in (COMPLEX, STACKED) else {COMPLEX: call, SINGLE: of_one, "both": of_both}
    )


def with_rotation(call: Caller, layout: str, xq: Tensor, xk: Tensor, xv: Tensor, table: Tensor, mask: Tensor) -> Any:
    """An attention of rotated queries and keys (B, H, T, D)."""
    q, k = (FUNCTIONS["rotate"].run((), layout, x, table) for x in (xq, xk))
    return call(*(x.transpose(1, 2) for x in (q, k, xv)), mask).transpose(1, 2)


def new_cache(call: Caller) -> Callable[..., Any]:
    """The method ``update`` of a new cache of the reader.

    The class takes the sizes, or, as in model/cache.py, the ModelArgs of a network and the size of the batch. The
    latter checks its end outside of update.
    """
    B, K, S, D = CACHE
    if not takes_args(call):
        return Caller(call(*CACHE).update, ("start_pos", "xk", "xv"), call.path)
    args = ModelArgs(dim=K * D, n_layers=1, n_heads=K, vocab_size=8, max_seq_len=S)
    cache = Caller(call.function, ("args", "batch_size"), call.path)(args, B)
    layer = cache.layers[0] if hasattr(cache, "layers") else cache
    update = Caller(layer.update, ("start_pos", "xk", "xv"), call.path)

    def checked(start_pos: int, xk: Tensor, xv: Tensor) -> Any:
        if start_pos + xk.shape[2] > S:
            raise ValueError
        return update(start_pos, xk, xv)

    return checked


def takes_args(call: Caller) -> bool:
    return 0 < sum(each.default is each.empty for each in parameters(call.function)) <= 2


# The search for a version with the reader's results.


def results_of(name: str, function: Callable[..., Any]) -> list[Any]:
    return [attempt(probe, function) for probe in PROBES[name].values()]


def version(name: str, versions: Sequence[Version], layout: str) -> Callable[..., Any]:
    """The function with these versions of its lines."""
    run = partial(FUNCTIONS[name].run, versions, layout)
    if name != "KVCache":
        return run
    shared = [torch.zeros(2, *CACHE)]
    return lambda: partial(run, Slots(shared))


def search(name: str, seen: dict[str, list[Any]], layouts: Sequence[str]) -> Match | None:
    """The right function, or the version with one or two wrong lines, with the results seen in one of the forms."""
    rights = {layout: results_of(name, version(name, (), layout)) for layout in layouts}
    for layout, form in product(layouts, seen):
        if all_same(rights[layout], seen[form], tolerance_of(name)):
            return Match((), layout, form)
    for most in (1, 2):
        found: list[Match] = []
        for layout in layouts:
            for form, versions in candidates(name, seen, layout, most):
                results = results_of(name, version(name, versions, layout))
                if versions and agrees(results, seen[form], rights, tolerance_of(name)):
                    found.append(Match(versions, layout, form))
                    if all_same(
                        results, seen[form], tolerance_of(name)
                    ):  # it raises exceptions where the reader's does
                        return found[-1]
        if found:
            return found[0]
    return None


def candidates(
    name: str, seen: dict[str, list[Any]], layout: str, most: int
) -> Iterator[tuple[str, Sequence[Version]]]:
    """The versions that agree with what was seen in a form, at the first probe that raised nothing."""
    probes = list(PROBES[name].values())
    firsts: dict[int, list[str]] = {}  # forms by the number of this probe
    for form, results in seen.items():
        n = next(n for n, result in enumerate(results) if not isinstance(result, Raised))
        firsts.setdefault(n, []).append(form)
    for n, forms in firsts.items():
        probe = probes[n]
        for versions, found in results_at(name, probe, layout, most):
            for form in forms:
                if same(found, seen[form][n], tolerance_of(name)):
                    yield form, versions


def results_at(name: str, probe: Check, layout: str, most: int) -> Iterator[tuple[Sequence[Version], Any]]:
    if isinstance(probe, Probe):
        for versions, raw in FUNCTIONS[name].results(layout, probe.arguments, most):
            yield versions, attempt(probe.read, raw)
    else:
        for versions in FUNCTIONS[name].choices(most):
            yield versions, attempt(probe, version(name, versions, layout))


def agrees(results: list[Any], seen: list[Any], rights: dict[str, list[Any]], tolerance: float) -> bool:
    """Whether a wrong version agrees with what was seen, and no right one does, wherever that raised nothing."""
    shown = [n for n, result in enumerate(seen) if not isinstance(result, Raised)]
    kept, *others = ([each[n] for n in shown] for each in (seen, results, *rights.values()))
    return [all_same(each, kept, tolerance) for each in others] == [True] + [False] * len(rights)


def all_same(x: list[Any], y: list[Any], tolerance: float) -> bool:
    return all(same(*pair, tolerance) for pair in zip(x, y))


def tolerance_of(name: str) -> float:
    return TABLE_TOLERANCE if name == "precompute_freqs_cis" else TOLERANCE


def layouts_of(name: str, conventions: Conventions) -> Sequence[str]:
    """The layouts that the function may have."""
    if name not in ("apply_rotary_emb", "attention"):
        return ("",)
    return (conventions.layout,) if "apply_rotary_emb" in conventions.right else LAYOUTS


def search_in_q_and_k(views: dict[str, Callable[..., Any]], layouts: Sequence[str]) -> tuple[Match | None, list[Named]]:
    """The versions of ``rotate`` that give q, and those that give k."""
    q = search_in_one({form: side(view, 0) for form, view in views.items()}, layouts)
    k = search_in_one({q.form: side(views[q.form], 1)}, (q.layout,)) if q else None
    if q is None or k is None:
        return None, []
    in_q, in_k = ([named_version(version) for version in match.versions] for match in (q, k))
    only_q = [each._replace(only="q") for each in in_q if each not in in_k]
    only_k = [each._replace(only="k") for each in in_k if each not in in_q]
    return q, [each for each in in_q if each in in_k] + only_q + only_k


def search_in_one(views: dict[str, Callable[..., Any]], layouts: Sequence[str]) -> Match | None:
    seen = {form: results_of("rotate", view) for form, view in views.items()}
    return search("rotate", without_exceptions(seen), layouts)


def named_version(version: Version) -> Named:
    return Named(version.mistake, version.only, version.wrong, version.right)


# The first number that differs.


def differences(name: str, yours: Any, expected: Any, where: str) -> Iterator[Finding]:
    if isinstance(expected, tuple) and isinstance(yours, tuple) and len(yours) == len(expected):
        if isinstance(expected[0], str):
            yield from differences(name, yours[1], expected[1], expected[0])
            return
        names = PARTS.get(name, ())
        for number, pair in enumerate(zip(yours, expected)):
            part = f"{where}, {names[number]}" if len(names) == len(expected) else where
            yield from differences(name, *pair, part)
    elif not same(yours, expected, tolerance_of(name)):
        yield difference(name, yours, expected, where)


def difference(name: str, yours: Any, expected: Any, where: str) -> Finding:
    if not torch.is_tensor(yours) or not torch.is_tensor(expected):
        return Finding(where, kind(yours), kind(expected))
    if yours.shape != expected.shape:
        return Finding(f"{where}: the shape", kind(yours), kind(expected))
    if yours.dtype != expected.dtype:
        return Finding(f"{where}: the numbers are", *(number_kind(x) for x in (yours, expected)))
    if name == "causal_mask":
        token = int((yours != expected).any(1).nonzero()[0])
        seen = (", ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in (yours[token], expected[token]))
        position = expected.shape[1] - expected.shape[0] + token
        return Finding(f"{where}: token {token} is at position {position}; it sees the keys", *seen)
    wrong = ~torch.isclose(yours, expected, TOLERANCE, TABLE_TOLERANCE)
    at = (wrong if wrong.any() else yours != expected).nonzero()[0].tolist()
    place = ", ".join(f"{axis} {number}" for axis, number in zip(AXES[name], at))
    return Finding(f"{where}: {place}", *(number_text(x[tuple(at)].item()) for x in (yours, expected)))


def number_kind(x: Tensor) -> str:
    if x.dtype == torch.bool:
        return "bool"
    return "complex" if x.is_complex() else "real"


def number_text(value: complex) -> str:
    return f"{value:.4g}"
