"""llama2.c's .bin files, compared with files that this test builds byte by byte from the definition of the format."""

import struct
from functools import partial

import numpy as np
import pytest
import torch
from sentencepiece import SentencePieceProcessor
from text_helpers import llama3_tokenizer, trained_by_sentencepiece

from model import ModelArgs
from model.text.train_tokenizer import train_tokenizer
from model.weights import llama2c, load_tokenizer

COUNTS = {"dim": 48, "hidden_dim": 64, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "vocab_size": 40, "max_seq_len": 9}
KINDS = [  # in the order of the file
    "tok_embeddings", "attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3", "norm", "rope", "output",
]  # fmt: skip
ANGLES = np.outer(np.arange(9), 10000.0 ** -(np.arange(0, 8, 2) / 8))


@pytest.fixture
def model(request, small_model):
    model = small_model(**COUNTS, head_dim=None, tie_embeddings=getattr(request, "param", True))
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


def file_of(model, rope):
    """The bytes of a file: the tensors of one kind, layer by layer, then those of the next."""
    counts = list(COUNTS.values())
    counts[5] *= 1 if model.args.tie_embeddings else -1
    raw = struct.pack("<7i", *counts)
    for kind in KINDS:
        tensors = [tensor.numpy() for name, tensor in model.state_dict().items() if name.split(".")[-2] == kind]
        raw += b"".join(array.astype("<f4").tobytes() for array in (rope if kind == "rope" else tensors))
    return raw


@pytest.mark.parametrize("model", [True, False], indirect=True, ids=["tied", "untied"])
def test_a_file_is_read_and_written_as_the_definition_says(tmp_path, model):
    unread = np.full((2, 9, 4), 1e9)  # for cosines and sines
    (tmp_path / "x.bin").write_bytes(file_of(model, unread))
    llama2c.save(model, tmp_path / "y.bin")
    for path in (tmp_path / "x.bin", tmp_path / "y.bin"):
        read = llama2c.open_file(path).model()
        assert read.args == ModelArgs(**COUNTS, norm_eps=1e-5, tie_embeddings=model.args.tie_embeddings)
        assert all(torch.equal(tensor, read.state_dict()[name]) for name, tensor in model.state_dict().items())
    written, expected = (tmp_path / "y.bin").read_bytes(), file_of(model, [np.cos(ANGLES), np.sin(ANGLES)])
    assert written[:28] == expected[:28]
    assert np.allclose(np.frombuffer(written[28:], "<f4"), np.frombuffer(expected[28:], "<f4"), rtol=0, atol=1e-6)


QUANTIZED = struct.pack("<Ii7i", 0x616B3432, 2, *COUNTS.values()).ljust(256, b"\0")
BROKEN = {  # what becomes of a sound file, and words of the error
    "empty": (lambda raw: b"", "is not a llama2.c model"),
    "short": (lambda raw: raw[:-1], "bytes, its header announces"),
    "long": (lambda raw: raw + b"\0", "bytes, its header announces"),
    "text": (lambda raw: b"once upon a time, there was a file" * 20, "is not a llama2.c .* GGUF files are not read"),
    "huge": (lambda raw: struct.pack("<7i", *[2**31 - 1] * 7) + raw[28:], "is not a llama2.c model"),
    "many layers": (lambda raw: raw[:8] + struct.pack("<i", 10**9) + raw[12:], "1000000000 layers are too many"),
    "quantized": (lambda raw: QUANTIZED, "version 2, only version 0, float32, is supported"),
}


@pytest.mark.parametrize(("change", "words"), BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_a_one_line_error(tmp_path, model, change, words):
    path = tmp_path / "x.bin"
    path.write_bytes(change(file_of(model, [np.cos(ANGLES), np.sin(ANGLES)])))
    with pytest.raises(ValueError, match=rf"^[^\n]*x\.bin [^\n]*{words}[^\n]*$"):
        llama2c.open_file(path)


TEXT = "".join(f"def f{i}(self):\n    return {i}  # the ropewalk, day {i}\n\n\n" for i in range(400))


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_tokenizer_is_written_as_the_exporter_writes_it(tmp_path, kind):
    ours = load_tokenizer(train_tokenizer([TEXT], tmp_path / "trained", kind, 330))
    llama2c.save_tokenizer(ours, tmp_path / "tokenizer.bin")
    library = SentencePieceProcessor(model_proto=ours.content)
    pieces = [library.id_to_piece(i).replace("\u2581", " ").encode() for i in range(ours.vocab_size)]
    pieces[1:3] = b"\n<s>\n", b"\n</s>\n"
    assert (pieces[3 + 10], pieces[3 + 0xE4]) == (b"<0x0A>", b"<0xE4>"), "run.c prints the byte that this text names"
    expected = struct.pack("<i", max(map(len, pieces)))
    for i, piece in enumerate(pieces):
        expected += struct.pack("<fi", library.get_score(i), len(piece)) + piece
    assert (tmp_path / "tokenizer.bin").read_bytes() == expected


bpe = partial(trained_by_sentencepiece, model_type="bpe")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(bpe, text=TEXT, vocab_size=60), "lacks llama2.c.s first 259 tokens"),
        # Without a piece for the space, llama2.c falls back to its byte, SentencePiece to the bytes of its space sign.
        (partial(bpe, text="abcd" * 99, vocab_size=270, byte_fallback=True, add_dummy_prefix=False), "for the space"),
        (llama3_tokenizer, "tokenizer.json is not a SentencePiece model"),
    ],
)
def test_a_tokenizer_that_tokenizer_bin_cannot_express_is_an_error(tmp_path, make, words):
    make(tmp_path / "made")
    tokenizer = load_tokenizer(tmp_path / "made")
    with pytest.raises(ValueError, match=words):
        llama2c.save_tokenizer(tokenizer, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()
