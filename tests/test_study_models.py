"""The topics that look at a model: attention, extrapolate, trace --model, compare."""

import dataclasses
import json

import pytest
import torch

from model import ModelArgs, Transformer
from model.positions import SCALINGS, SCHEMES
from model.study import TOPICS, run
from model.study.attention import look, profile
from model.study.extrapolate import full, spans, windowed
from model.study.report import save_plot
from model.study.rivals import stretched
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_tokenizer, save_model, save_tokenizer

TEXT = "".join(f"line {n}: a rope of {n * n} yards, laid in {n % 7} strands.\n" for n in range(900))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    """A model on disk, random, with weights so wide that positions matter."""
    directory = tmp_path_factory.mktemp("model")
    train_tokenizer([TEXT], directory / "tokenizer.model", "bpe", 300)
    tokenizer = load_tokenizer(directory / "tokenizer.model")
    torch.manual_seed(0)
    args = ModelArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=tokenizer.vocab_size, max_seq_len=32)
    model = Transformer(args)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
    save_model(model, directory)
    save_tokenizer(tokenizer, directory)
    return directory, model.eval()


@torch.no_grad()
def test_watching_changes_nothing_and_weights_are_softmax_rows(trained):
    _, model = trained
    tokens = torch.randint(300, (1, 9), generator=torch.Generator().manual_seed(2))
    before = model(tokens)
    maps, loss = look(model, tokens)
    assert maps.shape == (2, 4, 9, 9)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 4, 9), atol=1e-5, rtol=0)
    assert (maps.triu(1) == 0).all()
    assert torch.equal(model(tokens), before)
    expected = torch.nn.functional.cross_entropy(before[0, :-1], tokens[0, 1:]).item()
    assert loss == pytest.approx(expected, abs=1e-6)
    assert profile(maps)[3] == pytest.approx(float(maps.diagonal(-3, -2, -1).mean()))


def test_attention_topic(trained, tmp_path):
    directory, _ = trained
    report = run("attention", TOPICS["attention"](model=directory, prompt="a rope of 9 yards"))
    heads, curve = report.tables
    assert len(heads.rows) == 8
    assert [row[1] for row in curve.rows] != [row[2] for row in curve.rows]
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


def test_trace_of_a_trained_model(trained):
    directory, _ = trained
    (table,) = run("trace", TOPICS["trace"](model=directory, prompt="a rope of 9 yards")).tables
    assert "H=4 K=2 D=8" in table.title
    assert any(row[2] == (1, 2, 32, 8) for row in table.rows)  # the cache: two key heads, 32 slots


@torch.no_grad()
def test_windows_read_what_a_reader_would(trained):
    _, model = trained
    texts = torch.randint(300, (2, 81), generator=torch.Generator().manual_seed(4))
    apart, sliding = windowed(model, texts, 32), windowed(model, texts, 16)
    torch.testing.assert_close(apart[:, :32], full(model, texts[:, :33]), atol=1e-5, rtol=0)
    torch.testing.assert_close(sliding[:, :32], apart[:, :32])
    torch.testing.assert_close(apart[:, 32:64], full(model, texts[:, 32:65]), atol=1e-5, rtol=0)
    torch.testing.assert_close(sliding[:, 32:48], full(model, texts[:, 16:49])[:, 16:], atol=1e-5, rtol=0)
    torch.testing.assert_close(sliding[:, 64:], full(model, texts[:, 48:81])[:, 16:], atol=1e-5, rtol=0)


@torch.no_grad()
def test_stretching_keeps_what_was_trained(trained):
    _, model = trained
    tokens = torch.randint(300, (1, 20))
    torch.testing.assert_close(stretched(model, "rope", 4)(tokens), model(tokens), atol=1e-5, rtol=0)
    for scaling in SCALINGS:
        longer = stretched(model, scaling, 4)
        assert longer.args.max_seq_len == 128
        assert (longer(tokens) - model(tokens)).abs().max() > 1e-3


def test_spans_cover_the_text():
    assert spans(32, 8) == [(0, 16), (16, 32), (32, 64), (64, 128), (128, 256)]
    assert spans(10, 3) == [(0, 5), (5, 10), (10, 20), (20, 30)]


def test_extrapolate_topic(trained, text, tmp_path):
    directory, _ = trained
    report = run("extrapolate", TOPICS["extrapolate"](model=directory, data=(str(text),), factor=4, windows=2))
    (table,) = report.tables
    assert [row[0] for row in table.rows] == [
        "rope, as it is", "position interpolation", "NTK-aware", "YaRN", "windows of 32", "sliding by 16",
    ]  # fmt: skip
    first = {row[0]: row[1] for row in table.rows}
    assert first["rope, as it is"] == first["windows of 32"] == first["sliding by 16"]
    assert first["position interpolation"] != first["rope, as it is"]
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


@pytest.mark.parametrize(
    ("topic", "settings", "message"),
    [
        ("extrapolate", {"windows": 10_000}, "are needed: give more text"),
        ("extrapolate", {"factor": 1}, "factor is 1"),
        ("extrapolate", {"factor": 1_000_000}, "GB are free"),
        ("attention", {"prompt": "rope " * 300}, "tokens: give 2 to 32"),
    ],
)
def test_mistakes(trained, text, topic, settings, message):
    directory, _ = trained
    data = {"data": (str(text),)} if topic == "extrapolate" else {}
    with pytest.raises(ValueError, match=message):
        run(topic, TOPICS[topic](model=directory, **data | settings))


@pytest.fixture
def small(text, tmp_path):
    return TOPICS["compare"](
        schemes=("rope", "yarn", "learned", "learnable"), seeds=2, results=tmp_path / "results.jsonl", windows=2,
        keep=tmp_path / "kept", data=(str(text),), steps=2, batch_size=2, length=8, dim=16, n_layers=1, n_heads=2,
        vocab_size=300,
    )  # fmt: skip


def test_compare_resumes_where_it_was_cut(small, monkeypatch, tmp_path):
    report = run("compare", small)
    table, moved = report.tables
    assert {row[0] for row in table.rows} == {"rope", "yarn", "learned", "learnable"}
    assert [row[3:6] for row in table.rows if row[0] == "learned"] == [("-", "-", "-")]
    assert moved.title.startswith("learnable")
    lines = [json.loads(line) for line in small.results.read_text().splitlines()]
    assert len(lines) == 2 * (4 + 2)  # rope brings its three scalings, yarn among them
    rope, yarn = (next(line for line in lines if line["scheme"] == name) for name in ("rope", "yarn"))
    assert rope["bits_per_byte"]["1"] == yarn["bits_per_byte"]["1"]
    assert rope["bits_per_byte"]["8"] != yarn["bits_per_byte"]["8"]
    assert rope["cache_bytes_per_token"] == 2 * 1 * 2 * 8 * 4

    whole = small.results.read_text()
    small.results.write_text(whole[: whole.rstrip().rfind("\n") + 30])  # killed in the last line
    calls = []
    from model.study import compare

    real = compare.run_one
    monkeypatch.setattr(compare, "run_one", lambda *words: calls.append(words[:2]) or real(*words))
    run("compare", small)
    assert calls == [("learnable", 1)]
    again = [json.loads(line) for line in small.results.read_text().splitlines() if line.endswith("}")]
    assert [line["bits_per_byte"] for line in again] == [line["bits_per_byte"] for line in lines]

    other = dataclasses.replace(small, steps=3, dry=True)
    assert run("compare", other).tables[0].rows == []  # another budget shares nothing

    reached = run("extrapolate", TOPICS["extrapolate"](model=tmp_path / "kept/learnable-0", data=small.data, windows=1))
    assert reached.tables[0].rows[0][0] == "learnable, as it is"
    with pytest.raises(ValueError, match="learned has one vector for each of 8 positions: it cannot read 64"):
        run("extrapolate", TOPICS["extrapolate"](model=tmp_path / "kept/learned-0", data=small.data, windows=1))


def test_compare_mistakes(small):
    with pytest.raises(ValueError, match="unknown scheme 'ropee': did you mean 'rope'"):
        run("compare", dataclasses.replace(small, schemes=("ropee",)))
    with pytest.raises(ValueError, match="GB are free"):
        run("compare", dataclasses.replace(small, length=1_000_000))


def test_the_committed_results_hold_every_scheme():
    report = run("compare", TOPICS["compare"](dry=True))
    assert {row[0] for row in report.tables[0].rows} == set(SCHEMES)
    assert {row[6] for row in report.tables[0].rows} == {3}
