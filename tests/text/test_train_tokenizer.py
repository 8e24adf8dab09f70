"""Training a tokenizer: any text, deterministic, without output; errors name the possible vocabulary sizes."""

import random

import pytest

from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import default_vocab_size, spread_sample, train_tokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times;\r\n\n    it was the age of wisdom.\n"


@pytest.mark.parametrize("text", [ENGLISH * 20, ENGLISH.replace(" ", "") * 20])
def test_errors_name_the_smallest_and_largest_possible_vocab_size(tmp_path, text):
    smallest = 256 + 3 + len({*text, " "})  # the space is always a piece
    with pytest.raises(ValueError, match=f"at least {smallest}"):
        train_tokenizer([text], tmp_path, vocab_size=smallest - 1)
    with pytest.raises(ValueError, match=r"vocab_size 9999 is too large.* at most \d+$") as error:
        train_tokenizer([text], tmp_path, vocab_size=9999)
    assert not list(tmp_path.iterdir())
    largest = int(str(error.value).split()[-1])
    for size in (smallest, largest):
        assert SentencePieceTokenizer(train_tokenizer([text], tmp_path, vocab_size=size)).vocab_size == size


def test_an_empty_text_is_refused(tmp_path):
    for texts in ([], ["", ""]):
        with pytest.raises(ValueError, match="no text"):
            train_tokenizer(texts, tmp_path)


def test_training_is_deterministic_and_prints_nothing(tmp_path, capfd):
    first = train_tokenizer([ENGLISH * 50], tmp_path / "new" / "one.model", vocab_size=300)
    second = train_tokenizer([ENGLISH * 50], tmp_path, vocab_size=300)
    assert second == tmp_path / "tokenizer.model"
    assert first.read_bytes() == second.read_bytes()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["the quick brown fox ", "thequickbrownfox", "\tquick\u2585\0brown"])
def test_a_line_of_50_kb_is_not_skipped(line, tmp_path):
    text = line * (50_000 // len(line))
    tokenizer = SentencePieceTokenizer(train_tokenizer([text], tmp_path, vocab_size=256 + 3 + len(set(text)) + 5))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < 0.8 * len(text)


def test_indentation_becomes_a_piece(tmp_path):
    code = "def f(x):\n\treturn x\n\n\nclass A:\n    def g(self):\n        return 1\r\n" * 30
    tokenizer = SentencePieceTokenizer(train_tokenizer([code], tmp_path, vocab_size=330))
    assert [len(tokenizer.encode(text, bos=False)) for text in (" " * 8, "\t", "\n\n")] == [1, 1, 1]


@pytest.mark.parametrize("vocab_size", [10, 1024])
def test_char_is_one_token_for_each_character(vocab_size, tmp_path):
    text = ENGLISH + "日本\U0001f600"
    tokenizer = SentencePieceTokenizer(train_tokenizer([text], tmp_path, kind="char", vocab_size=vocab_size))
    assert tokenizer.vocab_size == 256 + 3 + len(set(text))
    assert len(tokenizer.encode(text, bos=False)) == len(text)
    assert len(tokenizer.encode("é", bos=False)) == 2  # unseen: its bytes


def test_the_sample_is_bounded_and_spread_over_the_whole_text():
    sample, total = spread_sample((f"{number:<4000}" for number in range(1000)), limit=100_000)
    assert total == 4_000_000
    assert 50_000 < sum(map(len, sample)) <= 100_000
    numbers = [int(chunk) for chunk in sample]
    assert numbers == list(range(0, 1000, numbers[1]))
    assert spread_sample([*sample], limit=sum(map(len, sample)))[0] == sample, "what fits is kept whole"


def test_the_default_vocab_size_grows_with_the_text_and_works_for_any_text(tmp_path):
    chinese = "".join(random.Random(3).choices([chr(0x4E00 + i) for i in range(2000)], range(2000, 0, -1), k=60_000))
    common = "".join(chr(0x4E00 + i) for i in range(1000))
    for text in (ENGLISH, ENGLISH * 300, chinese, "a", "\n" * 500, "日本語\n" * 50, common * 100 + "龜龘"):
        tokenizer = SentencePieceTokenizer(train_tokenizer([text], tmp_path))
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode(tokenizer.encode("天 x\t😀")) == "天 x\t😀"
    assert len(tokenizer.encode(common, bos=False)) <= 1000
    assert len(tokenizer.encode("龘", bos=False)) == 3, "the rarest of many characters are encoded as bytes"
    assert 259 + 1900 < SentencePieceTokenizer(train_tokenizer([chinese], tmp_path)).vocab_size < 3000
    characters = (1, 10**5, 3 * 10**5, 2 * 10**6, 10**8, 10**12)
    assert [default_vocab_size(count, 100) for count in characters] == [384, 512, 1024, 4096, 4096, 4096]
