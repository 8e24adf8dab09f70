"""evaluate.py: the windows of a text, its loss beside transformers', and which text and documents it scores."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from script_helpers import save_run
from text_helpers import trained_by_sentencepiece

import evaluate
import train
from model import ModelArgs, Transformer
from model.decoding.scoring import TOKENS_AT_ONCE, Score, document_texts, sum_of_nats, windows
from model.text.dataset import UNCOUNTED, load_dataset
from model.text.sources import open_documents
from model.weights import load_model, load_tokenizer, save_model

TEXT = "The rope was laid along the lane, and the lane was long. " * 9
CONTEXT = 13
TRAINING = {"tokenizer": "char", "dim": 24, "n_layers": 1, "n_heads": 3, "max_seq_len": CONTEXT, "batch_size": 2}
TRAINING |= {"max_steps": 1, "lr": 1e-9, "dropout": 0.5, "sample_every": 0, "dtype": "float32", "out_dir": "run"}


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")


@pytest.fixture
def run_dir():
    args = {"dim": 24, "n_layers": 2, "n_heads": 3, "n_kv_heads": 1, "vocab_size": 300, "max_seq_len": CONTEXT}
    save_run(Path("run").absolute(), TEXT, scale=5, **args)  # a sharp distribution, so that errors show in the loss
    return Path("run")


@pytest.fixture
def run(start):
    """``run(*arguments)`` -> (exit code, stdout, stderr) of evaluate.py on the model in the folder."""
    return lambda *arguments: start(evaluate, "run", *arguments)


@pytest.fixture
def trained(start):
    """``trained("text.txt", ...)`` is a run of train.py on these files."""
    return lambda *arguments: start(train, *arguments, *(f"--{name}={value}" for name, value in TRAINING.items()))


@given(st.integers(2, 60), st.integers(1, CONTEXT))
def test_each_token_but_the_first_is_scored_once_with_at_least_context_minus_stride_tokens(length, stride):
    tokens = np.arange(length)
    seen = []
    for inputs, targets in windows(tokens, CONTEXT, stride):
        assert inputs.shape == targets.shape == (1, inputs.size)
        assert inputs.size <= CONTEXT
        scored = targets[targets != UNCOUNTED].tolist()
        seen += scored
        for token in scored:
            assert targets[0, inputs[0] == token - 1] == token
            assert token - inputs[0, 0] >= min(token, CONTEXT - stride + 1)
    assert seen == tokens[1:].tolist()


def test_a_batch_is_scored_in_chunks_of_a_bounded_number_of_tokens(small_model):
    rows = TOKENS_AT_ONCE // 3
    model, tokens, chunks = small_model().eval(), torch.randint(37, (rows, 25)), []
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, 20:] = UNCOUNTED
    expected = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    model.tok_embeddings.register_forward_hook(lambda _, inputs, out: chunks.append(inputs[0].shape))
    assert sum_of_nats(model, inputs.numpy(), targets.numpy()) == pytest.approx(expected.item(), rel=1e-5)
    assert chunks == [(rows, 3)] * 8


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("stride", [3, 7, None])
def test_the_loss_equals_that_of_transformers_on_the_same_windows(run_dir, run, transformers, stride):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run_dir, dtype=torch.float32).eval()
    tokens = np.array(load_tokenizer(run_dir).encode(TEXT))
    total, count = 0.0, len(tokens) - 1
    for inputs, targets in windows(tokens, CONTEXT, stride or CONTEXT):
        with torch.no_grad():
            logits = theirs(torch.from_numpy(inputs)).logits[0]
        total += torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets[0]), reduction="sum").item()
    arguments = [] if stride is None else ["--stride", stride]
    code, out, _ = run("--data", "text.txt", "--json", *arguments, "--dtype", "float32")
    assert code == 0
    ours = json.loads(out.splitlines()[-1])
    assert ours["tokens"] == count
    assert ours["nats_per_token"] == pytest.approx(total / count, abs=1e-4)
    assert ours["bits_per_byte"] == pytest.approx(total / math.log(2) / len(TEXT.encode()), abs=1e-4)
    assert ours["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


@pytest.mark.parametrize("has_bos", [True, False])
def test_a_document_has_its_own_tokens_and_bytes(run_dir, monkeypatch, has_bos):
    """Also one that is read in many chunks. An empty text is no document. Without BOS it follows the end token."""
    texts = ["A rope.", "", TEXT * 100, "x", TEXT[100:260]]
    Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    tokenizer = load_tokenizer(run_dir)
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, bos=True: encode(text, bos and has_bos))
    found = []
    for score, batches in document_texts(open_documents(["texts.jsonl"]), tokenizer, 10**6, 10**6):
        ((inputs, targets),) = batches
        found.append((tokenizer.decode(targets[0].tolist()), int(inputs[0, 0]), score.bytes))
    first = tokenizer.bos_id if has_bos else tokenizer.eos_ids[0]
    assert found == [(text, first, len(text)) for text in texts if text]


@pytest.mark.usefixtures("run_dir")
def test_each_document_and_the_total_are_shown(run):
    Path("a").mkdir()
    Path("a/a.txt").write_text(TEXT[:60], encoding="utf-8")
    content = "".join(json.dumps({"text": TEXT[:n]}) + "\n" for n in (50, 90))
    Path("a/b.jsonl").write_text(content, encoding="utf-8")
    arguments = ("--data", "a")
    *lines, total = map(json.loads, run(*arguments, "--json", "--documents").out.splitlines())
    assert [json.loads(line) for line in run(*arguments, "--json").out.splitlines()] == [total]
    assert [{*line} for line in lines] == [{*total}] * 3
    names = [str(Path("a", name)) for name in ("a.txt", "b.jsonl", "b.jsonl")]
    assert [(line["text"], line["document"]) for line in lines] == [*zip(names, (1, 2, 3))]
    assert [line["bytes"] for line in lines] == [60, 50, 90]
    assert (total["text"], total["document"], total["bytes"]) == ("3 documents", None, 200)
    assert total["tokens"] == sum(line["tokens"] for line in lines)
    mean = sum(line["nats_per_token"] * line["tokens"] for line in lines) / total["tokens"]
    assert total["nats_per_token"] == pytest.approx(mean)
    shown = dict(re.split("  +", line) for line in run(*arguments).out.replace("token ", "token  ").splitlines())
    assert shown == {
        "text": "3 documents",
        "nats per token": f"{total['nats_per_token']:.4f}",
        "perplexity": f"{total['perplexity']:,.4f}",
        "bits per byte": f"{total['bits_per_byte']:.4f}",
        "tokens": str(total["tokens"]),
        "bytes": "200",
    }


@pytest.mark.parametrize("empty", [[" \n "], [" \n ", "\t", "  "]])
def test_a_document_without_a_token_has_no_means_and_the_others_are_scored(tmp_path, run_dir, run, empty):
    """SentencePiece's defaults remove white space at both ends of a text."""
    file = trained_by_sentencepiece(tmp_path / "lossy", TEXT, vocab_size=300)
    arguments = ["--tokenizer", file, "--data", "texts.jsonl"]
    args = {"dim": 24, "n_layers": 2, "n_heads": 3, "vocab_size": load_tokenizer(file).vocab_size, "max_seq_len": 13}
    save_model(Transformer(ModelArgs(**args)), run_dir)
    rows = [{"text": text} for text in ("The rope.", *empty)]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, out, _ = run(*arguments, "--json", "--documents")
    assert code == 0
    first, *others, total = map(json.loads, out.splitlines())
    for other, text in zip(others, empty, strict=True):
        assert (other["tokens"], other["bytes"]) == (0, len(text))
        assert other["nats_per_token"] is other["perplexity"] is other["bits_per_byte"] is None
    assert total["nats_per_token"] == first["nats_per_token"]
    assert total["bytes"] == 9 + sum(map(len, empty))
    code, out, _ = run(*arguments)
    assert code == 0
    assert f"{first['nats_per_token']:.4f}" in out
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows[1:])), encoding="utf-8")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "there is no text to score" in err


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("val", [["--val_fraction", 0.3], ["--val_data", "end.txt"]])
def test_without_data_the_score_is_that_of_the_run(trained, run, val):
    """In which dropout has no effect."""
    for name, end in (("documents.txt", 480), ("end.txt", 150)):
        Path(name).write_text(f"{TEXT[:end]}%{TEXT[end:]}%{TEXT[:80]}%{TEXT[:41]}", encoding="utf-8")
    trained("documents.txt", "--doc_separator", "%", *val)
    Path("documents.txt").unlink()  # the run directory has its tokens
    code, out, err = run("--json")
    assert code == 0
    assert "tok/s" not in err, "no progress bar is written to a pipe"
    scored = "all of end.txt" if "end.txt" in val else r"the last [\d.]+% of each document of documents\.txt"
    assert re.search(f"note: scoring {scored}, the run's validation text\n", err)
    for flag in (["--doc_separator", ""], ["--text_key", "body"], ["--stride", 3], ["--tokenizer", "run"]):
        assert f"{flag[0].strip('-')} cannot be used with the run's validation text: add --data" in run(*flag).err
    found, metrics = json.loads(out), json.loads(Path("run/metrics.jsonl").read_bytes())
    assert found["nats_per_token"] == pytest.approx(metrics["val_loss"], rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(metrics["val_bits_per_byte"], rel=1e-5)
    dataset = load_dataset(Path("run"))
    assert (found["tokens"], found["bytes"]) == (dataset.val_tokens, dataset.val_bytes)
    assert "text           validation text\n" in run().out
    assert "whole is for the run's validation text" in run("--whole", "--data", "text.txt").err


TINY_STORIES = Path(__file__).parents[2].parent / "shared/models/TinyStories-656K"


@pytest.mark.skipif(not TINY_STORIES.exists(), reason="needs the published model")
def test_a_published_model_gives_the_loss_of_transformers_for_each_document_in_a_file_of_any_size(start):
    expected = json.loads((TINY_STORIES / "expected.json").read_text(encoding="utf-8"))
    rows = [json.dumps({"text": each["text"]}) for each in expected["documents"]]
    losses = [each["nats"] / (len(each["ids"]) - 1) for each in expected["documents"]]
    Path("all.jsonl").write_text("\n".join([*rows, *['{"text": "A rope."}'] * 500]), encoding="utf-8")
    Path("one.jsonl").write_text(rows[3], encoding="utf-8")
    *found, _ = start(evaluate, TINY_STORIES, "--json", "--documents", "--data", "all.jsonl").out.splitlines()
    assert [json.loads(line)["nats_per_token"] for line in found[:32]] == pytest.approx(losses, abs=1e-4)
    alone = json.loads(start(evaluate, TINY_STORIES, "--json", "--data", "one.jsonl").out)
    assert alone["nats_per_token"] == pytest.approx(losses[3], abs=1e-4)
    total = sum(json.loads(line)["nats_per_token"] * json.loads(line)["tokens"] for line in found[:32])
    assert total / sum(json.loads(line)["tokens"] for line in found[:32]) == pytest.approx(6.372, abs=1e-3)


def test_the_separator_is_that_of_the_flag_or_of_the_run_or_recognized(trained, run, run_dir):
    Path("a.txt").write_text("\n<|endoftext|>\n".join([TEXT] * 6), encoding="utf-8")
    _, out, err = run("--data", "a.txt")
    assert "6 documents" in out
    assert "note: documents are separated by <|endoftext|>; to score it as text: --doc_separator ''" in err
    run_dir.rename("model")
    trained("text.txt")
    assert "text           a.txt\n" in run("--data", "a.txt").out
    assert "6 documents" in run("--data", "a.txt", "--doc_separator", "<|endoftext|>").out


def test_a_perplexity_does_not_overflow():
    for nats, perplexity in ((2.0, math.exp(2)), (800.0, math.exp(700))):
        assert Score("a", 1, 1, nats).figures()["perplexity"] == perplexity


@pytest.mark.usefixtures("each_processor")
def test_a_loss_that_is_not_finite_is_an_error(run_dir, run):
    model = load_model(run_dir)
    with torch.no_grad():
        model.norm.weight.fill_(3e38)  # the logits overflow
    save_model(model, run_dir)
    code, out, err = run("--data", "text.txt")
    assert (code, out) == (2, "")
    assert re.search("error: the loss is (nan|inf): ", err)
