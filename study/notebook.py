"""`python -m study notebook`: the walk, docs/rope.md and docs/rope-models.md, as a Jupyter notebook whose code runs."""

import base64
import json
import mimetypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from model.cli.files import write_text

from .topic import Report

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(pycon|console)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"(?<=\]\()images/[\w.-]+(?=\))")
# Commands that a cell runs; the others are for a shell
RUNS = re.compile(r"^\$ python ((?:-m study (?!article|notebook|exercise|check mine)|train\.py ).*)", re.MULTILINE)
START = """\
import os, sys
if not os.path.exists("train.py"):  # as in Colab and Kaggle
    !git clone -q {address} ropewalk
    %cd ropewalk
    !"{{sys.executable}}" -m pip install -q -r requirements.txt"""


def notebook(
    file: Annotated[Path | None, "the notebook to write, for example rope.ipynb"] = None,
    zh: Annotated[bool, "the walk in Chinese"] = False,
) -> Report:
    """The walk as a notebook: its code and its commands are cells that run."""
    try:
        from nbformat import v4
    except ImportError:
        raise ValueError("a notebook needs the extra notebook: pip install nbformat") from None
    if file is None:
        raise ValueError("no file is given: write python -m study notebook rope.ipynb")
    cells = [v4.new_code_cell(START.format(address=origin() or "ADDRESS"))]
    files = [DOCS / f"{page}{'.zh' if zh else ''}.md" for page in ("rope", "rope-models")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    prose, *blocks = BLOCK.split(text)
    cells.append(markdown_cell(v4, prose))
    for kind, code, following in zip(blocks[::3], blocks[1::3], blocks[2::3]):
        sources = (
            python_cells(code)
            if kind == "pycon"
            else [f'!"{{sys.executable}}" {words}' for words in RUNS.findall(code)]
        )
        cells += [*map(v4.new_code_cell, sources), markdown_cell(v4, following)]
    write_text(file, json.dumps(v4.new_notebook(cells=cells), ensure_ascii=False, indent=1))
    return Report([f"{file}: open it with jupyter lab, from the directory of this project, or in Colab"])


def origin() -> str:
    """The address from which this project was cloned, "" if it is not known."""
    command = ["git", "-C", str(DOCS), "remote", "get-url", "origin"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def python_cells(session: str) -> Iterator[str]:
    """The code of an interactive session, in cells that end where it printed something."""
    lines: list[str] = []
    for line in [*session.splitlines(), ""]:
        if line.startswith((">>>", "...")):
            lines.append(line[4:])
        elif lines:
            yield "\n".join(lines)
            lines = []


def markdown_cell(v4: Any, text: str) -> Any:
    """A cell of prose, with its pictures attached."""
    pictures = {Path(name).name: base64.b64encode((DOCS / name).read_bytes()) for name in PICTURE.findall(text)}
    attachments = {name: {mimetypes.guess_type(name)[0]: content.decode()} for name, content in pictures.items()}
    attached = PICTURE.sub(lambda found: f"attachment:{Path(found[0]).name}", text)
    return v4.new_markdown_cell(attached, attachments=attachments)
