"""Tokenizers of every format: lossless, streaming equals decoding, same ids as the reference implementation."""

import json
import random
import struct
from pathlib import Path

import pytest
import sentencepiece
from text_helpers import LLAMA2_SETTINGS, byte_level_tokenizer, trained_by_sentencepiece

from model.text.hf_tokenizer import HFTokenizer, hugging_face_files
from model.text.llama2c_tokenizer import Llama2cTokenizer
from model.text.tokenizer import SentencePieceTokenizer
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
    "a\u2581b \u2581",  # SentencePiece writes a space as this character
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
    return SentencePieceTokenizer(trained_by_sentencepiece(folder, ENGLISH, **LLAMA2_SETTINGS))


@pytest.fixture(scope="module")
def llama2c(folder, published):
    return Llama2cTokenizer(*write_llama2c(folder / "tokenizer.bin", published))


def write_llama2c(path, tokenizer):
    """Write the file that llama2.c's exporter writes, following the definition of the format."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer.path))
    pieces = [model.id_to_piece(i).replace("\u2581", " ").encode() for i in range(model.get_piece_size())]
    with path.open("wb") as file:
        file.write(struct.pack("<i", max(map(len, pieces))))
        for i, piece in enumerate(pieces):
            file.write(struct.pack("<fi", model.get_score(i), len(piece)) + piece)
    return path, len(pieces)


def hf_tokenizer(folder: Path, name: str) -> HFTokenizer:
    """A byte-level tokenizer as in Llama 3, or one with byte fallback as in Llama 2."""
    tokenizers = pytest.importorskip("tokenizers")
    if name == "byte_level":
        model = byte_level_tokenizer(ENGLISH, 700)
        (folder / name).mkdir(exist_ok=True)
    else:
        file = trained_by_sentencepiece(folder / name, ENGLISH, **LLAMA2_SETTINGS)
        model = tokenizers.Tokenizer.from_str(json.dumps(hugging_face_files(file)[0]))
    model.add_special_tokens(["<begin>", "<end>", "<end of turn>"])
    begin = ("<begin>", model.token_to_id("<begin>"))
    model.post_processor = tokenizers.processors.TemplateProcessing(single="<begin> $A", special_tokens=[begin])
    model.save(str(folder / name / "tokenizer.json"))
    (folder / name / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}', encoding="utf-8")
    return HFTokenizer(folder / name / "tokenizer.json")


@pytest.fixture(params=["bpe", "char", "published", "llama2c", "byte_level", "byte_fallback"])
def tokenizer(request, folder):
    if request.param.startswith("byte_"):
        return hf_tokenizer(folder, request.param)
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_trained_tokenizers_are_lossless(kind, request):
    tokenizer = request.getfixturevalue(kind)
    for text in [*HARD, ENGLISH]:
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_id
        assert max(ids) < tokenizer.vocab_size
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_batch([text, "x", text], 2)[2] == tokenizer.encode(text, bos=False) == ids[1:]


def test_decoding_returns_the_encoded_text_in_every_format(tokenizer):
    for text in ["It was the best.", "  two\n\nlines ", "日本 😀", " "]:
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_id
        assert tokenizer.decode([*ids, *tokenizer.eos_ids]) == tokenizer.decode(ids) == text
    joined = tokenizer.decode(tokenizer.encode("b", bos=False) + tokenizer.encode("a", bos=False))
    assert joined == ("b a" if tokenizer.adds_space else "ba")


def test_half_of_a_surrogate_pair_is_refused_with_its_position(tokenizer):
    message = r"^the text is not UTF-8: its character 1 is '\\udfff', half of [^\n]*$"
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


def test_streaming_emits_complete_characters_as_early_as_possible(bpe):
    stream = bpe.stream()
    pieces = [stream.push(token) for token in bpe.encode("was 😀 it", bos=False)]
    assert "".join(pieces) == "was 😀 it"  # nothing is left for flush
    assert pieces[0] != ""


def test_decode_agrees_with_sentencepiece(published):
    draw = random.Random(3)
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(published.path))
    for text in HARD:
        assert published.encode(text, bos=False) == oracle.encode(text)
    for _ in range(200):
        ids = [draw.randrange(published.vocab_size) for _ in range(20)]
        assert published.decode(ids) == oracle.decode(ids)


def test_llama2c_encodes_like_the_model_it_was_converted_from(llama2c, published):
    draw = random.Random(4)
    words = ENGLISH.split(" ")
    texts = ["", " ", "it", "the  best", "日本 😀", ENGLISH, *(" ".join(draw.choices(words, k=9)) for _ in range(50))]
    for text in texts:
        assert llama2c.encode(text) == published.encode(text), text
        assert llama2c.decode(llama2c.encode(text)) == text
    assert (llama2c.bos_id, llama2c.eos_ids) == (published.bos_id, published.eos_ids)
    for size in (llama2c.vocab_size - 1, llama2c.vocab_size + 1):
        with pytest.raises(ValueError, match=str(size)):
            Llama2cTokenizer(llama2c.path, size)


@pytest.mark.parametrize(
    ("pieces", "complaint"),
    [
        ([b" ", b"a", b"a"], "does not allow"),
        ([b" ", b"\xe9"], "does not allow"),
        ([b" ", b""], "does not allow"),
        ([b"a", b" a"], "no piece for the space"),
    ],
)
def test_a_llama2c_file_that_sentencepiece_would_read_otherwise_is_refused(tmp_path, pieces, complaint):
    first = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    content = b"".join(struct.pack("<fi", -i, len(piece)) + piece for i, piece in enumerate([*first, *pieces]))
    (tmp_path / "t.bin").write_bytes(struct.pack("<i", 9) + content)
    with pytest.raises(ValueError, match=rf"t\.bin has [^\n]*{complaint}[^\n]*$"):
        Llama2cTokenizer(tmp_path / "t.bin", 259 + len(pieces))


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_special_tokens_of_a_tokenizer_json(name, folder):
    tokenizer = hf_tokenizer(folder, name)
    begin, end, end_of_turn = range(tokenizer.vocab_size - 3, tokenizer.vocab_size)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (begin, (end,))
    assert tokenizer.encode("") == [begin]
    assert tokenizer.encode("it was") == [begin, *tokenizer.encode("it was", bos=False)]
    assert end_of_turn in tokenizer.encode("it<end of turn>")
    assert tokenizer.decode(tokenizer.encode("it<end of turn>")) == "it"


def test_bos_is_read_from_the_post_processor_or_tokenizer_config_json(folder, tmp_path):
    original = hf_tokenizer(folder, "byte_level")
    content, begin = json.loads(original.path.read_bytes()), original.bos_id

    def tokenizer(settings):
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return HFTokenizer(tmp_path / "tokenizer.json")

    content["post_processor"]["special_tokens"]["<begin>"]["ids"] = [2**31]
    with pytest.raises(ValueError, match="names no BOS"):
        tokenizer({})
    content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    with pytest.raises(ValueError, match="names no BOS"):
        tokenizer({})
    without_bos = tokenizer({"bos_token": "<begin>"})
    assert without_bos.encode("it")[0] != begin  # the post-processor in the file adds nothing
    assert without_bos.encode("") == [begin]
    assert tokenizer({"bos_token": "<begin>", "add_bos_token": True}).encode("it")[0] == begin


def test_truncation_padding_and_dropout_of_a_tokenizer_json_are_switched_off(folder, tmp_path):
    tokenizer = hf_tokenizer(folder, "byte_level")
    content = json.loads(tokenizer.path.read_bytes())
    content["model"]["dropout"] = 0.9
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 30}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}
    content["padding"]["pad_token"] = "x"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    changed = HFTokenizer(tmp_path / "tokenizer.json")
    assert changed.encode_batch(["it", ENGLISH]) == tokenizer.encode_batch(["it", ENGLISH])


@pytest.mark.parametrize("content", [b"", b"\x00junk" * 9, b"{}", "日本".encode()])
def test_a_file_in_another_format_is_refused_in_one_line(content, tmp_path):
    pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer"
    file.write_bytes(content)
    for read in (SentencePieceTokenizer, HFTokenizer, lambda path: Llama2cTokenizer(path, 300)):
        with pytest.raises(ValueError, match="tokenizer") as error:
            read(file)
        assert "\n" not in str(error.value)
