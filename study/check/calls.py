"""Calls of the reader's functions: the values they return, the exceptions they raise, the arguments they overwrite."""

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
LOCALS_SHOWN = 6  # in the message of an exception


class OutOfTime(BaseException):
    """Raised in the reader's code when its time is used up. The reader's ``except Exception`` does not catch it."""


class Unwritten(Exception):
    """Raised by ``Caller.trial`` if the reader's code raises NotImplementedError, as in the exercise files."""


def out_of_time(seconds: float) -> str:
    return f"it did not end within {seconds:.2g} seconds; is there an endless loop? (--seconds N gives more)"


class Trial(NamedTuple):
    """One call: the returned value, or None if it raised, and the names of the arguments that it overwrote."""

    value: Any
    error: BaseException | None
    problem: str  # the error as a message
    overwritten: tuple[str, ...]


def first_problem(trials: Iterable[Trial]) -> str:
    return next((trial.problem for trial in trials if trial.problem), "")


def error_count(trials: Iterable[Trial]) -> int:
    return sum(trial.error is not None for trial in trials)


def raised_name(trial: Trial) -> str:
    """The name of the exception that a call raised, ValueError for its subclasses."""
    if isinstance(trial.error, ValueError):
        return "ValueError"
    return type(trial.error).__name__ if trial.error else "nothing"


def parameters(function: str) -> list[str]:
    return SIGNATURES[function].partition("(")[2][:-1].split(", ")


@dataclass
class Caller:
    """Calls functions of one file within a time limit, and describes the exceptions that they raise."""

    path: Path
    limited: Callable[[], AbstractContextManager[Any]] = nullcontext
    namespaces: list[dict[str, Any]] = field(default_factory=list)  # of all files of the reader
    explain_mistakes: bool = True  # otherwise a judge only decides whether a function is right

    def trial(self, call: Callable[..., Any], given: Sequence[Any], names: Sequence[str] = ()) -> Trial:
        """Call with copies of ``given``; ``names`` are the names of the arguments in messages.

        Raises Unwritten if the reader's code does not exist yet, and OutOfTime if it takes too long.
        """
        copies = [duplicate(x) for x in given]
        value, error, problem = None, None, ""
        try:
            with self.limited(), torch.enable_grad():
                value = call(*copies)
            value = copy_to_cpu(value)
        except OutOfTime:
            raise
        except BaseException as raised:
            error, problem = raised, self.describe(raised, zip(names, given))
            if isinstance(raised, NotImplementedError) and self.is_unwritten(raised):
                raise Unwritten(problem) from raised
        overwritten = [name for name, x, copy in zip(names, given, copies) if not unchanged(x, copy)]
        return Trial(value, error, problem, tuple(overwritten))

    def trials(
        self, call: Callable[..., Any], probes: Iterable[Sequence[Any]], names: Sequence[str] = ()
    ) -> list[Trial]:
        return [self.trial(call, given, names) for given in probes]

    def other_order(
        self,
        make_call: Callable[[], Callable[..., Any]],
        probes: Sequence[Sequence[Any]],
        is_right: Callable[[Any, int], bool],
    ) -> tuple[int, ...]:
        """The first other order of the arguments in which the function is right; empty if there is none.

        ``make_call`` returns the function, once for each order. ``is_right`` judges a value by the index of its probe.
        """
        for order in list(permutations(range(len(probes[0]))))[1:]:
            call = make_call()
            reordered = ([given[place] for place in order] for given in probes)
            if all(is_right(self.trial(call, given).value, number) for number, given in enumerate(reordered)):
                return order
        return ()

    def describe(self, error: BaseException, given: Iterable[tuple[str, Any]] = ()) -> str:
        """The error and its line, with the shapes of the arguments and of the local tensors at that line."""
        text = describe_error(error, self.path)
        called_with = named_shapes(given)
        if called_with:
            text += f"; called with {called_with}"
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if self._is_theirs(frame)]
        if frames:
            variables = [item for item in frames[-1].f_locals.items() if not item[0].startswith("_")]
            there = named_shapes(variables[-LOCALS_SHOWN:])
            if there and there != called_with:
                text += f"; there {there}"
        return text

    def is_unwritten(self, error: BaseException) -> bool:
        """Whether the error was raised by a ``raise NotImplementedError`` in the file, as in the exercise files.

        torch also raises this exception, for dtypes that it does not support.
        """
        last = traceback.extract_tb(error.__traceback__)[-1]
        return last.filename == str(self.path) and "NotImplementedError" in str(last.line)

    def _is_theirs(self, frame: Any) -> bool:
        return frame.f_code.co_filename == str(self.path)

    @contextmanager
    def replaced(self, counterparts: dict[str, Callable[..., Any]], kept: str) -> Iterator[None]:
        """Replace the reader's functions, except ``kept``, by our own under every name that refers to them."""
        ours = {}
        for namespace in self.namespaces:
            for name, function in counterparts.items():
                if name != kept and callable(namespace.get(name)):
                    ours[id(namespace[name])] = function
        for namespace in self.namespaces:
            ours.pop(id(namespace.get(kept)), None)  # one function may have two names
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
    """File, line, type and message of the error, on one line."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename or path} line {error.lineno}" if error.lineno else str(path)
        return f"{place}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path} line {lines[-1]}" if lines else str(path)
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) and not text:
        text = "input() has nothing to read during the check"
    name = type(error).__name__
    return f"{where}: {name}: {text[:300]}" if text else f"{where}: {name}"


def named_shapes(variables: Iterable[tuple[str, Any]]) -> str:
    """``xq (1, 2, 1, 2), T 2``: tensors by their shapes, and numbers; other values are left out."""
    return ", ".join(f"{name} {shape_of(value)}" for name, value in variables if shape_of(value))


def shape_of(value: Any) -> str:
    """The shape of a tensor, the shapes of a tuple of tensors, or a number; empty for any other value."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, tuple | list) and value and all(isinstance(x, Tensor) for x in value):
        return " and ".join(shape_of(x) for x in value)
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


def copy_to_cpu(value: Any) -> Any:
    """A copy with its tensors dense and on the CPU, because later calls may overwrite a returned tensor."""
    if isinstance(value, tuple | list):
        copies = [copy_to_cpu(item) for item in value]
        return copies if type(value) is list else tuple(copies)
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        raise ValueError("it returns a tensor on the meta device, which has no numbers")
    return (value if value.layout == torch.strided else value.to_dense()).cpu().clone()


def required(function: Callable[..., Any]) -> int:
    """The number of positional arguments without a default."""
    try:
        signature = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in signature)


def written_signature(function: Callable[..., Any]) -> str:
    """The names of the reader's parameters in their order, in parentheses."""
    try:
        return "(" + ", ".join(inspect.signature(function).parameters) + ")"
    except (TypeError, ValueError):
        return "(...)"
