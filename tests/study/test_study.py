"""study: every topic prints and draws, and a user's mistake ends in one line."""

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from script_helpers import run_in_process

from model.cli.settings import setting_fields
from model.ranges import Range
from model.rope import apply_rotary_emb, precompute_freqs_cis
from model.rope_scaling import RopeScaling
from study import __main__ as study_script
from study.clocks import shown_pairs
from study.decay import bound, inner, quarter_octaves
from study.rotation_examples import VECTORS, exact, random_tokens
from study.topic import Table, save_plot
from study.topics import TOPICS, options_class, run
from study.trace import Steps, attention_call

REPO = Path(__file__).parents[2]
PLAIN = ("order", "rotate", "clocks", "forms", "relative", "lookback", "decay", "cache")


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
        (["relative", f"--seed={2**63}"], f"seed is {2**63}: give a whole number"),
        (["forms", "--chatglm", "--head_dim", "6"], "head_dim is 6"),
        (["forms", "--length", "1000000000"], "GB are free"),
        (["forms", "--heads=100000000"], "GB are free"),
        (["decay", "--length", "1000000000"], "GB are free"),
        (["decay", "--thetas", "100", "nan"], "thetas has nan: give numbers from 1 to 1e+30"),
        (["trace", "--position", "600"], "position is 600: give one of 0 to 511"),
        (["trace", "--length", "10000000"], "GB are free"),
        (["rotate", "--plot", "/nowhere/x.png"], "--plot is /nowhere/x.png: give a file in a directory that exists"),
        (["rotate", "--plot", "x.nonsense"], "its ending must be one of"),
        (["order", "--words", "a", "rope", "a"], "words is 'a rope a': give at least two different words, each once"),
        (["order", "--words", "rope"], "words is 'rope'"),
        (["compare", "--dim=2", "--n_heads=1", "--schemes", "rope"], "head_dim 2: rope_scaling needs"),
        (["compare", "--dim=6", "--n_heads=1", "--schemes", "2d"], "head_dim is 6: each half must hold whole pairs"),
        (["compare", "--dim=1048576", "--seeds=1"], "GB"),
        (["compare", "--results", "/proc/nowhere/x.jsonl", "--length=8"], "/proc/nowhere: "),
        (["compare", "--keep", "/proc/nowhere/x", "--results", f"{tempfile.gettempdir()}/none.jsonl"], "/proc/nowhere"),
        (["cache", "--calls", "1", "0"], "calls is [1, 0]"),
        (["cache", "--length=12"], "the first call has 12 tokens and the later calls 7"),
        (["cache", "--max_seq_len=1000000000"], "GB are free"),
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
@pytest.mark.parametrize("topic", [*PLAIN, "trace"])
def test_an_absurd_number_for_any_option_ends_in_one_line(study, topic, value):
    for name, field in setting_fields(options_class(TOPICS[topic])).items():
        if field.kind is int and field.range != Range(0):  # a seed
            done = study(topic, f"--{name}={value}")
            assert done.returncode == 2, name
            assert done.stderr.startswith("study: error: ")
            assert done.stderr.count("\n") == 1


def test_running_out_of_memory_ends_in_one_line(study, monkeypatch):
    def greedy():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setitem(TOPICS, "rotate", greedy)
    done = study("rotate")
    assert done.stderr == ("study: error: this machine has too little free memory: give smaller sizes to rotate\n")


def test_help_lists_every_topic(study):
    done = study("--help")
    assert done.returncode == 0
    assert all(f"  {topic}" in done.stdout for topic in TOPICS)
    assert "--head_dim" in study("relative", "--help").stdout


def test_without_matplotlib_a_plot_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('hidden')", encoding="utf-8")
    words = [sys.executable, "-m", "study", "rotate", "--plot", str(tmp_path / "x.png")]
    done = subprocess.run(
        words, cwd=REPO, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, encoding="utf-8"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "study: error: --plot needs matplotlib: pip install matplotlib\n"


@pytest.mark.parametrize("topic", PLAIN)
def test_a_topic_draws_a_png_and_leaves_no_other_file(topic, tmp_path):
    pytest.importorskip("matplotlib")
    report = run(topic)
    save_plot(report.draw, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[1:4] == b"PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_table_aligns_numbers_right_and_text_left():
    table = Table("title", ("name", "n"), [("a", 5), ("bcdef", 100)], ["note"])
    assert str(table) == "title\nname     n\na        5\nbcdef  100\nnote"


def test_a_png_stores_the_report_of_its_run(study, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    done = study("rotate", "--theta", "50", "--plot", str(tmp_path / "x.png"))
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.text["Description"] + "\n" == done.stdout


def test_attention_depends_on_word_order_with_rope_only():
    (table,) = run("order", words=("a", "rope", "is", "laid"), seed=3).tables
    plain, backwards, rotated, rotated_backwards = (row[2:] for row in table.rows)
    assert plain == backwards
    assert rotated != rotated_backwards
    assert [row[1] for row in table.rows] == ["a rope is laid", "laid is rope a"] * 2
    assert all(sum(map(float, row[:4])) == pytest.approx(1, abs=3e-4) for row in (plain, rotated, rotated_backwards))
    none, rope = (float(note.split(" at most ")[1].split()[0]) for note in table.notes)
    assert none < 1e-6
    assert rope > 0.01


def test_clocks_show_the_frequencies_of_the_rotation_table():
    speeds, similarity = run("clocks", head_dim=12, theta=500.0, length=50).tables
    for i, rate, turn, turns in speeds.rows:
        assert float(rate) == pytest.approx(500 ** (-2 * i / 12), abs=1e-6)
        assert float(turn) == pytest.approx(2 * math.pi / float(rate), rel=1e-3)
        assert float(turns) == pytest.approx(50 / float(turn), rel=1e-2)
    assert [row[0] for row in speeds.rows] == [0, 1, 2, 3, 4, 5]
    assert shown_pairs(64) == [0, 9, 18, 27, 36, 45, 54, 63]
    assert shown_pairs(1) == [0]
    for distance, first, last, mean in similarity.rows:
        cosines = [math.cos(distance * 500 ** (-2 * i / 12)) for i in range(6)]
        assert [float(first), float(last)] == pytest.approx([cosines[0], cosines[-1]], abs=1e-3)
        assert float(mean) == pytest.approx(sum(cosines) / 6, abs=1e-3)


def test_the_library_rotates_the_five_vectors_as_float64_does():
    x = torch.tensor(VECTORS)[None, :, None]  # (1, 5, 1, 4)
    rotated = apply_rotary_emb(x, x, precompute_freqs_cis(4, 5, 100.0))[0][0, :, 0]  # (5, 4)
    for m, (vector, row) in enumerate(zip(VECTORS, rotated.tolist())):
        assert row == pytest.approx(exact(m, vector, 100.0), abs=1e-6)


def test_scores_are_constant_along_the_text_if_q_and_k_are_rotated_and_not_if_the_embedding_is():
    first, second = run("relative").tables
    assert len({row[2] for row in first.rows[:-1]}) == 1
    least, most = (float(row[3]) for row in first.rows[-3:-1])
    assert all(least <= float(row[3]) <= most for row in first.rows[:-3])
    assert most - least == pytest.approx(float(first.rows[-1][3]), abs=2e-4)
    assert {row[4] for row in first.rows[:-1]} == {"1.0000"}
    assert float(first.rows[-1][3]) > 1
    assert [row[2] for row in second.rows] == ["yes", "NO", "yes", "NO"]


@pytest.mark.parametrize("settings", [{}, {"distance": 0}, {"distance": 355, "head_dim": 2}])
def test_the_note_of_relative_names_the_claims_that_are_false(settings):
    table = run("relative", **settings).tables[1]
    assert [row[2] for row in table.rows] == ["yes", "yes" if settings else "NO", "yes", "NO"]
    assert table.notes[0].startswith("The fourth is false" if settings else "The second and the fourth are false")


def test_the_norm_in_relative_is_that_of_the_query():
    tokens = random_tokens(D=8, distance=7, theta=10000.0, seed=0)
    table = precompute_freqs_cis(8, 20)
    table[:, 0] *= 2  # no rotation: the norm of the first pair doubles
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.rotation_examples.precompute_freqs_cis", lambda *_: table)
        norm = tokens.scores(torch.arange(3))["norm"]
    q = tokens.wq @ tokens.x
    longer = torch.cat((2 * q[:2], q[2:]))
    torch.testing.assert_close(norm, (longer.norm() / q.norm()).expand(3))


def test_the_product_over_distance_is_the_mean_cosine_and_oscillates():
    curve, dim, theta = inner(8, 50, 100.0), 8, 100.0
    for n in (0, 1, 7, 50):
        cosines = [torch.cos(torch.tensor(n * theta ** (-2 * i / dim), dtype=torch.float64)) for i in range(4)]
        assert curve[n] == pytest.approx(float(sum(cosines)) / 4, abs=1e-5)
    assert bound(8, 4, 100.0)[0] == pytest.approx(2.5)
    curves, swings, even, _ = run("decay").tables
    assert even.rows[-1] == (402, "+0.997")
    parts = quarter_octaves(torch.arange(301.0))
    assert all(low <= middle == mean <= high for middle, mean, low, high in parts)
    assert [low for _, _, low, _ in parts] == [0, *(high + 1 for _, _, _, high in parts[:-1])], "no distance twice"
    assert parts[-1][3] == 300
    assert all(row[2] != "0%" for row in swings.rows)
    assert curves.rows[0][1:4] == ("+1.000",) * 3


def test_scores_of_random_vectors_do_not_decay_over_distance():
    table = run("decay", head_dim=128, thetas=(10000.0,)).tables[-1]
    assert [row[0] for row in table.rows] == [0, 1, 16, 256, 4096]
    assert all(10.6 < float(row[1]) < 12 for row in table.rows)  # sqrt(128) = 11.3, within 4 standard errors


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


def test_trace_shows_the_lines_shapes_and_values_of_the_library():
    (table,) = run("trace", batch=2, length=10, heads=3, head_dim=8, position=4, head=1, pair=2).tables
    shapes = {row[1]: row[2] for row in table.rows}
    assert shapes["torch.outer(positions, freqs)"] == (20, 4)
    assert shapes["self.freqs_cis[start_pos : start_pos + T]"] == (10, 4)
    assert shapes["torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))"] == (2, 10, 3, 4)
    assert shapes["freqs_cis[None, :, None, :]"] == (1, 10, 1, 4)
    assert shapes["t.transpose(1, 2)"] == (2, 3, 10, 8)
    for place, expression, *_ in table.rows:  # the expression is in that line of the source
        name, line = place.split(":")
        source = (REPO / "model" / name).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert expression.removesuffix("...") in source
    by_expression = {row[1]: row[4] for row in table.rows[:-1]}
    before, rotation, after = (
        complex(by_expression[expression].replace(" ", ""))
        for expression in (
            "torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))",
            "freqs_cis[None, :, None, :]",
            "pairs * reshape_for_broadcast(freqs_cis, pairs)",
        )
    )
    assert before * rotation == pytest.approx(after, abs=2e-4)
    weights = next(row for row in table.rows if row[1].startswith("scores.masked_fill(~mask, -math.inf).softmax(-1"))
    assert weights[2] == (2, 3, 10, 10)
    assert weights[4].endswith("+0.0000")  # position 5 is hidden from position 4
    assert table.notes == ["values of mask, scores and weights: for the keys at positions 3, 4, 5."]


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
    steps = Steps()
    attention_call(steps, model, tokens, p=7, head=4, i=3)
    shown = [float(value) for value in steps.rows[-1][-1].split()]
    assert shown == pytest.approx(inputs[0][0, 7, 46:48].tolist(), abs=1e-4)


def test_the_picture_of_trace_shows_a_query_and_the_key_before_it():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    run("trace", batch=1, length=10, heads=1, head_dim=8, position=4, head=0, pair=0).draw(figure)
    before, after = figure.axes
    assert {text.get_text() for text in before.texts} == {"q at 4", "k at 3"}
    turns = [float(part.split()[0]) for part in after.get_title().split(" by ")[1:]]
    # Pair 0 rotates by one radian per token, and an angle is defined up to full turns.
    assert turns == pytest.approx([4 - 2 * math.pi, 3], abs=0.01)


def test_a_form_with_float16_positions_names_the_first_position_that_overflows():
    (table,) = run("forms", head_dim=4, heads=1, length=65_536, repeats=1).tables
    assert {row[0]: row[1] for row in table.rows}["complex, float16 angles"] == "-"
    assert "nan" not in str(table)
    assert "float16 angles: float16 rounds positions of 65520 and more to infinity" in table.notes[-1]


def test_forms_with_chatglm_shows_its_rotations_and_its_position_ids():
    table, ids = run("forms", head_dim=8, heads=3, length=20, repeats=3, chatglm=True).tables
    assert {row[0].split(",")[0] for row in table.rows} == {
        "ChatGLM-6B",
        "position and block",
        "ChatGLM2",
        "ChatGLM2-32k",
    }
    assert table.rows[-1][-1] == "p/16 theta^(-4i/D), 0"
    assert ids.columns == ("token", "0", "1", "3", "4", "5", "6", "7", "19")
    assert ids.rows == [("first id", 0, 1, 3, 4, 4, 4, 4, 4), ("second id", 0, 0, 0, 0, 1, 2, 3, 15)]
    for row in table.rows:
        low, high = map(float, row[3].split("-"))
        assert low <= float(row[2]) <= high


def test_the_axes_of_the_rotated_vectors_name_the_channels_of_their_pair():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    run("rotate").draw(figure)
    labels = [(axes.get_xlabel(), axes.get_ylabel(), axes.get_title()[:6]) for axes in figure.axes]
    assert labels == [("channel 0", "channel 1", "pair 0"), ("channel 2", "channel 3", "pair 1")]
