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

    def load(self, path: Path) -> types.ModuleType:
        if path in self.modules:
            return self.modules[path]
        source = path.read_bytes()  # an OSError names the file
        name = f"{PACKAGE}.{path.stem}"
        module = self.modules[path] = sys.modules[name] = types.ModuleType(name)
        module.__file__ = str(path)
        sys.modules.setdefault(PACKAGE, types.ModuleType(PACKAGE)).__path__ = [str(path.parent)]
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._importer(path.parent)}
        try:
            exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
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
        self.overwritten = ""  # the name of the last argument that a call has changed

    def __call__(self, *given: Any) -> Any:
        """Raises Raised, or Unwritten if there is no code yet."""
        copies = [x.clone() if isinstance(x, Tensor) else x for x in given]
        try:
            value = self.function(*(part for x in copies for part in (x if self.unpacks and type(x) is tuple else [x])))
        except (Exception, SystemExit) as error:
            if isinstance(error, NotImplementedError) and not str(error):  # torch's have a message
                raise Unwritten from error
            raise Raised(describe(error, self.path, zip(self.names, given))) from error
        for name, x, y in zip(self.names, given, copies):
            if isinstance(x, Tensor) and not torch.equal(x, y):
                self.overwritten = name
        return value


def count_of_required(function: Callable[..., Any]) -> int:
    """How many arguments the function needs."""
    found = inspect.signature(function).parameters.values()
    return sum(each.default is each.empty and each.kind in (0, 1) for each in found)


def describe(error: BaseException, path: Path, given: Iterable[tuple[str, Any]] = ()) -> str:
    """File, line, type and message on one line, with numbers and the shapes of tensors among the arguments."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    line = lines[-1] if lines else getattr(error, "lineno", None)  # a SyntaxError has no frame in the file
    message = " ".join(str(getattr(error, "msg", error)).split())[:300]
    text = f"{path}{f' line {line}' if line else ''}: {type(error).__name__}{f': {message}' if message else ''}"
    shown = [f"{name} {kind(value)}" for name, value in given if isinstance(value, int | Tensor | tuple)]
    return f"{text}; called with {', '.join(shown)}" if shown else text


def kind(value: Any) -> str:
    """The shape of a tensor, the shapes of a tuple of tensors, a number, or the type of any other value."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, tuple | list) and value:
        return " and ".join(map(kind, value)) if len(value) < 4 else f"{type(value).__name__} of {len(value)}"
    return str(value) if isinstance(value, int | float | str) else type(value).__name__
