"""The code of the front page and of docs/library.md runs, and is quoted as it is."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
LIBRARY = (REPO / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README + LIBRARY, re.MULTILINE | re.DOTALL)
QUOTES = [text for kind, text in BLOCKS if text.startswith("# model/")]
PYTHON = [text for kind, text in BLOCKS if kind == "python" and text not in QUOTES]


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    """In order, because later blocks open the files that earlier ones save."""
    monkeypatch.chdir(tmp_path)
    for code in PYTHON:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "rope" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_quoted_lines_are_in_the_files_that_it_names(page):
    """Each line is in the file of the last "# model/" line above it, after the line before."""
    text = (REPO / page).read_text(encoding="utf-8")
    quote = re.search(r"^```python\n(# model/.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    rest: list[str] = []
    for line in quote.splitlines():
        named = re.match(r"# (model/\w+\.py)", line)
        if named:
            rest = (REPO / named[1]).read_text(encoding="utf-8").splitlines()
            continue
        assert line in rest
        rest = rest[rest.index(line) + 1 :]
