"""The reader's files as modules that find each other, and that no other module can import by mistake."""

import __future__

import ast
import builtins
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .calls import describe
from .judge import Conventions, version
from .probes import COMPLEX, read_table, write_table
from .verdict import STEPS

PACKAGE = "reader"  # the name of a package to judge, so that one named model replaces nothing


class Reader:
    """The functions of the reader's files.

    A file is run statement by statement, and one that raises is skipped, so that the functions below it can still be
    judged. The modules are not in ``sys.modules``, so a file named random.py or model.py replaces nothing. An
    ``import`` in these files finds a file of their directory first. A directory with an ``__init__.py`` is imported as
    a package.
    """

    def __init__(self, function: str = "", conventions: Conventions | None = None) -> None:
        """Ours replace the functions that are not right, except the one to judge, to report each mistake once."""
        conventions = conventions or Conventions()
        self.modules: dict[Path, types.ModuleType] = {}
        self.problems: dict[Path, str] = {}  # the first problem of each file that has one
        self.standins = counterparts(conventions)
        self.kept = {function, *conventions.right} if function else set(STEPS)

    def load(self, path: Path) -> types.ModuleType:
        """Run the file once."""
        if path in self.modules:
            return self.modules[path]
        if (path.parent / "__init__.py").is_file():
            return self._load_of_package(path)
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

    def _load_of_package(self, path: Path) -> types.ModuleType:
        try:
            if PACKAGE not in sys.modules:
                start = path.parent / "__init__.py"
                spec = importlib.util.spec_from_file_location(
                    PACKAGE, start, submodule_search_locations=[str(path.parent)]
                )
                assert spec is not None
                assert spec.loader is not None
                sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[PACKAGE])
            name = PACKAGE if path.stem == "__init__" else f"{PACKAGE}.{path.stem}"
            self.modules[path] = importlib.import_module(name)
        except BaseException as error:  # SystemExit too
            self.modules[path] = types.ModuleType(path.stem)
            self.problems[path] = describe(error, path)
        return self.modules[path]

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
        for name in STEPS:
            for path, module in self.modules.items():
                value = vars(module).get(name)
                home = str(getattr(value, "__module__", ""))
                is_ours = home.startswith(("model.", "study."))
                if callable(value) and not is_ours and (name not in found or home == module.__name__):
                    found[name] = value, path
        return found


def reader_of(files: Sequence[Path], function: str = "", conventions: Conventions | None = None) -> Reader:
    reader = Reader(function, conventions)
    for path in files:
        reader.load(path)
    return reader


def counterparts(conventions: Conventions) -> dict[str, Callable[..., Any]]:
    """Right functions in the reader's form and layout, which the reader's functions may call."""
    form = conventions.table or COMPLEX

    def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Any:
        return write_table(form, version("precompute_freqs_cis", (), "")(dim, end, theta))

    def reshape_for_broadcast(table: Any, x: Tensor) -> Any:
        return tuple(part[None, :, None] for part in table) if isinstance(table, tuple) else table[None, :, None]

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *table: Any, **named: Any) -> tuple[Tensor, ...]:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = (*table, *named.values())
        freqs_cis = read_table(parts[0] if len(parts) == 1 else parts, xq.shape[-1] // 2)
        return version("apply_rotary_emb", (), conventions.layout)(xq, xk, freqs_cis)

    functions = (precompute_freqs_cis, reshape_for_broadcast, apply_rotary_emb)
    return {function.__name__: function for function in functions}
