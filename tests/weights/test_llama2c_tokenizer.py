"""llama2.c's tokenizer.bin, compared with files that this test builds from the definition of the format."""

import random
import struct
from pathlib import Path

import pytest
import sentencepiece
from text_helpers import LLAMA2_SETTINGS, trained_by_sentencepiece

from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_tokenizer
from model.weights.llama2c_tokenizer import read, save

TEXT = "".join(f"def f{i}(self):\n    return {i}  # the ropewalk, day {i}\n\n\n" for i in range(400))
ENGLISH = "It was the best of times,\n\tit was the worst of times;\r\n\n    it was the age of wisdom.\n" * 40


def converted(file: Path, vocab_size: int) -> SentencePieceTokenizer:
    model = file.with_suffix(".model")
    model.write_bytes(read(file, vocab_size))
    return SentencePieceTokenizer(model)


def write(path, tokenizer):
    """Write the file that llama2.c's exporter writes, following the definition of the format."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer.path))
    pieces = [model.id_to_piece(i).replace("\u2581", " ").encode() for i in range(model.get_piece_size())]
    with path.open("wb") as file:
        file.write(struct.pack("<i", max(map(len, pieces))))
        for i, piece in enumerate(pieces):
            file.write(struct.pack("<fi", model.get_score(i), len(piece)) + piece)


def test_a_file_encodes_like_the_model_it_was_made_from(tmp_path):
    published = SentencePieceTokenizer(trained_by_sentencepiece(tmp_path / "llama2", ENGLISH, **LLAMA2_SETTINGS))
    write(tmp_path / "t.bin", published)
    ours = converted(tmp_path / "t.bin", published.vocab_size)
    draw = random.Random(4)
    words = ENGLISH.split(" ")
    texts = ["", " ", "it", "the  best", "日本 😀", ENGLISH, *(" ".join(draw.choices(words, k=9)) for _ in range(50))]
    for text in texts:
        assert ours.encode(text) == published.encode(text), text
        assert ours.decode(ours.encode(text)) == text
    assert (ours.bos_id, ours.eos_ids) == (published.bos_id, published.eos_ids)
    for size in (ours.vocab_size - 1, ours.vocab_size + 1):
        with pytest.raises(ValueError, match=str(size)):
            read(tmp_path / "t.bin", size)


@pytest.mark.parametrize(
    ("pieces", "complaint"),
    [
        ([b" ", b"a", b"a"], "does not allow"),
        ([b" ", b"\xe9"], "does not allow"),
        ([b" ", b""], "does not allow"),
        ([b"a", b" a"], "no piece for the space"),
    ],
)
def test_a_file_that_sentencepiece_would_read_otherwise_is_refused(tmp_path, pieces, complaint):
    first = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    content = b"".join(struct.pack("<fi", -i, len(piece)) + piece for i, piece in enumerate([*first, *pieces]))
    (tmp_path / "t.bin").write_bytes(struct.pack("<i", 9) + content)
    with pytest.raises(ValueError, match=rf"t\.bin has [^\n]*{complaint}[^\n]*$"):
        read(tmp_path / "t.bin", 259 + len(pieces))


@pytest.mark.parametrize("content", [b"", b"\x00junk" * 9, b"{}"])
def test_a_file_in_another_format_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.bin does not hold 300 tokens: [^\n]*$"):
        read(tmp_path / "t.bin", 300)


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_written_file_has_the_exporters_layout(tmp_path, kind):
    ours = load_tokenizer(train_tokenizer([TEXT], tmp_path / "trained", kind, 330))
    save(ours, tmp_path / "tokenizer.bin")
    raw, at = (tmp_path / "tokenizer.bin").read_bytes(), 4
    pieces = []
    while at < len(raw):
        _, length = struct.unpack_from("<fi", raw, at)
        pieces.append(raw[at + 8 : at + 8 + length])
        at += 8 + length
    assert len(pieces) == ours.vocab_size
    assert struct.unpack_from("<i", raw)[0] == max(map(len, pieces))
    assert pieces[:3] == [b"<unk>", b"\n<s>\n", b"\n</s>\n"]
    assert (pieces[3 + 10], pieces[3 + 0xE4]) == (b"<0x0A>", b"<0xE4>"), "run.c prints the byte that this text names"
    assert all(pieces[i].decode() == ours.decode([i]) for i in range(259, len(pieces)))
    theirs = converted(tmp_path / "tokenizer.bin", ours.vocab_size)
    for text in ("return 12", "the ropewalk\n\n", "日本語"):
        assert theirs.encode(text) == ours.encode(" " + text)  # llama2.c always puts a space first
        assert theirs.decode(theirs.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TEXT, {"vocab_size": 60}, "special tokens differently"),
        # Without a piece for the space, llama2.c falls back to its byte, SentencePiece to the bytes of its space sign.
        (
            "abcabcabd" * 50,
            {"vocab_size": 270, "byte_fallback": True, "add_dummy_prefix": False},
            "no piece for the sp",
        ),
    ],
)
def test_a_tokenizer_that_tokenizer_bin_cannot_express_is_an_error(tmp_path, text, options, words):
    tokenizer = load_tokenizer(trained_by_sentencepiece(tmp_path, text, model_type="bpe", **options))
    with pytest.raises(ValueError, match=words):
        save(tokenizer, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()
