"""The text that every CPython brings along: its standard library's docstrings and its language reference. 2 MB."""

import ast
import functools
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# Not documentation of the library: its tests, bundled programs, and what was installed beside it.
LEFT_OUT = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "pydoc_data"}
LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__"}


def corpus_files() -> list[Path]:
    """The library's sources and the reference, in a fixed order. Raises ValueError where Python ships without them."""
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted(file for file in root.rglob("*.py") if LEFT_OUT.isdisjoint(file.relative_to(root).parts))
    if not found:
        raise ValueError(f"this Python has no standard library sources in {root}: give a text of your own")
    return [*found, *root.glob("pydoc_data/topics.py")]


@functools.cache
def python_docs() -> tuple[str, ...]:
    """One document for each module and each topic, mixed, so that any end of them is like the rest."""
    *modules, topics = corpus_files()
    documents = ["\n\n".join(docstrings(file)) for file in modules]
    documents += [f"{name}\n\n{text}" for name, text in sorted(_topics(topics).items())]
    written = [document.strip() + "\n" for document in documents if document.strip()]
    return tuple(sorted(written, key=lambda document: hashlib.sha256(document.encode()).digest()))


def docstrings(file: Path) -> Iterator[str]:
    """A module's docstrings in reading order: its own, then those of its classes and functions, each once."""
    seen = set()
    for node in _walk(_parse(file)):
        text = ast.get_docstring(node)
        if text and text not in seen:
            seen.add(text)
            yield text


def _walk(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for child in getattr(node, "body", []):
        yield from _walk(child)


def _topics(file: Path) -> dict[str, str]:
    """The dictionary that is all of pydoc_data/topics.py, read without importing it."""
    for node in _parse(file).body:
        if isinstance(node, ast.Assign):
            return ast.literal_eval(node.value)
    return {}


def _parse(file: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes that some version of Python frowns at
        return ast.parse(file.read_bytes())
