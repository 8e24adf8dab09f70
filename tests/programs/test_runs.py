"""runs.py: the list of runs and their comparison; its figures are those of train.py and evaluate.py."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

import evaluate
import runs
import train

TEXT = "The rope was laid along the lane, and the lane was long. " * 60
SETTINGS = {"tokenizer": "char", "dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 12, "batch_size": 4}
SETTINGS |= {"eval_every": 5, "sample_every": 0, "device": "cpu"}


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")


@pytest.fixture
def trained(start):
    """``trained("a", max_steps=9)`` trains the run runs/a; returns the lines on stderr."""

    def call(name: str, **settings: object) -> str:
        flags = (f"--{name}={value}" for name, value in (SETTINGS | settings).items())
        outcome = start(train, "text.txt", f"--out_dir=runs/{name}", *flags)
        assert outcome.code == 0, outcome.err
        return outcome.err

    return call


def write_metrics(name: str, losses: list[float], **at_the_end: float) -> None:
    lines = [{"step": step, "train_loss": loss} for step, loss in enumerate(losses, 1)]
    lines[-1] |= at_the_end
    Path("runs", name, "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize(
    ("steps", "part"), [(60, ""), (2, " (on 40 of 341 tokens)")], ids=["the whole text", "a part in a short run"]
)
def test_three_programs_have_one_figure(start, trained, steps, part):
    err = trained("a", max_steps=steps, eval_tokens=40)
    assert "5: validation" not in err or "nats per token (on 40 of 341 tokens)" in err
    found = re.search(r"validation +([\d.]+) nats per token, ([\d.]+) bits per byte(.*); best at step", err)
    assert found[3] == part
    out = start(evaluate, "runs/a").out
    figures = {line[:14].strip(): line[15:] for line in out.splitlines()}
    assert figures["nats per token"] == found[1]
    assert float(figures["bits per byte"]) == pytest.approx(float(found[2]), abs=0.00051)
    assert figures["text"] == f"validation text{part}"
    row = re.search(r"^a .*$", start(runs).out, re.MULTILINE)[0].split()
    assert [cell.strip("*") for cell in row[4:6]] == [found[1], figures["bits per byte"]]
    assert row[4].endswith("*") == bool(part)
    assert start(evaluate, "runs/a", "--whole").out.startswith("text           validation text\n")


def test_a_run_that_goes_on_has_no_score_until_it_ends(start, trained):
    trained("a", max_steps=60)
    start(train, "--resume", "runs/a", "--max_steps", 80)
    assert json.loads(Path("runs/a/score.json").read_text(encoding="utf-8"))["tokens"] == 341
    Path("runs/a/score.json").unlink()  # as in a run that was interrupted
    out = start(runs).out
    assert re.search(r"^a .* 80 .*\*", out, re.MULTILINE)
    assert "* not finished\n" in out
    trained("b", max_steps=20, eval_tokens=40)
    Path("runs/b/score.json").unlink()
    assert re.search(r"^\* not finished, on \d+ of 341 tokens$", start(runs).out, re.MULTILINE)


def test_the_list_has_the_best_run_of_each_text_first(start, trained):
    trained("short", max_steps=20)
    trained("long", max_steps=60, lr=0.03)
    trained("none", max_steps=20)
    write_metrics("none", [3.0])
    Path("runs/none/score.json").unlink()
    trained("other", max_steps=20, val_fraction=0.3)
    trained("damaged", max_steps=20)
    Path("runs/damaged/metrics.jsonl").write_text("{\n", encoding="utf-8")
    code, out, err = start(runs)
    assert code == 0
    first, second = out.split("\n\n")[:2]
    assert [line.split()[0] for line in first.splitlines()] == ["validated", "run", "long", "short", "none", "*"]
    assert [line.split()[0] for line in second.splitlines()] == ["validated", "run", "other"]
    assert first.startswith("validated on the last 10.0% of text.txt\n")
    assert "runs/damaged is left out: runs/damaged/metrics.jsonl is damaged" in err


def test_a_comparison_shows_the_settings_that_differ(start, trained):
    trained("a", max_steps=20)
    trained("b", max_steps=20, dim=32, val_fraction=0.3)
    code, out, err = start(runs, "a", "runs/b")
    table = {line.split()[0]: line.split()[1:] for line in out.partition("\n\n")[0].splitlines()}
    assert code == 0
    assert table["dim"] == ["16", "32"]
    assert table.keys() >= {"parameters", "steps", "minutes", "nats", "bits/byte"}
    assert not table.keys() & {"n_layers", "out_dir", "max_steps"}
    assert "their texts differ" in err
    assert "minutes\n" in start(runs, "a", "--minutes").out


@pytest.mark.parametrize("steps", [7, 1000])
def test_the_blocks_are_as_high_as_the_loss(start, trained, steps):
    """The first tenth of a run is cut off, and the lowest loss is the lowest block."""
    trained("a", max_steps=1)
    losses = [2 + 4 * (1 - step / steps) for step in range(steps)]
    write_metrics("a", losses, val_loss=4.0, val_bits_per_byte=1.0)
    lines = start(runs, "a").out.split("\n\n")[1].splitlines()
    assert lines[0].strip() == "a"
    assert lines[9].split() == ["0", f"{steps:,}", "steps"]
    assert all(len(line) <= 80 for line in lines)
    blocks = [line[8:].ljust(68) for line in reversed(lines[1:9])]
    low, high = float(lines[8].split()[0]), float(lines[1].split()[0])
    assert 2 < low < high <= 6
    heights = [sum(" ▁▂▃▄▅▆▇█".index(row[x].replace("o", "█")) for row in blocks) for x in range(67)]
    assert heights[0] == 64
    assert heights == sorted(heights, reverse=True)
    if steps > 68:
        smoothed = [(high - low) / 64 * height + low for height in heights[10:]]
        expected = [2 + 4 * (1 - (x + 0.5) / 68) for x in range(10, 67)]
        assert smoothed == pytest.approx(expected, abs=0.15)
    assert [row[67] for row in blocks].index("o") == int(8 * (4.0 - low) / (high - low))


def test_what_is_not_a_run_is_named(start, trained):
    assert "there is no run in runs/ yet" in start(runs).err
    trained("a", max_steps=1)
    assert "b is not a run: give one of those in runs/ (a), or the path" in start(runs, "b").err
    write_metrics("a", [1.0], other=2.0)
    Path("runs/a/metrics.jsonl").unlink()
    assert "a has no curve, because it has no step yet" in start(runs, "a").err
    assert "--minutes and --plot are for curves" in start(runs, "--minutes").err


@pytest.mark.slow
def test_the_picture_holds_the_report(start, trained):
    from PIL import Image

    trained("a", max_steps=20)
    trained("b", max_steps=20, lr=0.01)
    out = start(runs, "a", "b", "--plot", "curves.png").out
    with Image.open("curves.png") as picture:
        assert picture.text["Description"].splitlines() == out.splitlines()
        assert len(picture.convert("RGB").getcolors(10**6)) > 10
    assert "its ending must be one of" in start(runs, "a", "--plot", "curves.xyz").err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are Unicode")
def test_a_picture_of_a_run_whose_name_is_not_utf8_has_a_question_mark_in_it(start, trained):
    trained("a", max_steps=2)
    Path("runs", "a").rename(Path("runs", os.fsdecode(b"a\xe9")))
    assert start(runs, os.fsdecode(b"a\xe9"), "--plot", "curves.svg").code == 0
    assert "a?: " in Path("curves.svg").read_text(encoding="utf-8")
