"""The topics that open a trained model: attention, angles, extrapolate, and check with a model."""

import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from study_models import TEXT, random_model, save_random

from model.config import RopeScaling
from model.transformer import Transformer
from model.weights import save_model
from study import extrapolate
from study.attention_maps import attention_weights
from study.check import judge_all
from study.check.in_model import with_functions
from study.check.reader import Reader
from study.extrapolate import full, windowed
from study.positions.rope_forms import block_diagonal
from study.topic import open_model, open_windows, save_plot
from study.topics import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run_directory(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


@torch.no_grad()
def test_recording_does_not_change_the_logits_and_weights_are_softmax_rows(trained):
    _, model = trained
    tokens = torch.randint(300, (3, 9), generator=torch.Generator().manual_seed(2))
    before = model(tokens)
    maps, loss = attention_weights(model, tokens)
    assert maps.shape == (2, 3, 4, 9, 9)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 3, 4, 9), atol=1e-5, rtol=0)
    assert (maps.triu(1) == 0).all()
    assert torch.equal(model(tokens), before)
    expected = [torch.nn.functional.cross_entropy(row[:-1], text[1:]).item() for row, text in zip(before, tokens)]
    assert loss == pytest.approx(sum(expected) / 3, abs=1e-6)


def test_attention_has_a_row_for_each_head(trained):
    directory, model = trained
    report = run("attention", model=directory)
    (heads,) = report.tables
    assert len(heads.rows) == 8
    texts, name = open_windows(directory, open_model(directory)[1], 32)
    assert f"{len(texts)} windows of 32 tokens of {name}" in heads.title
    weights = attention_weights(model, texts)[0].mean(1)[1, 2].tolist()  # of layer 1, head 2
    later = range(1, 32)
    far = sum((t - s) * weights[t][s] for t in later for s in range(t)) / 32
    pairs = ([(t, t) for t in later], [(t, t - 1) for t in later], [(t, 0) for t in later])  # self, before, first
    shares = [sum(weights[t][s] for t, s in each) / len(later) for each in pairs]
    assert heads.rows[6][:6] == (1, 2, f"{far:.1f}", *(f"{share:.0%}" for share in shares))
    assert heads.rows[6][2:6] != heads.rows[6][6:]


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("topic", ["attention", "extrapolate", "endless"])
def test_the_topics_of_a_model_draw_a_picture(trained, tmp_path, topic):
    save_plot(run(topic, model=trained[0]), tmp_path / "x.png")


def test_windows_are_evenly_spaced_over_the_validation_text(run_directory):
    _, tokenizer = open_model(run_directory)
    windows, name = open_windows(run_directory, tokenizer, 100, 3)
    assert name.startswith("the validation text of")
    first, middle, last = (TEXT.index(tokenizer.decode(row.tolist())) for row in windows)
    assert TEXT.endswith(tokenizer.decode(windows[-1].tolist()))
    assert first == pytest.approx(0.75 * len(TEXT), rel=0.05)
    assert middle == pytest.approx((first + last) / 2, rel=0.01)
    with pytest.raises(ValueError, match="tokens, 100000 are needed: name a run with a longer text"):
        open_windows(run_directory, tokenizer, 100_000)


def test_a_model_without_a_text_is_tested_on_the_documentation_of_python(run_directory, monkeypatch):
    monkeypatch.setattr("model.text.readers.python_docs", lambda: (TEXT,))
    (run_directory / "tokens.json").unlink()
    windows, name = open_windows(run_directory, open_model(run_directory)[1], 100)
    assert (windows.shape, name) == ((16, 100), "the end of python-docs")


@torch.no_grad()
def test_angles_are_those_between_the_queries_and_the_keys_of_a_head(run_directory):
    network, _ = open_model(run_directory)
    attention = network.layers[1].attention
    alpha = torch.tensor([-2.5, -0.5, 0.75, 3.0])
    rotation = block_diagonal(torch.polar(torch.ones(4), alpha)[None])[0]  # (D, D)
    attention.wq.weight[16:24] = rotation @ attention.wk.weight[8:16]  # head 2, which reads key head 1
    save_model(network, run_directory)
    table, scores = run("angles", model=run_directory, layer=1, head=2).tables
    assert [float(row[2]) for row in table.rows] == pytest.approx(alpha.tolist(), abs=0.006)
    assert [float(row[1]) for row in table.rows] == pytest.approx([-1, -0.1, -0.01, -0.001], abs=0.006)
    products = [float(row[3]) for row in table.rows]
    fast, slow, both = ([float(cell) for cell in row[1:]] for row in scores.rows)  # one pair turns in 64 tokens
    angle = [[float(row[2]) + int(d) * 0.1**i for i, row in enumerate(table.rows)] for d in scores.columns[1:]]
    expected = [[p * math.cos(a) / 8**0.5 for p, a in zip(products, row)] for row in angle]
    assert fast == pytest.approx([row[0] for row in expected], abs=0.02)
    assert both == pytest.approx([sum(row) for row in expected], abs=0.02)
    assert [a + b for a, b in zip(fast, slow)] == pytest.approx(both, abs=0.02)
    with pytest.raises(ValueError, match="layer 2, head 0: the model has 2 layers of 4 heads"):
        run("angles", model=run_directory, layer=2)


@torch.no_grad()
def test_angles_are_measured_after_the_norms_and_with_the_scaled_frequencies(run_directory):
    plain, tokenizer = open_model(run_directory)
    args = replace(plain.args, qk_norm=True, rope_scaling=RopeScaling("linear", 2.0))
    network = random_model(args, std=0.3)
    norms = network.layers[1].attention.q_norm, network.layers[1].attention.k_norm
    means = []
    for norm in norms:
        norm.weight.uniform_(0.1, 2)  # unequal in the two channels of a pair, so that the norm turns it
        norm.register_forward_hook(lambda module, inputs, output: means.append(output.mean((0, 1))))
    save_model(network, run_directory)
    network(open_windows(run_directory, tokenizer, args.max_seq_len)[0])
    q, k = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in means)  # (H, D/2), (K, D/2)
    table, _ = run("angles", model=run_directory, layer=1, head=2).tables
    assert [float(row[2]) for row in table.rows] == pytest.approx((q[2] * k[1].conj()).angle().tolist(), abs=0.006)
    assert [float(row[1]) for row in table.rows] == pytest.approx([-0.5, -0.05, -0.005, -0.0005], abs=0.006)


@pytest.mark.parametrize("topic", ["angles", "whatif", "page", "check"])
def test_topics_that_change_the_rotation_refuse_another_position_encoding(tmp_path, topic):
    directory, _ = save_random(tmp_path, "alibi")
    file = Path(__file__).parents[1] / "solutions/complex.py"
    options = {"file": file, "run": directory} if topic == "check" else {"model": directory}
    with pytest.raises(ValueError, match=r"holds the weights of study\.positions\.scores:Alibi: give a model"):
        run(topic, **options)


class Unlisted(Transformer):
    pass


def test_a_network_that_no_topic_knows_is_refused_with_the_place_to_list_it(tmp_path):
    directory, network = save_random(tmp_path)
    save_model(Unlisted(network.args), directory)
    with pytest.raises(ValueError, match=r"test_models:Unlisted: .* SCHEMES in study/positions/__init__.py"):
        run("attention", model=directory)


@torch.no_grad()
def test_each_window_gives_the_losses_of_a_forward_over_that_window(trained):
    _, model = trained
    texts = torch.randint(300, (2, 81), generator=torch.Generator().manual_seed(4))
    apart, sliding = windowed(model, texts, 32), windowed(model, texts, 16)
    torch.testing.assert_close(apart[:, :32], full(model, texts[:, :33]), atol=1e-5, rtol=0)
    torch.testing.assert_close(sliding[:, :32], apart[:, :32])
    torch.testing.assert_close(apart[:, 32:64], full(model, texts[:, 32:65]), atol=1e-5, rtol=0)
    torch.testing.assert_close(sliding[:, 32:48], full(model, texts[:, 16:49])[:, 16:], atol=1e-5, rtol=0)
    torch.testing.assert_close(sliding[:, 64:], full(model, texts[:, 48:81])[:, 16:], atol=1e-5, rtol=0)


SCALED = ("position interpolation", "NTK-aware", "YaRN")
METHODS = {
    "extrapolate": ("rope, as it is", *SCALED, "windows of 32", "sliding by 16"),
    "endless": (
        "rope, as it is", "windows of 32", "endless, none kept", "endless, first 4 kept", "first 4 kept, recomputed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("topic", METHODS)
def test_all_methods_agree_within_the_trained_length_except_scaling(trained, topic):
    rows = run(topic, model=trained[0]).tables[0].rows
    assert tuple(row[0] for row in rows) == METHODS[topic]
    first = {row[1] for row in rows if row[0] not in SCALED}
    assert len(first) == 1
    assert not first & {row[1] for row in rows if row[0] == "position interpolation"}
    assert len({row[3] for row in rows}) > 2


def test_a_context_that_is_too_long_for_the_memory_is_refused(trained, monkeypatch):
    monkeypatch.setattr(extrapolate, "FACTOR", 2**20)
    with pytest.raises(ValueError, match="GB are free"):
        run("extrapolate", model=trained[0])


@pytest.mark.parametrize("style", ["complex", "real", "halves"])
def test_a_model_with_right_functions_has_its_loss_and_writes_its_text(run_directory, style):
    file = Path(__file__).parents[1] / f"solutions/{style}.py"
    rows = run("check", file=file, run=run_directory, prompt="a rope").tables[1].rows
    assert [row[0] for row in rows] == ["the model", "with your functions"]
    assert {(row[1], row[3]) for row in rows} == {(rows[0][1], rows[0][3])}


def test_the_speeds_are_medians_of_turns_after_a_text_that_is_not_timed(run_directory, monkeypatch):
    seconds = iter([100, 3, 1, 2, 2, 8, 1, 2])  # of each text: two to warm up, then three turns of both models
    now = [0.0]

    def decoded(*_: object) -> Iterator[torch.Tensor]:
        now[0] += next(seconds)
        yield from torch.zeros(6, 1, 1, dtype=torch.long)

    monkeypatch.setitem(with_functions.__globals__, "decode", decoded)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    rows = run("check", file=Path(__file__).parents[1] / "solutions/complex.py", run=run_directory).tables[1].rows
    assert [row[2] for row in rows] == ["6", "3"]


def test_wrong_functions_are_used_in_a_model_too(run_directory):
    right = (Path(__file__).parents[1] / "solutions/complex.py").read_text(encoding="utf-8")
    file = run_directory / "mine.py"
    file.write_text(right.replace("torch.outer(t, freqs))", "-30 * torch.outer(t, freqs))"), encoding="utf-8")
    network, _ = open_model(run_directory)
    solution = judge_all(Reader([file]))
    assert solution.verdicts["precompute_freqs_cis"].outcome == "wrong"
    changed = with_functions(network, solution)
    tokens = torch.arange(9)[None]
    assert not torch.allclose(changed(tokens), network(tokens), atol=1e-4)
    assert torch.allclose(changed(tokens)[:, 0], network(tokens)[:, 0], atol=1e-4)  # position 0 is not rotated


def test_a_function_that_does_not_fit_a_model_is_one_line_after_the_verdicts(run_directory, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def causal_mask(start_pos, T):\n    return 'x'\n", encoding="utf-8")
    report = run("check", file=file, run=run_directory)
    verdicts, table = report.tables
    assert report.code == 1
    assert str(verdicts).startswith("causal_mask: wrong")
    assert [row[0] for row in table.rows] == ["the model"]
    assert table.notes[-1].startswith("the model does not run with your functions: ")


@pytest.mark.parametrize("returned", ["[:, :, start_pos:end]", ""])
def test_a_cache_that_returns_other_slots_runs_in_a_model(run_directory, tmp_path, returned):
    right = (Path(__file__).parents[1] / "solutions/complex.py").read_text(encoding="utf-8")
    file = tmp_path / "mine.py"
    file.write_text(right.replace("[:, :, :end], self.values[:, :, :end]", f"{returned}, self.values{returned}"))
    verdicts, table = run("check", file=file, run=run_directory).tables
    assert "KVCache: wrong" in str(verdicts)
    assert [row[0] for row in table.rows[1:]] == ["with your functions"]
    assert table.rows[1][3] != table.rows[0][3]
