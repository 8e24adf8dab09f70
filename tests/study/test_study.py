"""study: every topic draws, its numbers are right, and a user's mistake ends in one line.

tests/docs compares what the topics print with what the pages show.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from script_helpers import run_in_process

from study.__main__ import main
from study.topics import function_of, run
from study.trace import BITES, attention_call
from study.walk import TOPICS, overview

REPO = Path(__file__).parents[2]
DRAWN = ("order", "cache")  # tests/study/test_chinese.py draws the others


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def study(monkeypatch, capsys, tmp_path) -> Callable[..., Done]:
    """Run the script in this process, because starting Python takes two seconds; with an empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words: str) -> Done:
        return Done(run_in_process(main, "study", *words), *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roatte"], "unknown topic 'roatte': did you mean 'rotate'?"),
        (["clocks", "--tetha", "3"], "did you mean '--theta'"),
        (["clocks", "--head_dim", "7"], "dim is 7: make it even, because RoPE rotates pairs"),
        (["lookback", f"--distance={10**400}"], "distance is 1000000000"),
        (["page", "--plot", "x.png"], "page has no picture: leave --plot out"),
        (["rotate", "--plot", "/nowhere/x.png"], "--plot is /nowhere/x.png: give a file in a directory that exists"),
        (["rotate", "--plot", "x.nonsense"], "its ending must be one of"),
        (["compare", "--schemes", "ropee"], "unknown scheme 'ropee': did you mean 'rope'"),
        (["compare", "--vocab_size=9", "--data", __file__], "vocab_size 9 is too small"),
        (["order", "dog"], "unknown argument 'dog'"),
        (["order", "--words", "dog", "dog", "man"], "give at least three different words"),
        (["rotate", "--vectors", "1,2,3,nan"], "vectors has '1,2,3,nan': give four numbers"),
    ],
)
def test_a_users_mistake_ends_in_one_line(study, words, message):
    done = study(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("study: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (REPO / "x.nonsense").exists()


def test_the_overview_lists_every_topic(study):
    done = study()
    assert done == (0, overview() + "\n", "")
    for topic in TOPICS.values():
        assert re.search(rf"  {topic.name} +{re.escape(topic.sentence)}\n", done.stdout)
        assert (function_of(topic).__doc__ or "").splitlines()[0] == topic.sentence
    assert "--head_dim" in study("clocks", "--help").stdout


def test_without_matplotlib_a_plot_is_refused_before_anything_is_computed(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    done = study("rotate", "--plot", "x.png")
    assert done == (2, "", "study: error: --plot needs matplotlib: pip install matplotlib\n")


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("topic", DRAWN)
def test_a_topic_draws_a_png_that_stores_its_report_and_leaves_no_other_file(study, topic, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    path = tmp_path / "plots" / "x.png"
    path.parent.mkdir()
    done = study(topic, "--plot", str(path))
    with Image.open(path) as picture:
        assert picture.text["Description"] + "\n" == done.stdout
        assert len(picture.getcolors(2**20)) > 5
    assert list(path.parent.iterdir()) == [path]


@torch.no_grad()
def test_trace_ends_with_what_attention_computes(small_model):
    model = small_model().eval()
    tokens = torch.randint(37, (2, 12))
    inputs = []
    model.layers[0].attention.wo.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(tokens)
    rows = attention_call(model, tokens)
    shown = [float(value) for value in rows[-1][1].split()]
    assert shown == pytest.approx(inputs[0][0, BITES, :2].tolist(), abs=1e-4)
    for *_, file, expression in rows:
        assert expression in (REPO / "model" / file).read_text(encoding="utf-8")


def test_order_takes_other_words_and_rotate_other_vectors(study):
    assert "without    down sat cat the" in study("order", "--words", "the", "cat", "sat", "down").stdout
    rows = run("rotate", vectors=("1,0,0,1", "0,1,2,0")).tables[0].rows
    assert rows[1][-2:] == ("[-0.8415, 0.5403]", "[1.9999, 0.0200]")
