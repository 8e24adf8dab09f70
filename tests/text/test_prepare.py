"""The split is exact, cache entries are complete or absent, and a batch is a function of (seed, step)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import model.text.prepare as prepare_module
from model.text.dataset import Dataset, window_start
from model.text.prepare import prepare
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer

SHAKESPEARE = Path(__file__).parents[3] / "shared/data/tinyshakespeare.txt"
ENGLISH = "It was the best of times,\n\tit was the worst of times;\r\n\n    it was the age of 日本.\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH * 40], tmp_path_factory.mktemp("bpe"), vocab_size=320))


@pytest.fixture(scope="module")
def char(tmp_path_factory):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH], tmp_path_factory.mktemp("char"), kind="char"))


def prepared(tmp_path, tokenizer, text, **options):
    file = tmp_path / "text.txt"
    file.write_bytes(text.encode())
    return prepare(open_documents([file]), tokenizer, **{"context": 8, "cache_dir": tmp_path / "cache", **options})


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.013])
def test_the_split_is_by_characters(tmp_path, tokenizer, fraction):
    text = ENGLISH * 700  # several chunks
    data = prepared(tmp_path, tokenizer, text, val_fraction=fraction)
    cut = int(len(text) * (1 - fraction))
    assert tokenizer.decode(data.train.tolist()) == text[:cut]
    assert tokenizer.decode(data.val.tolist()) == text[cut:]
    assert data.val_bytes == len(text[cut:].encode())
    assert data.train.dtype == np.uint16
    for part in (data.train, data.val):
        assert part[0] == tokenizer.bos_id
        assert (part == tokenizer.bos_id).sum() == 1


def test_tokenizing_in_chunks_gives_the_tokens_of_the_whole_text(tmp_path, tokenizer):
    text = ENGLISH.replace("日本", "x") * 1000
    data = prepared(tmp_path, tokenizer, text)
    assert data.train.tolist() == tokenizer.encode(text[: int(len(text) * 0.9)])


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="needs tinyshakespeare")
def test_tinyshakespeare_is_split_as_nanogpt_splits_it(tmp_path):
    text = SHAKESPEARE.read_bytes().decode()
    tokenizer = SentencePieceTokenizer(train_tokenizer([text], tmp_path, kind="char"))
    data = prepare(open_documents([SHAKESPEARE]), tokenizer, context=64, cache_dir=tmp_path)
    assert (len(data.train) - 1, len(data.val) - 1) == (1_003_854, 111_540)
    assert tokenizer.decode(data.train.tolist()) == text[:1_003_854]


def test_each_document_begins_with_bos(tmp_path, tokenizer):
    lines = [f"document {number} it was" for number in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf-8")
    data = prepare(open_documents([tmp_path / "a.jsonl"]), tokenizer, context=8, cache_dir=tmp_path, val_fraction=0.5)
    assert data.train.tolist()[: 2 * len(tokenizer.encode(lines[0]))] == [
        *tokenizer.encode(lines[0]),
        *tokenizer.encode(lines[1]),
    ]
    both = [*data.train.tolist(), *data.val.tolist()]
    assert tokenizer.decode(both) == "".join(lines)
    assert both.count(tokenizer.bos_id) in (100, 101)  # one more where the cut goes through a document


def test_the_validation_text_may_be_a_separate_file(tmp_path, tokenizer):
    (tmp_path / "val.txt").write_text("another text", encoding="utf-8")
    data = prepared(tmp_path, tokenizer, ENGLISH, val_documents=open_documents([tmp_path / "val.txt"]))
    assert tokenizer.decode(data.train.tolist()) == ENGLISH
    assert tokenizer.decode(data.val.tolist()) == "another text"
    assert data.val_bytes == 12


def test_a_tokenizer_that_adds_a_space_adds_it_once(tmp_path):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["it was the best of times"] * 9), model_prefix=str(tmp_path / "m"), model_type="bpe",
        vocab_size=300, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(tmp_path / "m.model")
    assert tokenizer.adds_space
    text = "it was the  best of times " * 3000
    data = prepared(tmp_path, tokenizer, text)
    assert data.train.tolist() == tokenizer.encode(text[: int(len(text) * 0.9)])


def test_texts_that_are_too_short_are_refused_with_the_limits(tmp_path, char):
    """BOS and 9 characters are 10 tokens, enough for a context of 9 but not of 10."""
    assert len(prepared(tmp_path, char, "0123456789", context=9).train) == 10
    with pytest.raises(ValueError, match=r"10 tokens long, a context of 10 needs 11.*max_seq_len of at most 9"):
        prepared(tmp_path, char, "0123456789", context=10)
    with pytest.raises(ValueError, match=r"0 tokens long, a context of 8 needs 9: give more text$"):
        prepared(tmp_path, char, "x")
    with pytest.raises(ValueError, match=r"validation text is empty.*1e-17"):
        prepared(tmp_path, char, "0123456789", val_fraction=1e-17)
    for fraction in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"val_fraction .* in \(0, 1\)"):
            prepared(tmp_path, char, "0123456789", val_fraction=fraction)
    with pytest.raises(ValueError, match="no text"):
        prepared(tmp_path, char, "\ufeff")
    assert not list((tmp_path / "cache").glob(".*"))  # no temporary directories


def test_a_second_start_reuses_the_tokens_until_the_text_changes(tmp_path, tokenizer):
    first = prepared(tmp_path, tokenizer, ENGLISH)
    status = os.stat(tmp_path / "text.txt")
    before = os.stat(first.entry / "train.bin")

    again = prepare(open_documents([tmp_path / "text.txt"]), tokenizer, context=8, cache_dir=tmp_path / "cache")
    assert (again.entry, again.fingerprint) == (first.entry, first.fingerprint)
    assert np.array_equal(again.train, first.train)
    after = os.stat(again.entry / "train.bin")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # it was not tokenized again

    (tmp_path / "text.txt").write_text(ENGLISH.upper(), encoding="utf-8")
    os.utime(tmp_path / "text.txt", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    changed = prepare(open_documents([tmp_path / "text.txt"]), tokenizer, context=8, cache_dir=tmp_path / "cache")
    assert changed.entry != first.entry
    assert changed.fingerprint != first.fingerprint


def replace_text(file, text, keep_time=False):
    """Write another text of the same size, a second later or with the same modification time."""
    status = file.stat()
    file.write_text(text, encoding="utf-8")
    modified = status.st_mtime_ns if keep_time else status.st_mtime_ns + 10**9
    os.utime(file, ns=(status.st_atime_ns, modified))


@pytest.mark.parametrize("keep_time", [False, True])
@pytest.mark.parametrize("which", ["text.txt", "val.txt"])
def test_a_text_that_changes_between_its_two_readings_is_refused_and_not_cached(
    tmp_path, tokenizer, monkeypatch, which, keep_time
):
    for name in ("text.txt", "val.txt"):
        (tmp_path / name).write_text(ENGLISH, encoding="utf-8")

    def prepare_both():
        text, val = (open_documents([tmp_path / name]) for name in ("text.txt", "val.txt"))
        return prepare(text, tokenizer, context=8, cache_dir=tmp_path / "cache", val_documents=val)

    measure = prepare_module.measure

    def measure_then_change(documents):
        result = measure(documents)
        if documents.files[0].path.name == which:
            replace_text(tmp_path / which, ENGLISH.swapcase(), keep_time)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "measure", measure_then_change)
        name = "the text" if keep_time else which
        with pytest.raises(ValueError, match=rf"{name} changed while it was read: run again[^\n]*$"):
            prepare_both()
    assert not list((tmp_path / "cache").glob("tokens-*"))
    data = prepare_both()
    ids = {"text.txt": data.train, "val.txt": data.val}[which]
    assert tokenizer.decode(ids.tolist()) == ENGLISH.swapcase()


def test_a_text_that_changes_after_it_was_opened_is_not_cached(tmp_path, tokenizer, monkeypatch):
    """The cache key has the size and time from before the change."""
    file = tmp_path / "text.txt"
    file.write_text(ENGLISH, encoding="utf-8")
    measure = prepare_module.measure

    def change_then_measure(documents):
        replace_text(file, ENGLISH.swapcase())
        return measure(documents)

    monkeypatch.setattr(prepare_module, "measure", change_then_measure)
    with pytest.raises(ValueError, match=r"text\.txt changed while it was read"):
        prepare(open_documents([file]), tokenizer, context=8, cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("tokens-*"))


def test_the_fingerprint_depends_on_text_split_and_tokenizer_only(tmp_path, tokenizer, char):
    first = prepared(tmp_path, tokenizer, ENGLISH * 2).fingerprint
    assert prepared(tmp_path, char, ENGLISH * 2).fingerprint != first
    assert prepared(tmp_path, tokenizer, ENGLISH * 2, val_fraction=0.5).fingerprint != first
    assert prepared(tmp_path, tokenizer, ENGLISH * 3).fingerprint != first
    (tmp_path / "elsewhere").mkdir()
    assert prepared(tmp_path / "elsewhere", tokenizer, ENGLISH * 2).fingerprint == first


def test_a_damaged_or_unfinished_cache_entry_is_made_again(tmp_path, tokenizer, monkeypatch):
    expected = prepared(tmp_path, tokenizer, ENGLISH).train.tolist()
    (folder,) = (tmp_path / "cache").glob("tokens-*")
    text = open_documents([tmp_path / "text.txt"])
    meta = (folder / "meta.json").read_bytes()
    damages = [("train.bin", b"xx"), ("meta.json", b'{"dtype": '), ("meta.json", meta.replace(b"uint16", b"uint1x"))]
    for file, damaged in damages:
        (folder / file).write_bytes(damaged)
        assert prepare(text, tokenizer, context=8, cache_dir=folder.parent).train.tolist() == expected

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "encode_batch", fail)
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path, tokenizer, ENGLISH * 2)
    assert list((tmp_path / "cache").glob("[!l]*")) == [folder]


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
    command = [sys.executable, "-c", MEMORY, tokenizer.path, tmp_path / "small", tmp_path / "large"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, encoding="utf-8"
    )
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
