"""The code of the front page and of docs/library.md runs, and the checker answers as the front page says."""

import re
from pathlib import Path

import pytest
import torch

from docs.refresh import output
from model.rope import apply_rotary_emb, precompute_freqs_cis

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
LIBRARY = (REPO / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README + LIBRARY, re.MULTILINE | re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    """In order, because later blocks open the files that earlier ones save."""
    monkeypatch.chdir(tmp_path)
    for code in PYTHON:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "rope" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_three_lines_of_rope_do_what_the_network_does(page):
    code = re.search(r"^```py\n(.*?)^```$", (REPO / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
    x, freqs_cis = torch.randn(2, 5, 3, 8), precompute_freqs_cis(8, 5)
    names = {"torch": torch, "x": x, "freqs_cis": freqs_cis}
    exec(code, names)
    assert torch.equal(names["x"], apply_rotary_emb(x, x, freqs_cis)[0])


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_answer_of_the_checker_is_the_one_it_shows(page):
    block = re.search(
        r"^```console\n(.*?)^\.\.\.\n```$", (REPO / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    command, *shown = block[1].splitlines()
    assert output(command.removeprefix("$ "))[: len(shown)] == shown
