"""The front page and docs/library.md are true: the code runs, and the flags exist."""

import re
import runpy
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
LIBRARY = (REPO / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README + LIBRARY, re.MULTILINE | re.DOTALL)
QUOTES = [text for kind, text in BLOCKS if text.startswith("# model/")]
PYTHON = [text for kind, text in BLOCKS if kind == "python" and text not in QUOTES]
COMMANDS = [line for kind, text in BLOCKS if kind != "python" for line in text.splitlines()]
COMMANDS += re.findall(r"`(python \w+\.py [^`]*)`", README + LIBRARY)


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    """In order, because later blocks open the files that earlier ones save."""
    monkeypatch.chdir(tmp_path)
    for code in PYTHON:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "rope" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["train", "generate", "chat", "evaluate", "convert"])
def test_every_flag_it_shows_exists(script, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(REPO / f"{script}.py"), run_name="__main__")
    known = set(re.findall(r"--\w+", capsys.readouterr().out))
    shown = [line.partition("  #")[0] for line in COMMANDS if f"{script}.py" in line]
    used = {flag for line in shown for flag in re.findall(r"--\w+", line.partition(f"{script}.py")[2])}
    assert shown
    assert used <= known


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


def test_every_config_it_names_exists():
    named = re.findall(r"configs/\w+\.toml", README)
    assert named
    assert [name for name in named if not (REPO / name).exists()] == []
