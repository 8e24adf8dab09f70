"""The topics that open a trained model: attention, extrapolate, trace and cache."""

import shutil
from pathlib import Path

import pytest
import torch
from study_models import TEXT, save_random

from model.cli import toml_text
from model.text.prepare import tokenize
from model.text.sources import open_documents
from model.training.config import DataArgs
from model.weights import load_tokenizer
from study.attention_maps import attention_weights, profile, uniform
from study.check import judge_all, reader
from study.check.in_model import with_functions
from study.check.judge import Conventions
from study.check.reader import Reader
from study.extrapolate import full, windowed
from study.topic import open_model, open_windows, save_plot
from study.topics import run


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run_directory(trained, text, tmp_path):
    """The model as a run directory, whose config.toml names its text, and which has its tokens."""
    directory = tmp_path / "run"
    shutil.copytree(trained[0], directory)
    tokenize(directory, open_documents([text]), load_tokenizer(directory), val_fraction=0.25)
    (directory / "config.toml").write_text(toml_text(DataArgs(data=(str(text),), val_fraction=0.25)), encoding="utf-8")
    return directory


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
    assert profile(maps)[3] == pytest.approx(float(maps.diagonal(-3, -2, -1).mean()))


def test_attention_of_a_prompt_has_a_row_for_each_head_and_a_picture(trained, tmp_path):
    directory, model = trained
    prompt = "a rope of 9 yards\nand $1$"
    report = run("attention", model=directory, prompt=prompt)
    heads, curve = report.tables
    assert len(heads.rows) == 8
    maps, _ = attention_weights(model, torch.tensor([load_tokenizer(directory).encode(prompt)]))
    weights = maps[1, 0, 2].tolist()  # of layer 1, head 2
    later = range(1, len(weights))
    far = sum((t - s) * weights[t][s] for t in later for s in range(t)) / len(weights)
    shares = [sum(weights[t][s] for t, s in pairs) / len(later) for pairs in (
        [(t, t) for t in later], [(t, t - 1) for t in later], [(t, 0) for t in later]
    )]  # fmt: skip
    assert heads.rows[6][:6] == (1, 2, f"{far:.1f}", *(f"{share:.0%}" for share in shares))
    assert "on the prompt" in heads.title
    assert [row[1] for row in curve.rows] != [row[2] for row in curve.rows]
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


def test_the_uniform_profile_averages_one_over_the_number_of_visible_tokens():
    assert uniform(3).tolist() == pytest.approx([(1 + 1 / 2 + 1 / 3) / 3, (1 / 2 + 1 / 3) / 2, 1 / 3])


def test_attention_averages_windows_of_the_models_validation_text(run_directory, text):
    heads, curve = run("attention", model=run_directory, windows=5).tables
    assert f"5 windows of 32 tokens of the validation text of {text}" in heads.title
    assert curve.rows[-1][0] == 24
    _, tokenizer = open_model(run_directory)
    windows, _ = open_windows(run_directory, (), tokenizer, 3, 100)  # evenly spaced, to the end of the text
    first, middle, last = (TEXT.index(tokenizer.decode(row.tolist())) for row in windows)
    assert TEXT.endswith(tokenizer.decode(windows[-1].tolist()))
    assert first == pytest.approx(0.75 * len(TEXT), rel=0.05)
    assert middle == pytest.approx((first + last) / 2, rel=0.01)


def test_a_model_without_its_training_text_needs_data(trained, run_directory, text):
    directory, _ = trained
    for topic in ("attention", "extrapolate"):
        with pytest.raises(ValueError, match=r"has no config.toml .* give the text with --data"):
            run(topic, model=directory)
    (run_directory / "tokens.json").unlink()
    with pytest.raises(ValueError, match=r"tokens.json is missing.*give the text with --data"):
        run("extrapolate", model=run_directory)
    table, _ = run("attention", model=run_directory, data=(str(text),), windows=2).tables
    assert f"of the end of {text}" in table.title


def test_cache_of_a_trained_model_names_its_calls_and_their_text(trained, tmp_path):
    directory, _ = trained
    report = run("cache", model=directory, prompt="a rope of 9 yards")
    calls, facts = report.tables
    assert [row[0].split()[0] for row in calls.rows] == ["prefill", *["decode"] * 3, "chunk", "decode", "all"]
    assert calls.rows[0][0] == "prefill 'a rope of 9 yards'"
    assert all(float(row[-1]) < 1e-4 for row in calls.rows)
    assert facts.rows[0][1] == "(1, 2, 32, 8) float32"
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


def test_trace_of_a_trained_model_shows_its_weights(trained):
    directory, model = trained
    prompt = "a rope of 9 yards or more"
    (table,) = run("trace", model=directory, prompt=prompt, position=5, head=2, pair=2).tables
    assert "H=4 K=2 D=8" in table.title
    maps, _ = attention_weights(model, torch.tensor([load_tokenizer(directory).encode(prompt)]))
    expected = " ".join(f"{weight:+.4f}" for weight in maps[0][0, 2, 5, 4:7].tolist())
    shown = {row[1]: row[4] for row in table.rows}
    assert shown["scores.masked_fill(~mask, -math.inf).softmax(-1, dtype=torch.float32)"] == expected


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


def test_all_methods_of_extrapolate_agree_within_the_trained_length_except_scaling(trained, text, tmp_path):
    directory, _ = trained
    report = run("extrapolate", model=directory, data=(str(text),), factor=4, windows=2)
    (table,) = report.tables
    assert [row[0] for row in table.rows] == [
        "rope, as it is", "position interpolation", "NTK-aware", "YaRN", "windows of 32", "sliding by 16",
    ]  # fmt: skip
    first = {row[0]: row[1] for row in table.rows}
    assert first["rope, as it is"] == first["windows of 32"] == first["sliding by 16"]
    assert first["position interpolation"] != first["rope, as it is"]
    assert table.notes[0] == f"text: 2 texts of 128 tokens from the end of {text}."
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


@pytest.mark.parametrize(
    ("topic", "settings", "message"),
    [
        ("extrapolate", {"windows": 2**62}, "are needed: give more text with --data, or fewer --windows"),
        ("extrapolate", {"factor": 2**62}, "GB are free"),
        ("endless", {"keep": -1}, "keep is -1"),
        ("attention", {"prompt": "rope " * 300}, "tokens: give 2 to 32"),
        ("cache", {"prompt": "rope " * 300}, "exceeds the context of 32"),
        ("trace", {"position": -40}, "position is -40"),
        ("trace", {"prompt": "rope " * 300}, "new tokens: give at least one token, within the 32 positions"),
    ],
)
def test_invalid_options_are_refused(trained, text, topic, settings, message):
    directory, _ = trained
    data = {} if topic in ("cache", "trace") else {"data": (str(text),)}
    with pytest.raises(ValueError, match=message) as raised:
        run(topic, model=directory, **data | settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("style", ["complex", "real", "halves"])
def test_a_model_with_right_functions_has_its_loss_and_writes_its_text(run_directory, style):
    file = Path(__file__).parents[1] / f"solutions/{style}.py"
    ours, theirs = run("check", file=file, run=run_directory, prompt="a rope").tables[1].rows
    assert (ours[1], ours[3]) == (theirs[1], theirs[3])


def test_wrong_functions_are_used_in_a_model_too(run_directory):
    right = (Path(__file__).parents[1] / "solutions/complex.py").read_text(encoding="utf-8")
    file = run_directory / "mine.py"
    file.write_text(right.replace("torch.outer(t, freqs))", "-30 * torch.outer(t, freqs))"), encoding="utf-8")
    network, _ = open_model(run_directory)
    conventions = Conventions()
    assert judge_all(Reader([file]), conventions)["precompute_freqs_cis"].outcome == "wrong"
    changed = with_functions(network, conventions)
    tokens = torch.arange(9)[None]
    assert not torch.allclose(changed(tokens), network(tokens), atol=1e-4)
    assert torch.allclose(changed(tokens)[:, 0], network(tokens)[:, 0], atol=1e-4)  # position 0 is not rotated


def test_a_function_that_does_not_fit_a_model_is_one_line(run_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "SECONDS", 0.2)
    file = tmp_path / "mine.py"
    slow = (
        "import torch\n\n\ndef causal_mask(start_pos, T):\n    while T > 20:\n        pass\n    return torch.ones(1)\n"
    )
    for text in ("def causal_mask(start_pos, T):\n    return 'x'\n", slow):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="the model does not run with your functions"):
            run("check", file=file, run=run_directory)
