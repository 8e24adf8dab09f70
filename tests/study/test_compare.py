"""study compare: finished runs are not repeated, models are saved with --keep, and damaged results are refused."""

import json
import re

import pytest
from study_models import TEXT

from model.weights import load_tokenizer
from study import compare, scheme_training
from study.positions import SCHEMES
from study.topic import save_plot
from study.topics import run


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def small(text, tmp_path):
    return {
        "schemes": ("rope", "yarn", "learned", "learnable"), "seeds": 2, "results": tmp_path / "results.jsonl",
        "windows": 2, "keep": tmp_path / "kept", "data": (str(text),), "steps": 2, "batch_size": 2, "length": 8,
        "dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 300,
    }  # fmt: skip


def test_a_run_whose_result_line_was_cut_short_is_trained_again(small, capsys):
    report = run("compare", **small)
    table, frequencies = report.tables
    assert {row[0] for row in table.rows} == {"rope", "yarn", "learned", "learnable"}
    assert [row[3:6] for row in table.rows if row[0] == "learned"] == [("-", "-", "-")]
    assert frequencies.title.startswith("learnable")
    lines = [json.loads(line) for line in small["results"].read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 2 * (4 + 2)  # rope also gives the results of its three scalings
    rope, yarn = (next(line for line in lines if line["scheme"] == name) for name in ("rope", "yarn"))
    assert rope["bits_per_byte"]["1"] == yarn["bits_per_byte"]["1"]
    assert rope["bits_per_byte"]["8"] != yarn["bits_per_byte"]["8"]
    assert rope["cache_bytes_per_token"] == 2 * 1 * 2 * 8 * 4

    *others, last = small["results"].read_text(encoding="utf-8").splitlines(keepends=True)
    small["results"].write_text("".join([*others, last[:30] + "\n"]), encoding="utf-8")  # killed in the last line
    announced_runs(capsys)
    run("compare", **small)
    assert announced_runs(capsys) == [("learnable", 1)]
    again = compare.read_results(small["results"], scheme_training.Budget(**lines[0]["budget"]))
    assert [line["bits_per_byte"] for line in again] == [line["bits_per_byte"] for line in lines]

    other_budget = small | {"steps": 3, "dry": True}
    assert run("compare", **other_budget).tables[0].rows == []


def announced_runs(capsys) -> list[tuple[str, int]]:
    """Scheme and seed of each run announced on stderr since the last call."""
    notes = capsys.readouterr().err
    return [(scheme, int(seed)) for scheme, seed in re.findall(r"^(\w+), seed (\d+) \.\.\.$", notes, re.MULTILINE)]


def test_keep_trains_a_missing_model_again_and_leaves_its_result_as_it_is(small, capsys, tmp_path):
    one = small | {"schemes": ("learnable",), "keep": None}
    run("compare", **one)
    before = one["results"].read_bytes()
    announced_runs(capsys)
    kept = one | {"keep": tmp_path / "models", "seeds": 1}
    run("compare", **kept)
    assert announced_runs(capsys) == [("learnable", 0)]
    assert one["results"].read_bytes() == before
    (tmp_path / "models" / "learnable-0" / "model.safetensors").unlink()  # killed while it was saved
    run("compare", **kept)
    run("compare", **kept)
    assert announced_runs(capsys) == [("learnable", 0)]


def test_the_other_topics_open_models_saved_with_keep(small, tmp_path):
    run("compare", **small)
    for scheme in ("learnable", "rope"):
        table = run("extrapolate", model=tmp_path / f"kept/{scheme}-0", windows=1).tables[0]
        assert table.rows[0][0] == f"{scheme}, as it is"
        assert f"validation text of {small['data'][0]}" in table.notes[0]
    assert load_tokenizer(tmp_path / "kept/rope-0").decode([1]) == ""
    with pytest.raises(ValueError, match="learned has one vector for each of 8 positions: it cannot encode 64"):
        run("extrapolate", model=tmp_path / "kept/learned-0", windows=1)
    with pytest.raises(ValueError, match="scheme learned does not rotate"):
        run("attention", model=tmp_path / "kept/learned-0")


def test_an_unknown_scheme_and_too_long_texts_are_refused(small):
    with pytest.raises(ValueError, match="unknown scheme 'ropee': did you mean 'rope'"):
        run("compare", **small | {"schemes": ("ropee",)})
    with pytest.raises(ValueError, match="GB are free"):
        run("compare", **small | {"length": 1_000_000})


def test_the_committed_results_hold_every_scheme(tmp_path):
    report = run("compare", dry=True)
    assert {row[0] for row in report.tables[0].rows} == set(SCHEMES)
    assert {row[6] for row in report.tables[0].rows} == {3}
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")
