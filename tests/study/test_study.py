"""study: every topic draws, its numbers are right, and a user's mistake ends in one line.

tests/docs compares what the topics print with what the pages show.
"""

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from script_helpers import run_in_process

from model.cli.settings import setting_fields
from model.rope_scaling import RopeScaling
from study import __main__ as study_script
from study.clocks import shown_pairs
from study.decay import bound, inner, quarter_octaves
from study.topics import TOPICS, options_class, run
from study.trace import attention_call

REPO = Path(__file__).parents[2]
DRAWN = ("order", "rotate", "clocks", "lookback", "decay", "cache")


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def study(monkeypatch, capsys, tmp_path) -> Callable[..., Done]:
    """Run the script in this process, because starting Python takes two seconds; with an empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words: str) -> Done:
        return Done(run_in_process(study_script.main, "study", *words), *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roatte"], "unknown topic 'roatte': did you mean 'rotate'?"),
        (["rotate", "--tetha", "3"], "did you mean '--theta'"),
        (["rotate", "--theta=nan"], "theta is nan: give a number from 1 to 1e+30"),
        (["relative", "--head_dim", "7"], "head_dim is 7: give an even number"),
        (["page", "--plot", "x.png"], "unknown argument '--plot'"),
        (["trace", "--position", "600"], "position is 600: give one of 0 to 511"),
        (["rotate", "--plot", "/nowhere/x.png"], "--plot is /nowhere/x.png: give a file in a directory that exists"),
        (["rotate", "--plot", "x.nonsense"], "its ending must be one of"),
        (["compare", "--dim=2", "--n_heads=1", "--schemes", "rope"], "head_dim 2: rope_scaling needs"),
        (["compare", "--dim=6", "--n_heads=1", "--schemes", "2d"], "head_dim is 6: each half must hold whole pairs"),
        (["compare", "--dim=1048576", "--seeds=1"], "GB"),
        (["compare", "--results", "/proc/nowhere/x.jsonl", "--length=8"], "/proc/nowhere: "),
        (["compare", "--keep", "/proc/nowhere/x", "--results", f"{tempfile.gettempdir()}/none.jsonl"], "/proc/nowhere"),
        (["extrapolate", "nowhere"], "nowhere does not exist"),
    ],
)
def test_a_users_mistake_ends_in_one_line(study, words, message):
    done = study(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("study: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (REPO / "x.nonsense").exists()


@pytest.mark.parametrize("value", [2**62, 10**400], ids=["2**62", "10**400"])
@pytest.mark.parametrize("topic", [*DRAWN, "relative", "forms", "trace"])
def test_an_absurd_number_for_any_option_ends_in_one_line(study, topic, value):
    for name, field in setting_fields(options_class(TOPICS[topic])).items():
        if field.kind is int:
            done = study(topic, f"--{name}={value}")
            assert done.returncode == 2, name
            assert done.stderr.startswith("study: error: ")
            assert done.stderr.count("\n") == 1


def test_running_out_of_memory_ends_in_one_line(study, monkeypatch):
    def greedy():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setitem(TOPICS, "rotate", greedy)
    done = study("rotate")
    assert done.stderr == "study: error: this machine has too little free memory: give smaller sizes to rotate\n"


def test_help_lists_every_topic(study):
    done = study("--help")
    assert done.returncode == 0
    assert all(f"  {topic}" in done.stdout for topic in TOPICS)
    assert "--head_dim" in study("relative", "--help").stdout


def test_without_matplotlib_a_plot_is_refused_before_anything_is_computed(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    done = study("rotate", "--plot", "x.png")
    assert done == (2, "", "study: error: --plot needs matplotlib: pip install matplotlib\n")


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


def test_clocks_show_the_frequencies_of_the_rotation_table():
    (speeds,) = run("clocks", head_dim=12, theta=500.0, length=50).tables
    for i, rate, turn, turns in speeds.rows:
        assert float(rate) == pytest.approx(500 ** (-2 * i / 12), abs=1e-6)
        assert float(turn) == pytest.approx(2 * math.pi / float(rate), rel=1e-3)
        assert float(turns) == pytest.approx(50 / float(turn), rel=1e-2)
    assert [row[0] for row in speeds.rows] == [0, 1, 2, 3, 4, 5]
    assert shown_pairs(64) == [0, 9, 18, 27, 36, 45, 54, 63]
    assert shown_pairs(1) == [0]


@pytest.mark.parametrize("settings", [{}, {"distance": 0}, {"distance": 355, "head_dim": 2}])
def test_scores_are_constant_along_the_text_if_q_and_k_are_rotated(settings):
    (table,) = run("relative", **settings).tables
    assert len({row[2].lstrip("-") for row in table.rows[:-1]}) == 1
    assert float(table.rows[-1][3]) > 1 or settings


def test_the_product_over_distance_is_the_mean_cosine_and_oscillates():
    curve, dim, theta = inner(8, 50, 100.0), 8, 100.0
    for n in (0, 1, 7, 50):
        cosines = [torch.cos(torch.tensor(n * theta ** (-2 * i / dim), dtype=torch.float64)) for i in range(4)]
        assert curve[n] == pytest.approx(float(sum(cosines)) / 4, abs=1e-5)
    assert bound(8, 4, 100.0)[0] == pytest.approx(2.5)
    curves, _ = run("decay").tables
    parts = quarter_octaves(torch.arange(301.0))
    assert all(low <= middle == mean <= high for middle, mean, low, high in parts)
    assert [low for _, _, low, _ in parts] == [0, *(high + 1 for _, _, _, high in parts[:-1])], "no distance twice"
    assert parts[-1][3] == 300
    assert curves.rows[0][1:4] == ("+1.000",) * 3


@pytest.mark.parametrize(("distance", "head_dim", "theta"), [(5, 128, 10000.0), (0, 8, 500.0), (7, 16, 100.0)])
def test_lookback_peaks_at_its_distance(distance, head_dim, theta):
    table = run("lookback", distance=distance, head_dim=head_dim, theta=theta).tables[0]
    for n, same, shifted in table.rows:
        cosines = [
            [math.cos((n - back) * theta ** (-2 * i / head_dim)) for i in range(head_dim // 2)]
            for back in (0, distance)
        ]
        means = [sum(values) / len(values) for values in cosines]
        assert [float(same), float(shifted)] == pytest.approx(means, abs=0.0051)
    assert [n for n, _, shifted in table.rows if shifted == "1.00"] == [distance]


@pytest.mark.parametrize(
    "changes", [{}, {"qkv_bias": True, "qk_norm": True}, {"rope_scaling": RopeScaling("ntk", 2.0)}]
)
@torch.no_grad()
def test_trace_ends_with_what_attention_computes(small_model, changes):
    model = small_model(**changes).eval()
    for weight in model.parameters():
        if weight.ndim == 1:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    tokens = torch.randint(37, (2, 12))
    layer, inputs = model.layers[0], []
    handle = layer.attention.wo.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(tokens)
    handle.remove()
    rows = attention_call(model, tokens, p=7, head=4, i=3)
    shown = [float(value) for value in rows[-1][-1].split()]
    assert shown == pytest.approx(inputs[0][0, 7, 46:48].tolist(), abs=1e-4)
    for file, expression, *_ in rows:
        assert expression in (REPO / "model" / file).read_text(encoding="utf-8")


def test_order_takes_other_words_and_rotate_other_vectors():
    report = str(run("order", words=("the", "cat", "sat", "down")))
    assert "none       down sat cat the" in report
    rows = run("rotate", vectors=("1,0,0,1", "0,1,2,0")).tables[0].rows
    assert rows[1][-2:] == ("[-0.8415, 0.5403]", "[1.9999, 0.0200]")
    for options, message in (
        ({"words": ("dog", "man")}, "give 3 to 12 different words"),
        ({"words": ("dog", "dog", "man")}, "give 3 to 12 different words"),
    ):
        with pytest.raises(ValueError, match=message):
            run("order", **options)
    for vector in ("1,2,3", "1,2,3,x", "1,2,3,nan"):
        with pytest.raises(ValueError, match="give four numbers, such as 1,0,1,0"):
            run("rotate", vectors=(vector,))
