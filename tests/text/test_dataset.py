"""The split is exact, documents begin and end as generated texts do, and a batch is a function of (seed, step)."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from script_helpers import run_python
from text_helpers import LLAMA2_SETTINGS, trained_by_sentencepiece

from model.text.dataset import Dataset, load_dataset, tokenize, window_start
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times;\r\n\n    it was the age of 日本.\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH * 40], tmp_path_factory.mktemp("bpe"), vocab_size=320))


class Other:
    """The tokenizer with other tokens before and after a document."""

    def __init__(self, tokenizer, eos_ids, adds_bos):
        self.tokenizer, self.eos_ids, self.adds_bos = tokenizer, eos_ids, adds_bos

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def encode(self, text, bos=True):
        return self.tokenizer.encode(text, bos=bos and self.adds_bos)


@pytest.mark.parametrize(
    ("eos_ids", "adds_bos", "start", "end"),
    [
        ((2, 1), True, [1], []),  # of a tokenizer that was trained here: BOS ends a text, too
        ((2,), True, [1], [2]),
        ((2,), False, [], [2]),
        ((1,), False, [], [1]),  # Qwen's: there is no BOS
        ((9, 2), True, [1], [9]),
        ((), True, [1], []),
        ((), False, [], [1]),
    ],
)
@pytest.mark.parametrize("adds_space", [False, True])
@pytest.mark.parametrize("split", [{}, {"val_fraction": 0.013}])
@pytest.mark.parametrize("texts", [[ENGLISH * 600], [f"document {n} it was\n\n" for n in range(100)]])
def test_the_tokens_are_those_of_the_documents_and_the_last_are_for_validation(
    tmp_path, tokenizer, eos_ids, adds_bos, start, end, adds_space, split, texts
):
    """A document begins as a prompt does, and ends with an end token. It is encoded in chunks."""
    if adds_space:
        tokenizer = SentencePieceTokenizer(trained_by_sentencepiece(tmp_path, ENGLISH, **LLAMA2_SETTINGS))
    file = write_lines(tmp_path / "a.jsonl", texts)
    tokenize(tmp_path, open_documents([file]), Other(tokenizer, eos_ids, adds_bos), **split)
    data = load_dataset(tmp_path)
    fraction = split.get("val_fraction", 0.1)
    documents = [start + tokenizer.encode(text, bos=False) + end for text in texts]
    ids = [token for document in documents for token in document]
    cut = len(data.train)
    is_between = cut in np.cumsum([len(document) for document in documents])
    context = 0 if start and is_between else 1  # from which the first token that counts is predicted
    assert data.train.tolist() == ids[:cut]
    assert data.val.tolist() == ids[cut - context :]
    assert data.train.dtype == np.uint16
    assert abs(len(ids) - cut - fraction * len(ids)) <= max(64, file.stat().st_size // 400) / 2  # half a chunk
    assert data.documents == len(texts)
    assert set(data.separators) == {*start, *end}
    targets = data.val[context:][~np.isin(data.val[context:], data.separators)]
    assert data.val_tokens == len(targets)
    if not adds_space:  # which decoding removes
        assert data.val_bytes == len(tokenizer.decode(targets.tolist()).encode())


def write_lines(path, lines):
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf-8")
    return path


def test_separate_validation_text_follows_the_training_text(tmp_path, tokenizer):
    train, val = (write_lines(tmp_path / name, [text]) for name, text in (("a.json", ENGLISH), ("b.json", "times")))
    tokenize(tmp_path, open_documents([train]), tokenizer, val_documents=open_documents([val]))
    data = load_dataset(tmp_path)
    assert data.train.tolist() == tokenizer.encode(ENGLISH)
    assert data.val.tolist() == tokenizer.encode("times")
    assert data.val_bytes == 5


def test_a_text_without_text_is_refused_and_leaves_no_file(tmp_path, tokenizer):
    (tmp_path / "text.txt").write_text("\ufeff", encoding="utf-8")
    with pytest.raises(ValueError, match="no text"):
        tokenize(tmp_path, open_documents([tmp_path / "text.txt"]), tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


MEMORY = """
import resource, sys
from pathlib import Path
from model.text.dataset import tokenize
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
for file in map(Path, sys.argv[2:]):
    tokenize(file.parent, open_documents([file]), SentencePieceTokenizer(sys.argv[1]))
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
    return Dataset(np.arange(train, dtype=np.uint16), np.arange(val, dtype=np.uint16), val, val - 1)


def test_a_batch_is_a_function_of_the_seed_and_the_windows_before_it():
    data = random_dataset()
    options = {"batch_size": 6, "context": 16}
    inputs, targets = data.batch(7, seed=1, **options)
    assert inputs.shape == targets.shape == (6, 16)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs[:, 0].tolist() == [window_start(number, 1000, 16, seed=1) for number in range(7, 13)]
    assert np.array_equal(inputs - inputs[:, :1], np.tile(np.arange(16), (6, 1)))
    assert np.array_equal(targets, inputs + 1)
    for world in (1, 2, 3, 6):
        shares = [data.batch(7, seed=1, rank=rank, world_size=world, **options)[0] for rank in range(world)]
        assert np.array_equal(np.concatenate(shares), inputs)
    with pytest.raises(ValueError, match="6 cannot be shared by 4"):
        data.batch(7, seed=1, world_size=4, **options)


@given(st.integers(2, 200), st.integers(1, 20), st.integers(0, 3))
def test_each_epoch_cuts_the_text_into_adjacent_windows(tokens, context, epoch):
    assume(tokens > context)
    windows = max(1, (tokens - 1) // context - 1)
    starts = sorted(window_start(epoch * windows + index, tokens, context, seed=3) for index in range(windows))
    assert starts == list(range(starts[0], starts[0] + windows * context, context))
    assert starts[0] >= 0
    assert starts[-1] + context < tokens


def test_the_windows_of_a_seed_never_change():
    """A resumed run must get the same batches, even after an update of numpy. Order and offset change in each epoch."""
    starts = [window_start(row, 1_000_000, 256, seed=1337) for row in (0, 1, 2, 3904, 3905, 10**9)]
    assert starts == [804873, 103433, 422153, 309001, 195547, 715571]


@given(st.integers(1, 120), st.integers(1, 12), st.integers(1, 4))
def test_validation_counts_each_target_once(length, context, batch):
    batches = list(random_dataset(val=length).val_batches(batch, context))
    assert [token for _, targets in batches for token in targets.ravel()] == list(range(1, length))
    for inputs, targets in batches:
        assert np.array_equal(targets, inputs + 1)
        assert inputs.shape[0] <= batch
        assert inputs.shape[1] <= context


def test_with_max_tokens_the_validation_windows_are_spread_over_the_text():
    def starts(max_tokens):
        batches = random_dataset(val=1001).val_batches(4, 10, max_tokens=max_tokens)
        return [row[0] for inputs, _ in batches for row in inputs]

    assert starts(200) == list(range(0, 1000, 50))
    assert starts(3) == [0]
    assert starts(9999) == list(range(0, 1000, 10))
