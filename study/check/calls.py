"""Calls of the reader's functions, and their exceptions in one line."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .probes import Raised, Unwritten


class Caller:
    """Calls a function of the reader with the arguments ``names``, in the order of its signature.

    An argument None is left out. If the function takes cosines and sines as two arguments, a tuple is unpacked.
    """

    def __init__(self, function: Callable[..., Any], names: Sequence[str], path: Path) -> None:
        self.function, self.names, self.path = function, names, path
        found = parameters(function)
        roles = [role_of(each.name, names) for each in found][: len(names)]
        # If the parameters' names do not say their order, it is that of ``names``.
        self.order = [names.index(role) for role in (roles if sorted(roles) == sorted(names) else names)]
        self.unpacks = sum(each.default is each.empty for each in found) > len(names)
        self.overwritten: list[str] = []  # arguments that a call has changed

    def __call__(self, *given: Any) -> Any:
        """The value returned for copies of the arguments. Raises Raised, or Unwritten if there is no code yet."""
        copies = copied(given)
        try:
            arguments = [copies[place] for place in self.order if place < len(given) and given[place] is not None]
            if self.unpacks:
                arguments = [part for x in arguments for part in (x if isinstance(x, tuple) else (x,))]
            value = copied(self.function(*arguments))  # a copy, because later calls may overwrite a returned tensor
        except BaseException as error:  # SystemExit too
            if isinstance(error, NotImplementedError) and not str(error):  # torch's have a message
                raise Unwritten from error
            raise Raised(describe(error, self.path, zip(self.names, given))) from error
        for name, x, copy in zip(self.names, given, copies):
            if not all(torch.equal(*pair) for pair in zip(tensors_of(x), tensors_of(copy))):
                self.overwritten.append(name)
        return value

    def other_order(self) -> str:
        """The parameters, if they have another order than the callers' arguments."""
        is_other = self.order != sorted(self.order)
        return ", ".join(inspect.signature(self.function).parameters) if is_other else ""


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The positional parameters; none if the function has no signature."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def role_of(name: str, roles: Iterable[str]) -> str:
    """The role of a parameter according to its name, ``start`` and ``q`` for start_pos and xq; empty if it has none."""
    name = name.lower()
    fits = [
        role for role in roles if name.startswith(role.lower()) or role.lower().startswith(name) or role.endswith(name)
    ]
    return fits[0] if fits else ""


def describe(error: BaseException, path: Path, given: Iterable[tuple[str, Any]] = ()) -> str:
    """File, line, type and message on one line, with the shapes of the arguments and of the local tensors there."""
    frames = [each for each in traceback.walk_tb(error.__traceback__) if each[0].f_code.co_filename == str(path)]
    line = frames[-1][1] if frames else None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    message = " ".join(str(getattr(error, "msg", error)).split())[:300]
    text = f"{path}{f' line {line}' if line else ''}: {type(error).__name__}{f': {message}' if message else ''}"
    called_with = named_shapes(given)
    if called_with:
        text += f"; called with {called_with}"
        there = named_shapes(frames[-1][0].f_locals.items()) if frames else ""
        text += f"; there {there}" if there not in ("", called_with) else ""
    return text


def named_shapes(variables: Iterable[tuple[str, Any]]) -> str:
    """``xq (1, 2, 1, 2), T 2``: tensors by their shapes, and numbers; other values are left out."""
    shown = [(name, kind(value)) for name, value in variables if isinstance(value, int | float) or tensors_of(value)]
    return ", ".join(f"{name} {shape}" for name, shape in shown)


def kind(value: Any) -> str:
    """The shape of a tensor, the shapes of a tuple of tensors, a number, or the type of any other value."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, tuple | list) and value:
        return " and ".join(map(kind, value)) if len(value) < 4 else f"{type(value).__name__} of {len(value)}"
    return str(value) if isinstance(value, int | float | str) else type(value).__name__


def tensors_of(value: Any) -> list[Tensor]:
    """A tensor, or the tensors of a tuple or list."""
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return [value] if torch.is_tensor(value) else []


def copied(value: Any) -> Any:
    """A copy of a tensor, or of those of a tuple or list. One with a gradient is not copied."""
    if isinstance(value, tuple | list):
        return type(value)(map(copied, value)) if type(value) in (tuple, list) else value
    return value.clone() if isinstance(value, Tensor) and not value.requires_grad else value
