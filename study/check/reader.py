"""The reader's files as modules that find each other, and calls of their functions."""

import builtins
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGE = "reader"  # begins the names of the modules, so that a file named random.py or model.py replaces nothing


class Raised(Exception):
    """A function raised an exception; the message describes it in one line."""


class Unwritten(Exception):
    """The reader's code raised NotImplementedError, as in the exercise files."""


class Reader:
    """The modules of the reader's files. An ``import`` in them finds a file of their directory first."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.modules: dict[Path, types.ModuleType] = {}
        self.problems: dict[Path, str] = {}  # the exception of each file that raises one
        for path in files:
            self.load(path)
        torch.set_default_device(None)  # our tensors are on the CPU
        torch.set_default_dtype(torch.float32)

    def load(self, path: Path) -> types.ModuleType:
        if path in self.modules:
            return self.modules[path]
        name = f"{PACKAGE}.{path.stem}"
        module = self.modules[path] = sys.modules[name] = types.ModuleType(name)
        module.__file__ = str(path)
        sys.modules.setdefault(PACKAGE, types.ModuleType(PACKAGE)).__path__ = [str(path.parent)]
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._importer(path.parent)}
        try:
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
        except (Exception, SystemExit) as error:
            self.problems[path] = describe(error, path)
        return module

    def _importer(self, directory: Path) -> Callable[..., Any]:
        def find(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            path = directory / f"{name}.py"
            if level < 2 and path.is_file():
                return self.load(path)
            return __import__(name, globals, locals, fromlist, level)

        return find

    def functions(self, names: Iterable[str]) -> dict[str, tuple[Callable[..., Any], Path]]:
        """The functions of these names, and for each the file that defines it."""
        found = {}
        for name in names:
            for path, module in self.modules.items():
                value = vars(module).get(name)
                if callable(value) and value.__module__ == module.__name__:
                    found[name] = value, path
        return found

    def use(self, name: str, function: Callable[..., Any]) -> None:
        """Make the reader's functions call this function by this name."""
        for module in self.modules.values():
            vars(module)[name] = function


class Caller:
    """Calls a function of the reader with copies of the arguments ``names``, by position.

    If the function takes cosines and sines as two arguments, a tuple is unpacked.
    """

    def __init__(self, function: Callable[..., Any], names: Sequence[str], path: Path) -> None:
        self.function, self.names, self.path = function, names, path
        self.unpacks = count_of_required(function) > len(names)
        self.overwritten = ""  # the name of the first argument that a call has changed

    def __call__(self, *given: Any) -> Any:
        """Raises Raised, or Unwritten if there is no code yet."""
        copies = copied(given)
        arguments = copies
        if self.unpacks:
            arguments = tuple(part for x in copies for part in (x if isinstance(x, tuple) else (x,)))
        try:
            value = copied(self.function(*arguments))  # a copy, because later calls may overwrite it
        except (Exception, SystemExit) as error:
            if isinstance(error, NotImplementedError) and not str(error):  # torch's have a message
                raise Unwritten from error
            raise Raised(describe(error, self.path, zip(self.names, given))) from error
        for name, x, y in zip(self.names, given, copies):
            if not all(map(torch.equal, tensors_of(x), tensors_of(y))):
                self.overwritten = self.overwritten or name
        return value


def count_of_required(function: Callable[..., Any]) -> int:
    """How many arguments the function needs."""
    found = inspect.signature(function).parameters.values()
    return sum(each.default is each.empty and each.kind in (0, 1) for each in found)


def describe(error: BaseException, path: Path, given: Iterable[tuple[str, Any]] = ()) -> str:
    """File, line, type and message on one line, with the shapes of the arguments and of the local tensors there."""
    frames = [each for each in traceback.walk_tb(error.__traceback__) if each[0].f_code.co_filename == str(path)]
    line = frames[-1][1] if frames else getattr(error, "lineno", None)  # a SyntaxError has no frame in the file
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
