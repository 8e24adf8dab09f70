"""The text that every CPython brings along: its standard library's docstrings and its language reference. 2 MB.

Tables and grammars are left out: a small model learns their rules and bars sooner than their contents.
"""

import ast
import functools
import gc
import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# Not documentation of the library: its tests, bundled programs, tables of characters, what was installed beside it;
# and distutils, which only some versions have.
LEFT_OUT = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "encodings", "pydoc_data", "distutils"}
LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__"}

DOCS_FORMAT = 2  # of the text that is made of the files: another number makes cached tokens of an older one unread
GRID = re.compile(r"\+[-=]{3,}|[-=]{3,}\+")  # +----+----+
COLUMNS = re.compile(r"\s*(={2,}|-{2,})( +(={2,}|-{2,}))+\s*$")  # ----  ----


def corpus_files() -> list[Path]:
    """The library's sources and the reference, in a fixed order. Raises ValueError where Python ships without them."""
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    topics = root / "pydoc_data" / "topics.py"
    if not found or not topics.is_file():
        raise ValueError(f"this Python has no sources of its standard library in {root}: give a text of your own")
    return [*sorted(found), topics]


@functools.cache
def python_docs() -> tuple[str, ...]:
    """One document for each module and each topic, mixed, so that any end of them is like the rest."""
    *modules, topics = corpus_files()
    documents = ["\n\n".join(docstrings(file)) for file in modules]
    documents += [f"{name}\n\n{text}" for name, text in sorted(_topics(topics).items())]
    documents = [prose(document).strip() for document in documents]
    written = [document + "\n" for document in documents if document]
    return tuple(sorted(written, key=lambda document: hashlib.sha256(document.encode()).digest()))


def prose(document: str) -> str:
    """The paragraphs that hold neither a table nor a rule of a grammar."""
    paragraphs = re.split(r"(?<=\n)\n+", document)
    return "\n".join(paragraph for paragraph in paragraphs if not (_is_table(paragraph) or "::=" in paragraph))


def _is_table(paragraph: str) -> bool:
    return any(GRID.search(line) or COLUMNS.match(line) for line in paragraph.splitlines())


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
    collecting = gc.isenabled()
    gc.disable()  # a tree of so many small objects sets the collector off again and again, which doubles the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that some version of Python frowns at
            return ast.parse(file.read_bytes())
    finally:
        if collecting:
            gc.enable()
