"""The documentation bundled with CPython: standard library docstrings and the language reference, 2 MB.

Tables and grammars are left out, because a small model learns to draw table borders before it learns words.
"""

import ast
import functools
import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# Tests, bundled programs, character tables, installed packages; and distutils, which only some versions have.
EXCLUDED = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "encodings", "pydoc_data", "distutils"}
EXCLUDED |= {"site-packages", "dist-packages", "__pycache__"}

CORPUS = Path(sysconfig.get_path("stdlib"))
GRID = re.compile(r"\+[-=]{3,}|[-=]{3,}\+")  # +----+----+
COLUMNS = re.compile(r"\s*(={2,}|-{2,})( +(={2,}|-{2,}))+\s*$")  # ----  ----


def corpus_files() -> list[Path]:
    """The sources of the standard library, and the language reference (topics.py) last.

    Raises ValueError if this Python has no sources.
    """
    found = []
    for folder, folders, names in os.walk(CORPUS):
        folders[:] = [name for name in folders if name not in EXCLUDED]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    topics = CORPUS / "pydoc_data" / "topics.py"
    if not found or not topics.is_file():
        raise ValueError(f"this Python has no standard library sources in {CORPUS}: name a text with --data")
    return [*sorted(found), topics]


@functools.cache
def python_docs() -> tuple[str, ...]:
    """One document per module and topic, shuffled so that the end, the validation text, is like the rest."""
    *modules, topics = corpus_files()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, which some versions warn about
        documents = ["\n\n".join(docstrings(ast.parse(file.read_bytes()))) for file in modules]
        assigned = (node.value for node in ast.parse(topics.read_bytes()).body if isinstance(node, ast.Assign))
    documents += [f"{name}\n\n{text}" for name, text in sorted(ast.literal_eval(next(assigned)).items())]
    documents = [prose(document).strip() + "\n" for document in documents]
    documents = [document for document in documents if document != "\n"]
    return tuple(sorted(documents, key=lambda document: hashlib.sha256(document.encode()).digest()))


def prose(document: str) -> str:
    """The paragraphs without tables and grammar rules."""
    paragraphs = re.split(r"(?<=\n)\n+", document)
    return "\n".join(paragraph for paragraph in paragraphs if not (_is_table(paragraph) or "::=" in paragraph))


def _is_table(paragraph: str) -> bool:
    return any(GRID.search(line) or COLUMNS.match(line) for line in paragraph.splitlines())


def docstrings(module: ast.Module) -> Iterator[str]:
    """The docstrings of a module, its classes and functions in reading order, without duplicates."""
    texts = (ast.get_docstring(node) for node in _walk(module))
    yield from dict.fromkeys(text for text in texts if text)


def _walk(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for child in getattr(node, "body", []):
        yield from _walk(child)
