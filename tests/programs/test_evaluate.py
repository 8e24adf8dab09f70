import json
import math
import re

import numpy as np
import pytest
import torch
from script_helpers import run_in_process, save_run

import evaluate
from model.decoding.scoring import Score, document_texts, windows
from model.text.dataset import UNCOUNTED
from model.text.prepare import load_dataset, tokenize
from model.text.sources import open_documents
from model.training.config import TrainArgs
from model.training.distributed import Ranks
from model.training.evaluation import bits_per_byte, validation_loss
from model.training.loss import NextTokenLoss
from model.weights import load_model, load_tokenizer, save_model

TEXT = "The rope was laid along the lane, and the lane was long. " * 9
CONTEXT = 13


@pytest.fixture
def run_dir(tmp_path):
    args = {"dim": 24, "n_layers": 2, "n_heads": 3, "n_kv_heads": 1, "vocab_size": 300, "max_seq_len": CONTEXT}
    save_run(tmp_path / "run", TEXT, scale=5, **args)  # a sharp distribution, so that errors show in the loss
    return tmp_path / "run"


@pytest.fixture
def run(run_dir, capsys):
    """``run(*arguments)`` -> (exit code, stdout, stderr) of evaluate.py on the small run."""

    def call(*arguments):
        return (run_in_process(evaluate.main, "evaluate.py", run_dir, *arguments), *capsys.readouterr())

    return call


@pytest.mark.parametrize("length", [2, 5, CONTEXT, CONTEXT + 1, CONTEXT + 2, 50, 53])
@pytest.mark.parametrize("stride", [1, 4, 12, CONTEXT])
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


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("stride", [3, 7, None])
def test_the_loss_equals_that_of_transformers_on_the_same_windows(run_dir, tmp_path, run, stride):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run_dir, dtype=torch.float32).eval()
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    tokens = np.array(load_tokenizer(run_dir).encode(TEXT))
    total, count = 0.0, len(tokens) - 1
    for inputs, targets in windows(tokens, CONTEXT, stride or CONTEXT):
        with torch.no_grad():
            logits = theirs(torch.from_numpy(inputs)).logits[0]
        total += torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets[0]), reduction="sum").item()
    arguments = [] if stride is None else ["--stride", stride]
    code, out, _ = run("--data", tmp_path / "text.txt", "--json", *arguments, "--dtype", "float32")
    assert code == 0
    ours = json.loads(out.splitlines()[-1])
    assert ours["tokens"] == count
    assert ours["nats_per_token"] == pytest.approx(total / count, abs=1e-4)
    assert ours["bits_per_byte"] == pytest.approx(total / math.log(2) / len(TEXT.encode()), abs=1e-4)
    assert ours["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


@pytest.mark.parametrize("has_bos", [True, False])
def test_a_document_has_its_own_tokens_and_bytes(run_dir, tmp_path, monkeypatch, has_bos):
    """Also one that is read in many chunks. An empty text is no document. Without BOS it follows the end token."""
    texts = ["A rope.", "", TEXT * 100, "x", TEXT[100:260]]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    tokenizer = load_tokenizer(run_dir)
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, bos=True: encode(text, bos and has_bos))
    found = []
    for score, batches in document_texts(open_documents([file]), tokenizer, 10**6, 10**6):
        ((inputs, targets),) = batches
        found.append((tokenizer.decode(targets[0].tolist()), int(inputs[0, 0]), score.bytes))
    first = tokenizer.bos_id if has_bos else tokenizer.eos_ids[0]
    assert found == [(text, first, len(text)) for text in texts if text]


def test_each_document_and_the_total_are_shown(run, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT[:60], encoding="utf-8")
    content = "".join(json.dumps({"text": TEXT[:n]}) + "\n" for n in (50, 90))
    (tmp_path / "b.jsonl").write_text(content, encoding="utf-8")
    (tmp_path / "c.md").write_text("not selected", encoding="utf-8")
    arguments = ("--data", tmp_path, "--glob", "*.txt", "*.jsonl")
    *lines, total = map(json.loads, run(*arguments, "--json")[1].splitlines())
    names = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "b.jsonl")]
    assert [(line["file"], line["document"]) for line in lines] == [*zip(names, (1, 2, 3))]
    assert [line["bytes"] for line in lines] == [60, 50, 90]
    assert (total["text"], total["bytes"]) == ("3 documents", 200)
    assert total["tokens"] == sum(line["tokens"] for line in lines)
    mean = sum(line["nats_per_token"] * line["tokens"] for line in lines) / total["tokens"]
    assert total["nats_per_token"] == pytest.approx(mean)
    table = run(*arguments)[1]
    for shown in (f"{total['nats_per_token']:.4f}", f"{total['bits_per_byte']:.4f}", "200  3 documents\n"):
        assert shown in table


@pytest.fixture
def settings(run_dir, tmp_path, monkeypatch):
    """``settings(data, ...)`` makes the model a run that was trained on this text."""
    monkeypatch.chdir(tmp_path)

    def write(*data, doc_separator="", val_data=None, val_fraction=0.1):
        text = f"data = {json.dumps(data)}\ndoc_separator = {json.dumps(doc_separator)}\n"
        text += f"val_data = {json.dumps([val_data])}\n" if val_data else ""
        (run_dir / "config.toml").write_text(text, encoding="utf-8")
        documents, val = (
            open_documents(names, doc_separator=doc_separator) if all(names) else None for names in (data, [val_data])
        )
        tokenizer = load_tokenizer(run_dir)
        tokenize(run_dir, documents, tokenizer, val_fraction=val_fraction, val_documents=val)

    return write


@pytest.mark.usefixtures("each_processor")
def test_without_data_the_validation_text_of_the_run_is_scored(run, settings, tmp_path):
    documents = [TEXT[:480], TEXT[480:], TEXT[:80], TEXT[:41]]
    (tmp_path / "text.txt").write_text("%".join(documents), encoding="utf-8")
    settings("text.txt", val_fraction=0.3, doc_separator="%")
    (tmp_path / "text.txt").unlink()  # the run directory has its tokens
    code, out, err = run("--json")
    assert code == 0
    assert "tok/s" not in err, "no progress bar is written to a pipe"
    assert re.search(r"note: scoring the last [\d.]+% of text\.txt, the run's validation text", err)
    found = json.loads(out)
    dataset = load_dataset(tmp_path / "run")
    loss = NextTokenLoss(load_model(tmp_path / "run"))
    trained = validation_loss(loss, dataset, TrainArgs(eval_tokens=10**9), CONTEXT, Ranks())
    assert found["nats_per_token"] == pytest.approx(trained, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(bits_per_byte(trained, dataset), rel=1e-5)
    assert (found["tokens"], found["bytes"]) == (dataset.val_tokens, dataset.val_bytes)
    assert "validation text\n" in run()[1]


def test_the_named_validation_text_of_the_run_is_scored(run, settings, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "end.txt").write_text(TEXT[:150], encoding="utf-8")
    settings("text.txt", val_data="end.txt")
    found = json.loads(run("--json")[1])
    given = json.loads(run("--data", "end.txt", "--json")[1].splitlines()[-1])
    assert (found["tokens"], found["bytes"]) == (given["tokens"], given["bytes"])
    assert found["nats_per_token"] == pytest.approx(given["nats_per_token"], rel=1e-4)


def test_scoring_training_text_prints_a_note(run, settings, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    settings("a.txt")
    assert "was trained on 1 of 2 files to score" in run("--data", "b.txt", tmp_path / "a.txt")[2]
    assert run("--data", "b.txt")[2] == ""
    (tmp_path / "run" / "tokens.json").write_text("{", encoding="utf-8")
    assert run("--data", "a.txt")[2] == "", "the training text is not known"


def test_the_separator_is_that_of_the_flag_or_of_the_run_or_recognized(run, settings, tmp_path):
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join([TEXT] * 6), encoding="utf-8")
    _, out, err = run("--data", "a.txt")
    assert "6 documents" in out
    assert "note: documents are separated by <|endoftext|>; to score it as text: --doc_separator ''" in err
    (tmp_path / "b.txt").write_text(TEXT, encoding="utf-8")
    settings("b.txt")
    assert "  a.txt\n" in run("--data", "a.txt")[1]
    assert "6 documents" in run("--data", "a.txt", "--doc_separator", "<|endoftext|>")[1]


def test_a_directory_without_a_text_is_told_to_name_one(run, run_dir, tmp_path):
    assert "is not a run of train.py" in run()[2]
    (run_dir / "config.toml").write_text('data = "a.txt"\n', encoding="utf-8")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert re.search("error: .*tokens.json is missing: ", err)


def test_a_perplexity_does_not_overflow():
    for nats, perplexity in ((2.0, math.exp(2)), (800.0, math.exp(700))):
        assert Score("a", 1, 1, nats).figures()["perplexity"] == perplexity


@pytest.mark.usefixtures("each_processor")
def test_a_loss_that_is_not_finite_is_an_error(run_dir, tmp_path, run):
    model = load_model(run_dir)
    with torch.no_grad():
        model.norm.weight.fill_(3e38)  # the logits overflow
    save_model(model, run_dir)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    code, out, err = run("--data", tmp_path / "text.txt")
    assert (code, out) == (2, "")
    assert re.search("error: the loss is (nan|inf): ", err)
