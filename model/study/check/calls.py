"""Calls of the reader's functions: what each gives, what it raises, and which of its arguments it overwrites."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIGNATURES = {
    "precompute_freqs_cis": "precompute_freqs_cis(dim, end, theta)",
    "reshape_for_broadcast": "reshape_for_broadcast(freqs_cis, x)",
    "apply_rotary_emb": "apply_rotary_emb(xq, xk, freqs_cis)",
    "causal_mask": "causal_mask(start_pos, T)",
    "KVCache": "KVCache(args, batch_size)",
    "update": "update(layer, start_pos, xk, xv)",
    "attention": "attention(xq, xk, xv, freqs_cis, mask)",
}
FUNCTIONS = tuple(name for name in SIGNATURES if name != "update")
TENSORS_SHOWN = 6  # of a line that raised


class OutOfTime(BaseException):
    """Raised in the reader's code when its time is used up; no ``except Exception`` of theirs stops it."""


def out_of_time(seconds: float) -> str:
    return f"it did not end within {seconds:.2g} seconds; is there an endless loop? (--seconds N gives more)"


class Trial(NamedTuple):
    """One call: the value, or None where it raised; and the names of the arguments that were overwritten."""

    value: Any
    error: BaseException | None
    problem: str  # the exception in words
    changed: tuple[str, ...]


def parameters(function: str) -> list[str]:
    return SIGNATURES[function].partition("(")[2][:-1].split(", ")


@dataclass
class Caller:
    """Calls functions of one file, within a limit of time, and says in words what they raise."""

    path: Path
    limited: Callable[[], AbstractContextManager[Any]] = nullcontext
    namespaces: list[dict[str, Any]] = field(default_factory=list)  # of all files of the reader
    brief: bool = False  # whether it is right is all that is asked

    def trial(self, call: Callable[..., Any], given: Sequence[Any], names: Sequence[str] = ()) -> Trial:
        """Call with copies of ``given``, whose names are used in messages."""
        copies = [duplicate(x) for x in given]
        value, error, problem = None, None, ""
        try:
            with self.limited(), torch.enable_grad():
                value = call(*copies)
            value = plain(value)
        except OutOfTime:
            raise
        except BaseException as raised:
            if isinstance(raised, NotImplementedError) and self.is_unwritten(raised):
                raise
            error, problem = raised, self.describe(raised, zip(names, given))
        changed = [name for name, x, copy in zip(names, given, copies) if not unchanged(x, copy)]
        return Trial(value, error, problem, tuple(changed))

    def trials(
        self, call: Callable[..., Any], probes: Iterable[Sequence[Any]], names: Sequence[str] = ()
    ) -> list[Trial]:
        return [self.trial(call, given, names) for given in probes]

    def other_order(
        self, call: Callable[..., Any], probes: Sequence[Sequence[Any]], right: Callable[[Any, int], bool]
    ) -> tuple[int, ...]:
        """The order in which the arguments would have to be passed for ``call`` to be right; empty if there is none.

        ``right`` is asked for a value and the number of its probe.
        """
        for order in list(permutations(range(len(probes[0]))))[1:]:
            fits = True
            for number, given in enumerate(probes):
                trial = self.trial(call, [given[place] for place in order])
                fits = fits and trial.error is None and right(trial.value, number)
                if not fits:
                    break
            if fits:
                return order
        return ()

    def describe(self, error: BaseException, given: Iterable[tuple[str, Any]] = ()) -> str:
        """Where and what, on one line, with the shapes of what it was called with and of the tensors on that line."""
        called = ", ".join(f"{name} {shown}" for name, value in given if (shown := in_words(value)))
        there = ""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if self._is_theirs(frame)]
        if frames:
            tensors = [
                (name, in_words(value)) for name, value in frames[-1].f_locals.items() if not name.startswith("_")
            ]
            there = ", ".join(f"{name} {shown}" for name, shown in tensors[-TENSORS_SHOWN:] if shown)
        text = describe_error(error, self.path)
        if called:
            text += f"; called with {called}"
        if there and there != called:
            text += f"; there {there}"
        return text

    def is_unwritten(self, error: BaseException) -> bool:
        """Whether a line of the file says ``raise NotImplementedError``, as in the files to start from. torch raises
        this exception too, for dtypes that it cannot handle.
        """
        last = traceback.extract_tb(error.__traceback__)[-1]
        return last.filename == str(self.path) and "NotImplementedError" in str(last.line)

    def _is_theirs(self, frame: Any) -> bool:
        return frame.f_code.co_filename == str(self.path)

    @contextmanager
    def replaced(self, counterparts: dict[str, Callable[..., Any]], kept: str) -> Iterator[None]:
        """Replace the reader's functions by our own, under whatever name they call them, except ``kept``."""
        ours = {}
        for namespace in self.namespaces:
            for name, function in counterparts.items():
                if name != kept and callable(namespace.get(name)):
                    ours[id(namespace[name])] = function
        for namespace in self.namespaces:
            ours.pop(id(namespace.get(kept)), None)  # two names of one function
        before = []
        for namespace in self.namespaces:
            for name, value in list(namespace.items()):
                if id(value) in ours:
                    before.append((namespace, name, value))
                    namespace[name] = ours[id(value)]
        try:
            yield
        finally:
            for namespace, name, value in before:
                namespace[name] = value


def describe_error(error: BaseException, path: Path) -> str:
    """Where and what, on one line."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename or path} line {error.lineno}" if error.lineno else str(path)
        return f"{place}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path} line {lines[-1]}" if lines else str(path)
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) and not text:
        text = "nothing can be typed in while it is checked"
    name = type(error).__name__
    return f"{where}: {name}: {text[:300]}" if text else f"{where}: {name}"


def in_words(value: Any) -> str:
    """The shape of a tensor, or of each of a tuple of them; the number if it is one; nothing for anything else."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, tuple | list) and value and all(isinstance(x, Tensor) for x in value):
        return " and ".join(in_words(x) for x in value)
    return ""


def duplicate(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if not value.requires_grad else value
    if isinstance(value, tuple | list):
        return type(value)(duplicate(item) for item in value)
    return value


def unchanged(value: Any, copy: Any) -> bool:
    if isinstance(value, Tensor):
        return value.shape == copy.shape and torch.equal(value, copy)
    if isinstance(value, tuple | list):
        return len(value) == len(copy) and all(unchanged(x, y) for x, y in zip(value, copy))
    return True


def plain(value: Any) -> Any:
    """Copies of the tensors in it, dense and on the CPU: later calls may write to what was returned."""
    if isinstance(value, tuple | list):
        copies = [plain(item) for item in value]
        return copies if type(value) is list else tuple(copies)
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        raise ValueError("it returns a tensor on the meta device, which holds no numbers")
    return (value if value.layout == torch.strided else value.to_dense()).cpu().clone()


def required(function: Callable[..., Any]) -> int:
    """How many positional arguments it cannot do without."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in known)


def written_signature(function: Callable[..., Any]) -> str:
    """The reader's parameters, in their order, without annotations."""
    try:
        return "(" + ", ".join(inspect.signature(function).parameters) + ")"
    except (TypeError, ValueError):
        return "(...)"
