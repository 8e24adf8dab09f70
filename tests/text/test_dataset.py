"""The split is exact, documents begin and end as generated texts do, and a batch is a function of (seed, step)."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from script_helpers import run_python
from sentencepiece import SentencePieceProcessor
from text_helpers import LLAMA2_SETTINGS, TEXT, llama3_tokenizer, trained_by_sentencepiece

from model.text import dataset
from model.text.dataset import UNCOUNTED, Conversations, Dataset, load_dataset, window_start
from model.text.hf_tokenizer import HFTokenizer
from model.text.readers import PART
from model.text.sources import open_documents
from model.text.tokenize import encode_documents, tokenize
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


def documents_of(data):
    """The training and the validation text, as lists of ids."""
    return data.train.tolist(), data.val.tolist()


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
@pytest.mark.parametrize("fraction", [0.1, 0.013])
@pytest.mark.parametrize(
    "texts", [[ENGLISH * 200], [ENGLISH * 90] * 3, [f"document {n} it was\n\n" for n in range(200)]]
)
def test_the_tokens_are_those_of_whole_documents_of_which_some_or_their_ends_are_for_validation(
    tmp_path, tokenizer, eos_ids, adds_bos, start, end, adds_space, fraction, texts
):
    """A document begins as a prompt does, and ends with an end token. The ends of long documents are for validation."""
    if adds_space:
        tokenizer = SentencePieceTokenizer(trained_by_sentencepiece(tmp_path, ENGLISH, **LLAMA2_SETTINGS))
    file = write_lines(tmp_path / "a.jsonl", texts)
    tokenize(tmp_path, open_documents([file]), Other(tokenizer, eos_ids, adds_bos), fraction)
    data = load_dataset(tmp_path)
    documents = [start + tokenizer.encode(text, bos=False) + end for text in texts]
    train, val = [], []
    for number, document in enumerate(documents, 1):
        is_chosen = int(number * fraction + 1e-9) > int((number - 1) * fraction + 1e-9)
        is_long = len(document) > 0.02 * sum(map(len, documents))
        tail = round(fraction * len(document)) if is_long else len(document) * is_chosen
        train += document[: len(document) - tail]
        val += document[len(document) - tail :]
    assert documents_of(data) == (train, val)
    assert data.train.dtype == np.uint16
    assert data.documents == len(texts)
    assert set(data.separators) == {*start, *end}
    counted = [token for token in val[1:] if token not in data.separators]
    assert data.val_tokens == len(counted)
    if not adds_space and end != [9]:  # decoding removes the space, and 9 is no end token of this tokenizer
        assert data.val_bytes == len(tokenizer.decode(counted).encode())


def test_a_very_long_document_among_short_ones_is_divided_and_of_the_short_ones_some_are_for_validation(
    tmp_path, tokenizer
):
    """So that neither it alone nor none of it is what is measured."""
    texts = [ENGLISH * 400, *(f"document {n}" for n in range(50))]
    tokenize(tmp_path, open_documents([write_lines(tmp_path / "a.jsonl", texts)]), tokenizer)
    data = load_dataset(tmp_path)
    assert data.validation == "5 of 51 documents, and the last 10.0% of the 1 longest,"
    long = tokenizer.encode(texts[0])
    expected = long[-round(0.1 * len(long)) :]
    for n in (9, 19, 29, 39, 49):
        expected += tokenizer.encode(texts[1 + n])
    assert data.val.tolist() == expected


def test_of_several_files_each_has_a_part_in_the_validation_text(tmp_path, tokenizer):
    (tmp_path / "english.txt").write_bytes((ENGLISH * 50).encode())
    (tmp_path / "times.txt").write_text("times " * 800, encoding="utf-8")
    names = [tmp_path / "english.txt", tmp_path / "times.txt"]
    tails = [tokenizer.encode(name.read_bytes().decode()) for name in names]
    tails = [tail[-round(len(tail) / 10) :] for tail in tails]
    for order in ([0, 1], [1, 0]):
        tokenize(tmp_path, open_documents([names[number] for number in order]), tokenizer)
        assert load_dataset(tmp_path).val.tolist() == tails[order[0]] + tails[order[1]]
        assert load_dataset(tmp_path).validation == "the last 10.0% of each document"


TINY_STORIES = Path(__file__).parents[2].parent / "shared/models/TinyStories-656K"


@pytest.fixture(params=["TinyStories", "prepends a space", "Chinese", "byte level"])
def whole(request, tmp_path):
    """(tokenizer, a text, the ids of the library for all of it)."""
    if request.param == "TinyStories":  # whose tokens span words and end in spaces
        if not TINY_STORIES.exists():
            pytest.skip("needs the published model")
        tokenizer = HFTokenizer(TINY_STORIES / "tokenizer.json")
        text = "  Once upon a time, there was a little girl named Lily. " * 40
    elif request.param == "byte level":
        llama3_tokenizer(tmp_path / "llama3")
        tokenizer, text = HFTokenizer(tmp_path / "llama3/tokenizer.json"), TEXT[:3000]
    else:
        options = (
            LLAMA2_SETTINGS if request.param == "prepends a space" else {"vocab_size": 400, "character_coverage": 1}
        )
        sample = ENGLISH if request.param == "prepends a space" else "天下大势分久必合合久必分" * 20 + ENGLISH
        tokenizer = SentencePieceTokenizer(trained_by_sentencepiece(tmp_path / "sp", sample, **options))
        text = sample.strip().replace("\n", "") * 30
    if isinstance(tokenizer, HFTokenizer):
        library = pytest.importorskip("tokenizers").Tokenizer.from_file(str(tokenizer.path))
        return tokenizer, text, library.encode(text, add_special_tokens=False).ids
    return tokenizer, text, SentencePieceProcessor(model_proto=tokenizer.content).encode(text)


@pytest.mark.parametrize("beside", [0, 60, 3000])
def test_the_tokens_of_a_document_are_those_of_the_library_whatever_stands_beside_it(tmp_path, whole, beside):
    tokenizer, text, ids = whole
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data/a.jsonl", [text, *["a rope"] * beside])
    (first, *_) = encode_documents(open_documents([tmp_path / "data"]), tokenizer, [], [])
    assert first.ids == ids
    assert first.size == len(text.encode())


def test_a_document_longer_than_a_part_is_cut_at_line_ends_and_loses_nothing(tmp_path, tokenizer):
    text = ENGLISH * (PART // 80)
    file = write_lines(tmp_path / "a.jsonl", [text, "the end"])
    *parts, last = encode_documents(open_documents([file]), tokenizer, [1], [2])
    assert len(parts) == 2
    assert [part.starts_document for part in parts] == [True, *[False] * (len(parts) - 1)]
    ids = [token for part in parts for token in part.ids]
    assert ids == [1, *tokenizer.encode(text, bos=False), 2]
    assert sum(part.size for part in parts) == len(text.encode())
    assert last.ids == [1, *tokenizer.encode("the end", bos=False), 2]


@pytest.mark.parametrize(
    "changes",
    [{"train": 0}, {"train": 10**9}, {"train": "x"}, {"total": 7}, {"val_bytes": 0}, {"val_tokens": -1}, {"dtype": "x"},
     {"separators": "x"}, {"separators": [[1], 2]}, {"lengths": [3]}, {"other": 1}, {"val_bytes": None}],
)  # fmt: skip
def test_damaged_facts_are_refused(tmp_path, tokenizer, changes):
    tokenize(tmp_path, open_documents([write_lines(tmp_path / "a.jsonl", [ENGLISH] * 9)]), tokenizer)
    facts = json.loads((tmp_path / "tokens.json").read_text(encoding="utf-8"))
    (tmp_path / "tokens.json").write_text(json.dumps(facts | changes), encoding="utf-8")
    with pytest.raises(ValueError, match="restore them"):
        load_dataset(tmp_path)


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
from model.text.tokenize import tokenize
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
for file in map(Path, sys.argv[2:]):
    tokenize(file.parent, open_documents([file]), SentencePieceTokenizer(sys.argv[1]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path, tokenizer):
    pytest.importorskip("resource")
    for name, count in (("small", 240_000), ("large", 800_000)):  # 6 and 21 MB, many parts: 2.5 million tokens more
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


@pytest.mark.parametrize("context", [64, 100, 512, 5000])
def test_with_max_tokens_the_same_passages_are_validated_in_every_context(context):
    def validated(max_tokens):
        batches = random_dataset(val=20_001).val_batches(4, context, max_tokens=max_tokens)
        return sorted(token for _, targets in batches for token in targets.ravel())

    def passages(starts, length):
        return [token for start in starts for token in range(start + 1, start + length + 1)]

    assert validated(8192) == passages([number * (20_000 - 512) // 15 for number in range(16)], 512)
    assert validated(16_384) == passages([number * (20_000 - 1024) // 15 for number in range(16)], 1024)
    assert validated(1100) == passages([0, 20_000 - 550], 550)
    assert validated(3) == [1, 2, 3]
    assert validated(20_000) == validated(None) == list(range(1, 20_001))


@given(st.lists(st.integers(2, 129), min_size=1, max_size=7), st.integers(1, 3))
def test_each_conversation_is_a_row_that_is_padded_to_a_power_of_two(lengths, batch):
    ids, ends = np.arange(sum(lengths), dtype=np.uint16), np.cumsum(lengths)
    marked = np.where(ids % 3, ids.astype(np.int64), UNCOUNTED)
    data = Conversations(ids, ids, 9, 9, train_targets=marked, val_targets=marked, train_ends=ends, val_ends=ends)
    batches = list(data.val_batches(batch, 128))
    rows = [row for inputs, targets in batches for row in zip(inputs.tolist(), targets.tolist())]
    for (inputs, targets), start, end in zip(rows, ends - lengths, ends, strict=True):
        padding = len(inputs) - (end - start - 1)
        assert inputs == [*range(start, end - 1), *[0] * padding]
        assert targets == [*marked[start + 1 : end], *[UNCOUNTED] * padding]
    for number, (inputs, _) in enumerate(batches):
        longest = max(lengths[batch * number :][:batch]) - 1
        assert inputs.shape[1] == (64 if longest <= 64 else 128)
    for count in range(1, len(lengths) + 1):
        tokens = count * (sum(lengths) // len(lengths))
        assert sum(len(inputs) for inputs, _ in data.val_batches(batch, 128, max_tokens=tokens)) == count
    drawn, targets = data.batch(0, batch_size=len(lengths), context=128, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_padded", lambda *_: pytest.fail("a batch is built to be counted"))
        count = data.target_count(0, batch_size=len(lengths), context=128, seed=1)
    assert count == (targets != UNCOUNTED).sum()
    assert sorted(drawn[:, 0]) == sorted(inputs[0] for inputs, _ in rows), "each once in an epoch"
