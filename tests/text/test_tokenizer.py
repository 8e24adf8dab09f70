"""Tokenizers of every format: lossless, streaming equals decoding, same ids as the reference implementation."""

import json
import random
from pathlib import Path

import pytest
from text_helpers import LLAMA2_SETTINGS, byte_level_tokenizer, trained_by_sentencepiece

from model.text.hf_tokenizer import HFTokenizer, hugging_face_files
from model.text.tokenizer import SentencePieceTokenizer, TextStream
from model.text.train_tokenizer import train_tokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times;\r\n\n    it was the age of wisdom.\n" * 40
HARD = [
    "",
    " ",
    "   two  inner   and trailing  ",
    "\n\n\n",
    "a\r\nb\rc\n",
    "\ttab\t\ttabs",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 🇩🇪 é e\u0301 ﬁ Ⅷ ｆｕｌｌ",
    "\u2585 \0 \ufeff \ufffd \u200b\u3000\xa0",
    "<s></s><unk><0x41>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def bpe(folder):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH, HARD[6]], folder / "bpe.model", vocab_size=320))


@pytest.fixture(scope="module")
def char(folder):
    return SentencePieceTokenizer(train_tokenizer([ENGLISH], folder / "char.model", kind="char"))


@pytest.fixture(scope="module")
def published(folder):
    names = ["<end", "<end of turn>"]
    return SentencePieceTokenizer(trained_by_sentencepiece(folder, ENGLISH, **LLAMA2_SETTINGS, control_symbols=names))


def hf_tokenizer(folder: Path, name: str) -> HFTokenizer:
    """A byte-level tokenizer as in Llama 3, or one with byte fallback as in Llama 2."""
    tokenizers = pytest.importorskip("tokenizers")
    if name == "byte_level":
        model = byte_level_tokenizer(ENGLISH, 700)
        (folder / name).mkdir(exist_ok=True)
    else:
        file = trained_by_sentencepiece(folder / name, ENGLISH, **LLAMA2_SETTINGS)
        model = tokenizers.Tokenizer.from_str(json.dumps(hugging_face_files(SentencePieceTokenizer(file))[0]))
    model.add_special_tokens(["<begin>", "<end>", "<end", "<end of turn>"])
    begin = ("<begin>", model.token_to_id("<begin>"))
    model.post_processor = tokenizers.processors.TemplateProcessing(single="<begin> $A", special_tokens=[begin])
    model.enable_truncation(8)  # which the batches of a training have, and encode has not
    model.enable_padding(length=30, pad_token="x")
    model.save(str(folder / name / "tokenizer.json"))
    (folder / name / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}', encoding="utf-8")
    return HFTokenizer(folder / name / "tokenizer.json")


@pytest.fixture(params=["bpe", "char", "published", "byte_level", "byte_fallback"])
def tokenizer(request, folder):
    if request.param.startswith("byte_"):
        return hf_tokenizer(folder, request.param)
    return request.getfixturevalue(request.param)


def test_decoding_returns_the_encoded_text(tokenizer, bpe, char):
    trained_here = tokenizer in (bpe, char)  # which encodes any text
    for text in ["It was the best.", "  two\n\nlines ", "日本 😀", " ", *(HARD if trained_here else [])]:
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_id
        assert max(ids) < tokenizer.vocab_size
        assert tokenizer.decode([*ids, *tokenizer.eos_ids]) == tokenizer.decode(ids) == text
        assert tokenizer.encode_batch([text, "x", text])[2] == tokenizer.encode(text, bos=False) == ids[1:]
    joined = tokenizer.decode(tokenizer.encode("b", bos=False) + tokenizer.encode("a", bos=False))
    assert joined == ("b a" if tokenizer.adds_space else "ba")


def test_the_name_of_a_control_token_becomes_that_token_even_if_another_name_is_its_beginning(tokenizer):
    names = tokenizer.control_tokens("<end <end of turn>")
    assert tokenizer.encode_control("".join(names)) == [*names.values()]


def test_half_of_a_surrogate_pair_is_refused_with_its_position(tokenizer):
    message = r"^the text is not UTF-8: character 1 is '\\udfff', half of [^\n]*$"
    for encode in (lambda text: tokenizer.encode(text), lambda text: tokenizer.encode_batch(["fine", text])):
        with pytest.raises(ValueError, match=message):
            encode("a\udfffb")


def test_streamed_text_equals_decoded_text(tokenizer):
    draw = random.Random(2)
    cases = [tokenizer.encode(text) for text in [*HARD, ENGLISH[:300]]]
    # Ids that no text encodes to: incomplete characters, control ids within the text, bytes in any order.
    cases += [[draw.randrange(tokenizer.vocab_size) for _ in range(draw.randint(0, 40))] for _ in range(300)]
    cases += [[draw.randrange(3, 259) for _ in range(12)] for _ in range(200)]
    stream = tokenizer.stream()
    for ids in cases:
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids), ids


def test_streaming_emits_complete_characters_as_early_as_possible_and_decodes_few_tokens_at_a_time(bpe):
    lengths = []
    stream = TextStream(lambda ids: lengths.append(len(ids)) or bpe.decode(ids))
    pieces = [stream.push(token) for token in bpe.encode("was 😀 it" * 9, bos=False)]
    assert "".join(pieces) == "was 😀 it" * 9  # nothing is left for flush
    assert pieces[0] != ""
    assert max(lengths) < 10, "the work for a token does not grow with the text"


def test_bos_may_be_named_beside_a_tokenizer_json_that_does_not_put_it_before_texts(folder, tmp_path):
    original = hf_tokenizer(folder, "byte_level")
    content = json.loads(original.path.read_bytes()) | {"post_processor": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="names no BOS or EOS token: put its tokenizer_config"):
        HFTokenizer(tmp_path / "tokenizer.json")
    settings = {"bos_token": "<begin>", "add_bos_token": True}  # as DeepSeek's
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert HFTokenizer(tmp_path / "tokenizer.json").encode("it") == original.encode("it")


def test_what_is_not_a_str_is_named(bpe):
    with pytest.raises(ValueError, match=r"^the text is 3: give a str$"):
        bpe.encode(3)
