"""The split is exact, cache entries are complete or absent, and a batch is a function of (seed, step)."""

import json
import os

import numpy as np
import pytest
from script_helpers import run_python
from text_helpers import LLAMA2_SETTINGS, trained_by_sentencepiece

from model.text.dataset import Dataset, window_start
from model.text.prepare import changed_since, prepare
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times;\r\n\n    it was the age of 日本.\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH * 40], tmp_path_factory.mktemp("bpe"), vocab_size=320))


@pytest.fixture(scope="module")
def char(tmp_path_factory):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH], tmp_path_factory.mktemp("char"), kind="char"))


def prepared(tmp_path, tokenizer, text=None, **options):
    """The tokens of a new text or, without one, of the same file again."""
    file = tmp_path / "text.txt"
    if text is not None:
        file.write_bytes(text.encode())
    return prepare(open_documents([file]), tokenizer, **{"context": 8, "cache_dir": tmp_path / "cache", **options})


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.013])
@pytest.mark.parametrize("times", [5, 700])
def test_the_validation_text_is_the_end_of_the_tokens(tmp_path, tokenizer, fraction, times):
    text = ENGLISH * times
    data = prepared(tmp_path, tokenizer, text, val_fraction=fraction)
    assert data.val[0] == data.train[-1], "the context of the first token that counts"
    ids = [*data.train.tolist(), *data.val[1:].tolist()]
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1
    assert tokenizer.decode(ids) == text
    assert data.val_bytes == len(tokenizer.decode(data.val[1:].tolist()).encode())
    assert data.train.dtype == np.uint16
    moved = len(data.val) - 1 - fraction * len(ids)
    assert abs(moved) <= max(64, len(text) // 400) / 2  # tokens: at most half a chunk


@pytest.mark.parametrize("adds_space", [False, True])
def test_tokenizing_in_chunks_gives_the_tokens_of_the_whole_text(tmp_path, tokenizer, adds_space):
    if adds_space:
        tokenizer = SentencePieceTokenizer(trained_by_sentencepiece(tmp_path, ENGLISH, **LLAMA2_SETTINGS))
        assert tokenizer.adds_space
    text = ENGLISH.replace("日本", "x") * 1000
    data = prepared(tmp_path, tokenizer, text)
    assert [*data.train.tolist(), *data.val[1:].tolist()] == tokenizer.encode(text)


def test_each_document_begins_with_bos(tmp_path, tokenizer):
    lines = [f"document {number} it was" for number in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf-8")
    data = prepare(open_documents([tmp_path / "a.jsonl"]), tokenizer, context=8, cache_dir=tmp_path, val_fraction=0.5)
    assert data.train.tolist() == [token for line in lines[:50] for token in tokenizer.encode(line)]
    assert data.val.tolist() == [token for line in lines[50:] for token in tokenizer.encode(line)]


def test_texts_that_are_too_short_are_refused_with_the_limits(tmp_path, char):
    """BOS and 64 characters are a chunk of 65 tokens, enough for a context of 64 but not of 65."""
    text = "0123456789abcdef" * 8
    assert len(prepared(tmp_path, char, text, context=64).train) == 65
    with pytest.raises(ValueError, match=r"65 tokens long, a context of 65 needs 66: .* smaller max_seq_len$"):
        prepared(tmp_path, char, text, context=65)
    with pytest.raises(ValueError, match=r"validation text is empty.*0\.1"):
        prepared(tmp_path, char, "0123456789")
    with pytest.raises(ValueError, match="no text"):
        prepared(tmp_path, char, "\ufeff")
    assert not list((tmp_path / "cache").glob(".*.tmp"))


def test_a_second_start_reuses_the_tokens_until_the_text_changes(tmp_path, tokenizer, monkeypatch):
    first = prepared(tmp_path, tokenizer, ENGLISH * 9)
    os.utime(tmp_path / "text.txt", ns=(0, 0))
    assert changed_since(first) == []
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "encode_batch", None)  # nothing is tokenized again
        same, another_split = prepared(tmp_path, tokenizer), prepared(tmp_path, tokenizer, val_fraction=0.5)
    assert same.entry == another_split.entry == first.entry
    assert np.array_equal(same.train, first.train)
    assert not np.array_equal(another_split.train, first.train)
    assert same.fingerprint == first.fingerprint != another_split.fingerprint

    size = (tmp_path / "text.txt").stat().st_size
    (tmp_path / "text.txt").write_bytes((ENGLISH.upper() * 9).encode())
    os.utime(tmp_path / "text.txt", ns=(0, 0))
    assert (tmp_path / "text.txt").stat().st_size == size
    changed = prepared(tmp_path, tokenizer)
    assert changed.entry != first.entry
    assert changed.fingerprint != first.fingerprint


@pytest.mark.parametrize("which", ["text.txt", "val.txt"])
def test_a_text_that_changes_while_it_is_tokenized_is_refused_and_not_cached(tmp_path, tokenizer, monkeypatch, which):
    for name in ("text.txt", "val.txt"):
        (tmp_path / name).write_text(ENGLISH, encoding="utf-8")

    def prepare_both():
        text, val = (open_documents([tmp_path / name]) for name in ("text.txt", "val.txt"))
        return prepare(text, tokenizer, context=8, cache_dir=tmp_path / "cache", val_documents=val)

    def change_then_encode(texts, threads):
        with (tmp_path / which).open("a", encoding="utf-8") as file:
            file.write("more")
        return encode(texts, threads)

    encode = tokenizer.encode_batch
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "encode_batch", change_then_encode)
        with pytest.raises(ValueError, match=rf"{which} changed while it was read: run again[^\n]*$"):
            prepare_both()
    assert not list((tmp_path / "cache").glob("tokens-*"))
    data = prepare_both()
    texts = [(tmp_path / name).read_bytes() for name in ("text.txt", "val.txt")]
    assert [tokenizer.decode(ids.tolist()).encode() for ids in (data.train, data.val)] == texts
    assert data.val_bytes == len(texts[1])


def test_files_that_changed_since_they_were_tokenized_are_named(tmp_path, tokenizer):
    names = ("a.txt", "b.txt", "c.txt", "d.txt")
    for name in names:
        (tmp_path / name).write_text(ENGLISH, encoding="utf-8")
    text = open_documents([tmp_path / name for name in names])
    data = prepare(text, tokenizer, context=8, cache_dir=tmp_path / "cache")
    assert changed_since(data) == []
    (tmp_path / "a.txt").write_text(ENGLISH * 2, encoding="utf-8")
    (tmp_path / "b.txt").write_text("", encoding="utf-8")
    (tmp_path / "c.txt").unlink()
    assert changed_since(data) == [str(tmp_path / name) for name in names[:3]]


def test_the_fingerprint_depends_on_text_and_tokenizer_but_not_on_the_path(tmp_path, tokenizer, char):
    first = prepared(tmp_path, tokenizer, ENGLISH * 2).fingerprint
    assert prepared(tmp_path, char, ENGLISH * 2).fingerprint != first
    assert prepared(tmp_path, tokenizer, ENGLISH * 3).fingerprint != first
    (tmp_path / "elsewhere").mkdir()
    assert prepared(tmp_path / "elsewhere", tokenizer, ENGLISH * 2).fingerprint == first


@pytest.mark.parametrize(
    ("file", "damaged"), [("tokens.bin", b"xx"), ("chunks.bin", b""), ("meta.json", b'{"dtype": '), ("meta.json", None)]
)
def test_a_damaged_cache_entry_is_made_again(tmp_path, tokenizer, file, damaged):
    first = prepared(tmp_path, tokenizer, ENGLISH * 9)
    content = (first.entry / file).read_bytes()
    (first.entry / file).unlink()
    if damaged is not None:
        (first.entry / file).write_bytes(damaged)
    prepared(tmp_path, tokenizer)
    assert (first.entry / file).read_bytes() == content


MEMORY = """
import resource, sys
from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
for file in sys.argv[2:]:
    prepare(open_documents([file]), SentencePieceTokenizer(sys.argv[1]), context=8, cache_dir=file + ".cache")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10))
"""


def test_memory_does_not_grow_with_the_text(tmp_path, tokenizer):
    pytest.importorskip("resource")
    for name, count in (("small", 50_000), ("large", 500_000)):  # 1.3 and 13 MB: 2.5 million tokens and more
        (tmp_path / name).write_text("It was the best of times, " * count, encoding="utf-8")
    done = run_python("-c", MEMORY, tokenizer.path, tmp_path / "small", tmp_path / "large", check=True)
    small, large = map(int, done.stdout.split())
    assert large < small + 30  # MB; a list of the ids of the large text would take over 100


def random_dataset(train=1000, val=100):
    return Dataset(np.arange(train, dtype=np.uint16), np.arange(val, dtype=np.uint16), val, "")


def test_a_batch_is_a_function_of_seed_and_step():
    data = random_dataset()
    options = {"batch_size": 6, "context": 16}
    inputs, targets = data.batch(7, seed=1, **options)
    assert inputs.shape == targets.shape == (6, 16)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert np.array_equal(targets, inputs + 1)
    data.batch(8, seed=1, **options)
    assert np.array_equal(data.batch(7, seed=1, **options)[0], inputs)
    assert not np.array_equal(data.batch(8, seed=1, **options)[0], inputs)
    assert not np.array_equal(data.batch(7, seed=2, **options)[0], inputs)
    for world in (1, 2, 3, 6):
        shares = [data.batch(7, seed=1, rank=rank, world_size=world, **options)[0] for rank in range(world)]
        assert np.array_equal(np.concatenate(shares), inputs)
    with pytest.raises(ValueError, match="6 cannot be shared by 4"):
        data.batch(7, seed=1, world_size=4, **options)


def test_each_window_comes_once_per_epoch():
    windows = 61  # of 16 tokens in 1000; the remaining tokens allow another offset in each epoch
    epochs = [[window_start(epoch * windows + index, 1000, 16, seed=3) for index in range(windows)] for epoch in (0, 1)]
    for starts in epochs:
        assert sorted(starts) == list(range(min(starts), max(starts) + 1, 16))
        assert starts != sorted(starts)
    assert min(epochs[0]) != min(epochs[1])
    order = [[start // 16 for start in starts] for starts in epochs]
    assert order[0] != order[1]


def test_windows_reach_every_token_and_never_pass_the_end():
    for tokens in (17, 18, 33, 40, 200):  # 17: exactly one window and its last target
        starts = {window_start(row, tokens, 16, seed=1) for row in range(5000)}
        assert starts <= set(range(tokens - 16))
        assert (min(starts), max(starts)) == (0, tokens - 17)
    inputs, targets = random_dataset(train=17).batch(0, batch_size=4, context=16, seed=0)
    assert (inputs[:, 0] == 0).all()
    assert (targets[:, -1] == 16).all()


def test_the_windows_of_a_seed_never_change():
    """A resumed run must get the same batches, even after an update of numpy."""
    starts = [window_start(row, 1_000_000, 256, seed=1337) for row in (0, 1, 2, 3904, 3905, 10**9)]
    assert starts == [804873, 103433, 422153, 309001, 195547, 715571]


@pytest.mark.parametrize(
    ("length", "context", "batch"), [(100, 9, 4), (100, 10, 3), (5, 10, 2), (11, 10, 2), (2, 1, 1)]
)
def test_validation_counts_each_target_once(length, context, batch):
    batches = list(random_dataset(val=length).val_batches(batch, context))
    assert np.concatenate([targets.ravel() for _, targets in batches]).tolist() == list(range(1, length))
    for inputs, targets in batches:
        assert np.array_equal(targets, inputs + 1)
        assert inputs.shape[0] <= batch
        assert inputs.shape[1] <= context


def test_with_max_tokens_the_validation_windows_are_spread_over_the_text():
    data = random_dataset(val=1001)
    starts = [row[0] for inputs, _ in data.val_batches(4, 10, max_tokens=200) for row in inputs]
    assert starts == list(range(0, 1000, 50))
    assert sum(targets.size for _, targets in data.val_batches(4, 10, max_tokens=3)) == 10
    assert sum(targets.size for _, targets in data.val_batches(4, 10, max_tokens=9999)) == 1000
