"""The reader's files as modules that find each other, and that no other module can import by mistake."""

import __future__

import ast
import builtins
import difflib
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .calls import FUNCTIONS, describe

SIMILAR = 0.8  # similarity of two names from which one is probably a misspelling of the other


class Reader:
    """The modules are not in ``sys.modules``, so a file named random.py or model.py replaces nothing.

    An ``import`` in these files finds a file of their directory first.
    """

    def __init__(self, standins: dict[str, Callable[..., Any]]) -> None:
        """``standins`` are right functions that a file may import from another one that does not define them."""
        self.modules: dict[Path, types.ModuleType] = {}
        self.problems: dict[Path, str] = {}  # the first problem of each file that has one
        self.standins = standins

    def load(self, path: Path) -> types.ModuleType:
        """Run the file once. A statement that raises is skipped, so that the functions below it can still be judged."""
        if path in self.modules:
            return self.modules[path]
        module = self.modules[path] = types.ModuleType(path.stem)
        module.__file__ = str(path)
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._importer(path.parent)}
        try:
            statements = ast.parse(path.read_bytes(), str(path)).body
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            statements, self.problems[path] = [], describe(error, path)
        flags = 0
        for statement in statements:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                for alias in statement.names:
                    flags |= getattr(getattr(__future__, alias.name, None), "compiler_flag", 0)
            try:
                exec(compile(ast.Module([statement], []), str(path), "exec", flags, dont_inherit=True), vars(module))
            except BaseException as error:  # SystemExit too
                self.problems.setdefault(path, describe(error, path))
        torch.set_default_device(None)  # our tensors are on the CPU
        for name, function in self.standins.items():
            vars(module).setdefault(name, function)
        return module

    def _importer(self, directory: Path) -> Callable[..., Any]:
        def find(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            path = directory / f"{name}.py"
            if level == 0 and path.is_file():
                return self.load(path)
            return __import__(name, globals, locals, fromlist, level)

        return find

    def find(self, function: str) -> tuple[Callable[..., Any], Path]:
        """The function, and the file that defines it, preferred to one that imports it. Raises KeyError."""
        standin = self.standins.get(function)
        homes = []
        for path, module in self.modules.items():
            value = vars(module).get(function)
            if callable(value) and value is not standin and not is_ours(value):
                homes.append((getattr(value, "__module__", "") != path.stem, path))
        if not homes:
            raise KeyError(function)
        _, path = min(homes, key=lambda home: home[0])
        return vars(self.modules[path])[function], path

    def defined(self) -> list[str]:
        found = []
        for function in FUNCTIONS:
            try:
                self.find(function)
            except KeyError:
                continue
            found.append(function)
        return found

    def similar(self, function: str) -> str:
        """A message about the function whose name is most similar to the missing one; empty if none is similar."""
        best, message = SIMILAR, ""
        for path, module in self.modules.items():
            for name, value in vars(module).items():
                if name in FUNCTIONS or name.startswith("_") or getattr(value, "__module__", "") != path.stem:
                    continue
                similarity = difflib.SequenceMatcher(None, letters_of(name), letters_of(function)).ratio()
                if callable(value) and similarity >= best:
                    best, message = similarity, f"{path} defines {name}; rename it if it is meant to be {function}"
        return message

    @contextmanager
    def replaced(self, standins: dict[str, Callable[..., Any]], kept: Collection[str]) -> Iterator[None]:
        """Replace the reader's functions, except ``kept``, under every name that refers to them."""
        namespaces = [vars(module) for module in self.modules.values()]
        functions = {name: [space[name] for space in namespaces if callable(space.get(name))] for name in standins}
        kept_ids = {id(value) for name in kept for value in functions[name]}  # one function may have two names
        ours: dict[int, Callable[..., Any]] = {}
        for name, found in functions.items():
            if name not in kept:
                ours |= {id(value): standins[name] for value in found if id(value) not in kept_ids}
        before = []
        for space in namespaces:
            for name, value in list(space.items()):
                if id(value) in ours:
                    before.append((space, name, value))
                    space[name] = ours[id(value)]
        try:
            yield
        finally:
            for space, name, value in before:
                space[name] = value


def is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(("model.", "study."))


def letters_of(name: str) -> str:
    return name.lower().replace("_", "")
