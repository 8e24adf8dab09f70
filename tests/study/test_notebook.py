"""The walk as a notebook: valid, whole, and its cells run."""

import os
import re
import sys

import pytest
from script_helpers import ROOT

from study.notebook import notebook

nbformat = pytest.importorskip("nbformat")


@pytest.mark.parametrize("zh", [False, True])
def test_the_notebook_has_the_prose_the_code_and_the_pictures_of_the_walk(tmp_path, zh):
    notebook(tmp_path / "rope.ipynb", zh=zh)
    cells = nbformat.read(tmp_path / "rope.ipynb", 4).cells
    nbformat.validate(nbformat.read(tmp_path / "rope.ipynb", 4))
    names = ("rope.zh.md", "rope-models.zh.md") if zh else ("rope.md", "rope-models.md")
    page = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in names)
    prose = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert prose.count("\n## ") == page.count("\n## ") > 15
    assert sum(len(cell.get("attachments", {})) for cell in cells) == page.count("](images/") > 5
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for line in re.findall(r"^(?:>>>|\.\.\.) (.*)$", page, re.MULTILINE):
        assert line in code
    for topic in ("order", "rotate", "layouts", "clocks", "trace", "cache", "attention"):
        assert f'!"{{sys.executable}}" -m study {topic}' in code  # the kernel's Python, not that of the shell
    assert '!"{sys.executable}" -m pip install -q -r requirements.txt' in cells[0].source


def test_without_a_file_or_the_package_the_error_says_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match="write python -m study notebook"):
        notebook()
    monkeypatch.setitem(sys.modules, "nbformat", None)
    with pytest.raises(ValueError, match="pip install nbformat"):
        notebook()


@pytest.mark.slow
def test_the_cells_run(tmp_path, monkeypatch):
    """Except those that train a model or need a trained one; also if the shell's python is another one."""
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook(tmp_path / "rope.ipynb")
    book = nbformat.read(tmp_path / "rope.ipynb", 4)
    book.cells = [
        cell
        for cell in book.cells
        if ("runs/" not in cell.source and "train.py" not in cell.source) or cell.cell_type == "markdown"
    ]
    client.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in book.cells:
        outputs = [output.get("text", "") for output in cell.get("outputs", [])]
        if cell.source.startswith("!"):
            assert outputs, cell.source
            assert "error" not in "".join(outputs).lower(), outputs
    assert book.cells[-1].cell_type == "markdown"
