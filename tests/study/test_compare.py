"""study compare: finished runs are not repeated, and models saved with --keep open in the other topics."""

import json
import re
import shutil
from pathlib import Path

import pytest
from study_models import TEXT

from study import compare
from study.positions import SCHEMES
from study.topics import run

OPTIONS = {"seeds": 1, "steps": 2, "data": ("text.txt",), "vocab_size": 300, "keep": Path("kept")}
RESULTS = Path("runs/compare.jsonl")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with results and saved models of some schemes, and the report of the command that trained them."""
    home = tmp_path_factory.mktemp("compare")
    (home / "text.txt").write_text(TEXT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        report = run("compare", schemes=("rope", "yarn", "learned", "learnable"), **OPTIONS)
    return home, report


@pytest.fixture
def announced(trained, tmp_path, monkeypatch, capsys):
    """Run the command for ``learnable`` in a copy of that directory: the runs that it announces."""
    shutil.copytree(trained[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")

    def call(**options) -> list[tuple[str, str]]:
        run("compare", schemes=("learnable",), **OPTIONS | options)
        return re.findall(r"^(\w+), seed (\d+) \.\.\.$", capsys.readouterr().err, re.MULTILINE)

    return call


def test_each_scheme_is_tested_at_the_lengths_that_it_can_encode(trained):
    home, report = trained
    (table,) = report.tables
    assert {(row[0], row[6]) for row in table.rows} == {(name, 1) for name in ("rope", "yarn", "learned", "learnable")}
    assert [row[3:6] for row in table.rows if row[0] == "learned"] == [("-", "-", "-")]
    lines = [json.loads(line) for line in (home / RESULTS).read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 4 + 2  # rope also gives the results of its three scalings
    rope, yarn = (next(line for line in lines if line["scheme"] == name) for name in ("rope", "yarn"))
    assert rope["bits_per_byte"]["1"] == yarn["bits_per_byte"]["1"]
    assert rope["bits_per_byte"]["8"] != yarn["bits_per_byte"]["8"]


def test_only_missing_runs_are_trained(announced):
    before = RESULTS.read_bytes()
    assert announced() == []
    assert announced(steps=3, dry=True) == []
    Path("kept/learnable-0/model.safetensors").unlink()  # killed while it was saved
    assert announced() == [("learnable", "0")]
    assert RESULTS.read_bytes() == before, "a run that has a result does not get another one"
    RESULTS.write_bytes(before[:-30] + b"\n")  # killed in the last line, which is learnable's
    assert announced() == [("learnable", "0")]
    assert announced() == []


def test_the_other_topics_open_saved_models(trained):
    kept = trained[0] / "kept"
    for scheme in ("learnable", "rope"):
        table = run("extrapolate", model=kept / f"{scheme}-0").tables[0]
        assert table.rows[0][0] == f"{scheme}, as it is"
        assert "validation text of text.txt" in table.notes[0]
    with pytest.raises(ValueError, match="learned has one vector for each of 64 positions: it cannot encode 512"):
        run("extrapolate", model=kept / "learned-0")


def test_the_committed_results_hold_every_scheme():
    report = run("compare", dry=True)
    assert {(row[0], row[6]) for row in report.tables[0].rows} == {(scheme, 3) for scheme in SCHEMES}


def test_own_runs_are_not_mixed_with_the_committed_ones(tmp_path, monkeypatch):
    """Whose text, the documentation bundled with another version of Python, is another one."""
    line = json.loads(compare.PUBLISHED.read_text(encoding="utf-8").splitlines()[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "prepare", lambda *_: None)
    monkeypatch.setattr(compare, "train_one", lambda *_: [line])
    report = run("compare", schemes=(line["scheme"],), seeds=1)
    assert [row[6] for row in report.tables[0].rows] == [1]
    assert json.loads(RESULTS.read_text(encoding="utf-8")) == line
