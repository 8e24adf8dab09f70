"""The reader's files as modules that find each other, and that no other module can import by mistake."""

import __future__

import ast
import builtins
import types
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from .calls import describe
from .verdict import FUNCTIONS


class Reader:
    """The modules are not in ``sys.modules``, so a file named random.py or model.py replaces nothing.

    An ``import`` in these files finds a file of their directory first.
    """

    def __init__(self, standins: dict[str, Callable[..., Any]], kept: Collection[str] = FUNCTIONS) -> None:
        """``standins`` are right functions, for those that a file lacks and those of its own that are not ``kept``."""
        self.modules: dict[Path, types.ModuleType] = {}
        self.problems: dict[Path, str] = {}  # the first problem of each file that has one
        self.standins, self.kept = standins, kept

    def load(self, path: Path) -> types.ModuleType:
        """Run the file once. A statement that raises is skipped, so that the functions below it can still be judged."""
        if path in self.modules:
            return self.modules[path]
        module = self.modules[path] = types.ModuleType(path.stem)
        module.__file__ = str(path)
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._importer(path.parent)}
        try:
            statements = ast.parse(path.read_bytes(), str(path)).body
        except Exception as error:
            statements, self.problems[path] = [], describe(error, path)
        flags = __future__.annotations.compiler_flag  # annotations are not evaluated
        for statement in statements:
            try:
                exec(compile(ast.Module([statement], []), str(path), "exec", flags, dont_inherit=True), vars(module))
            except BaseException as error:  # SystemExit too
                self.problems.setdefault(path, describe(error, path))
        torch.set_default_device(None)  # our tensors are on the CPU
        for name, function in self.standins.items():
            if name not in self.kept or name not in vars(module):
                vars(module)[name] = function
        return module

    def _importer(self, directory: Path) -> Callable[..., Any]:
        def find(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            path = directory / f"{name}.py"
            if level == 0 and path.is_file():
                return self.load(path)
            return __import__(name, globals, locals, fromlist, level)

        return find

    def functions(self) -> dict[str, tuple[Callable[..., Any], Path]]:
        """The functions to judge, and for each the file that defines it, preferred to one that imports it."""
        found: dict[str, tuple[Callable[..., Any], Path]] = {}
        for name in FUNCTIONS:
            for path, module in self.modules.items():
                value = vars(module).get(name)
                home = str(getattr(value, "__module__", ""))
                is_ours = home.startswith(("model.", "study."))
                if callable(value) and not is_ours and (name not in found or home == path.stem):
                    found[name] = value, path
        return found
