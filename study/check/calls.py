"""Calls of the reader's functions: values, exceptions in one line, overwritten arguments, and their order."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import faults
from .verdict import Finding

FUNCTIONS = (
    "precompute_freqs_cis",
    "reshape_for_broadcast",
    "apply_rotary_emb",
    "causal_mask",
    "KVCache",
    "attention",
)
LOCALS_SHOWN = 6  # in the message of an exception

# The names that readers give to an argument. An argument of another name is passed by its place.
NAMES = {
    "dim": ("dim", "head_dim", "d", "width"),
    "end": ("end", "max_seq_len", "max_len", "seq_len", "length", "n_positions", "positions"),
    "theta": ("theta", "base", "rope_theta"),
    "freqs_cis": ("freqs_cis", "freqs", "table", "cis", "rotations"),
    "x": ("x",),
    "xq": ("xq", "q", "query", "queries"),
    "xk": ("xk", "k", "key", "keys", "new_k", "new_keys"),
    "xv": ("xv", "v", "value", "values", "new_v", "new_values"),
    "start_pos": ("start_pos", "start", "pos", "offset", "past", "position"),
    "T": ("T", "t", "seq_len", "length", "n_tokens", "n_new", "tokens"),
    "layer": ("layer", "layer_id", "layer_idx", "layer_index"),
    "mask": ("mask", "causal_mask", "attn_mask", "visible"),
    "args": ("args", "config", "params", "cfg"),
    "n_layers": ("n_layers", "layers", "num_layers"),
    "batch_size": ("batch_size", "batch", "b", "max_batch_size"),
    "n_kv_heads": ("n_kv_heads", "kv_heads", "num_kv_heads", "n_heads", "heads"),
    "max_seq_len": ("max_seq_len", "max_len", "seq_len", "capacity", "length", "slots"),
    "head_dim": ("head_dim", "dim", "d", "width"),
}


class Raised(Exception):
    """The reader's code raised an exception; the message describes it in one line."""

    def __init__(self, problem: str, error: BaseException) -> None:
        super().__init__(problem)
        self.error = error


class Unwritten(Exception):
    """The reader's code raised NotImplementedError, as in the exercise files."""


class Caller:
    """Calls one function of the reader with copies of the arguments ``names``, in the order of its signature."""

    def __init__(self, function: Callable[..., Any], names: Sequence[str], path: Path) -> None:
        self.function, self.names, self.path = function, names, path
        self.order = written_order(function, names) or tuple(range(len(names)))
        self.overwritten: list[str] = []  # arguments that a call has changed

    def __call__(self, *given: Any) -> Any:
        """The returned value. Raises Raised, or Unwritten if the code does not exist yet."""
        copies = [duplicate(x) for x in given]
        order = [place for place in self.order if place < len(given)]
        try:
            with torch.enable_grad():
                value = self.function(*(copies[place] for place in order))
            value = copy_to_cpu(value)
        except BaseException as error:  # SystemExit too
            if isinstance(error, NotImplementedError) and self._is_unwritten(error):
                raise Unwritten from error
            raise Raised(describe(error, self.path, zip(self.names, given)), error) from error
        for name, x, copy in zip(self.names, given, copies):
            if name not in self.overwritten and not unchanged(x, copy):
                self.overwritten.append(name)
        return value

    def attempt(self, *given: Any) -> Any:
        """The returned value, or the Raised."""
        try:
            return self(*given)
        except Raised as raised:
            return raised

    def order_finding(self, function: str) -> list[Finding]:
        """A finding if the signature has the arguments in another order than the callers."""
        if self.order == tuple(range(len(self.names))):
            return []
        yours = ", ".join(inspect.signature(self.function).parameters)
        expected = ", ".join(self.names)
        return [Finding(f"The order of the arguments of {function}", f"({yours})", f"({expected})", faults.ORDER)]

    def overwritten_finding(self) -> list[Finding]:
        if not self.overwritten:
            return []
        return [Finding("Overwritten arguments", ", ".join(self.overwritten), "none", faults.CHANGED)]

    def _is_unwritten(self, error: BaseException) -> bool:
        """Whether a ``raise NotImplementedError`` in the file raised it. torch also does, for unsupported dtypes."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return last.filename == str(self.path) and "NotImplementedError" in str(last.line)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The positional parameters; none if the function has no signature."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def required(function: Callable[..., Any]) -> int:
    """The number of positional arguments without a default."""
    return sum(each.default is each.empty for each in parameters(function))


def roles_of(function: Callable[..., Any], roles: Iterable[str]) -> list[str]:
    """The role of each positional parameter according to its name, empty if it has none of these roles."""
    found = []
    for parameter in parameters(function):
        found.append(next((role for role in roles if parameter.name in NAMES[role]), ""))
    return found


def written_order(function: Callable[..., Any], names: Sequence[str]) -> tuple[int, ...] | None:
    """The places of ``names`` in the order in which the reader's signature has them; None if its names do not say."""
    found = roles_of(function, names)[: len(names)]
    return tuple(names.index(role) for role in found) if sorted(found) == sorted(names) else None


def describe(error: BaseException, path: Path, given: Iterable[tuple[str, Any]] = ()) -> str:
    """File, line, type and message on one line, with the shapes of the arguments and of the local tensors there."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename or path} line {error.lineno}" if error.lineno else str(path)
        return f"{place}: {type(error).__name__}: {error.msg}"
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_from(frame, path)]
    text = f"{path} line {frames[-1][1]}" if frames else str(path)
    message = " ".join(str(error).split())[:300]
    if isinstance(error, EOFError) and not message:
        message = "input() has nothing to read during the check"
    text += f": {type(error).__name__}" + (f": {message}" if message else "")
    called_with = named_shapes(given)
    if called_with:
        text += f"; called with {called_with}"
    if frames and called_with:
        variables = [item for item in frames[-1][0].f_locals.items() if not item[0].startswith("_")]
        there = named_shapes(variables[-LOCALS_SHOWN:])
        if there and there != called_with:
            text += f"; there {there}"
    return text


def is_from(frame: Any, path: Path) -> bool:
    return frame.f_code.co_filename == str(path)


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


def kind(value: Any) -> str:
    """The shape of a tensor or of a tuple of tensors, the type of any other value."""
    if isinstance(value, Tensor) or (isinstance(value, tuple | list) and value):
        return shape_of(value) or f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


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
