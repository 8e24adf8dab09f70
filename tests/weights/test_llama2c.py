"""llama2.c's .bin files, compared with files that this test builds byte by byte from the definition of the format."""

import struct

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor
from text_helpers import trained_by_sentencepiece

from model import ModelArgs
from model.text.train_tokenizer import train_tokenizer
from model.weights import llama2c, load_tokenizer
from model.weights.llama2c import Llama2c

COUNTS = {"dim": 48, "hidden_dim": 64, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "vocab_size": 40, "max_seq_len": 9}
SHAPES = {  # of one layer, in the order of the file, with sizes as the C program computes them
    "attention_norm": (48,), "wq": (48, 48), "wk": (16, 48), "wv": (16, 48), "wo": (48, 48), "ffn_norm": (48,),
    "w1": (64, 48), "w2": (48, 64), "w3": (64, 48),
}  # fmt: skip
PARENTS = dict.fromkeys(("wq", "wk", "wv", "wo"), "attention.") | dict.fromkeys(("w1", "w2", "w3"), "feed_forward.")


@pytest.fixture
def weights():
    """{name: array}, a layer's tensors stacked: wq (2, 48, 48) and so on."""
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((2, *shape)).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["embedding"], arrays["output"] = random.standard_normal((2, 40, 48)).astype(np.float32)
    arrays["norm"] = random.standard_normal(48).astype(np.float32)
    return arrays


def file_of(weights, tied):
    counts = list(COUNTS.values())
    counts[5] *= 1 if tied else -1
    rope = np.full((2, 9, 4), 1e9, np.float32)  # cosines and sines, which must not be read
    parts = [weights["embedding"], *(weights[name] for name in SHAPES), weights["norm"], rope]
    parts += [] if tied else [weights["output"]]
    return struct.pack("<7i", *counts) + b"".join(part.tobytes() for part in parts)


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_is_read_and_written_as_the_definition_says(tmp_path, weights, tied):
    (tmp_path / "x.bin").write_bytes(file_of(weights, tied))
    model = Llama2c(tmp_path / "x.bin").model()
    assert model.args == ModelArgs(**COUNTS, norm_eps=1e-5, tie_embeddings=tied)
    expected = {"tok_embeddings.weight": weights["embedding"], "norm.weight": weights["norm"]}
    for i in range(2):
        for name in SHAPES:
            expected[f"layers.{i}.{PARENTS.get(name, '')}{name}.weight"] = weights[name][i]
    if not tied:
        expected["output.weight"] = weights["output"]
    state = model.state_dict()
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(state[name].numpy(), array), name
    llama2c.save(model, tmp_path / "y.bin")
    ours, rope = (tmp_path / "y.bin").read_bytes(), 9 * 4 * 4
    at = 28 + 4 * (40 * 48 + 2 * sum(int(np.prod(s)) for s in SHAPES.values()) + 48)
    theirs = (tmp_path / "x.bin").read_bytes()
    assert ours[:at] == theirs[:at]
    assert ours[at + 2 * rope :] == theirs[at + 2 * rope :]
    angles = np.outer(np.arange(9), 10000.0 ** -(np.arange(0, 8, 2) / 8))
    assert np.allclose(np.frombuffer(ours[at : at + rope], "<f4").reshape(9, 4), np.cos(angles), atol=1e-6)
    assert np.allclose(np.frombuffer(ours[at + rope : at + 2 * rope], "<f4").reshape(9, 4), np.sin(angles), atol=1e-6)


QUANTIZED = struct.pack("<Ii7i", 0x616B3432, 2, *COUNTS.values()).ljust(256, b"\0")
BROKEN = {  # what becomes of a sound file, and words of the error
    "empty": (lambda raw: b"", "is not a llama2.c model"),
    "short": (lambda raw: raw[:-1], "bytes, its header announces"),
    "long": (lambda raw: raw + b"\0", "bytes, its header announces"),
    "text": (lambda raw: b"once upon a time, there was a file" * 20, "is not a llama2.c model"),
    "huge": (lambda raw: struct.pack("<7i", *[2**31 - 1] * 7) + raw[28:], "is not a llama2.c model"),
    "many layers": (lambda raw: raw[:8] + struct.pack("<i", 10**9) + raw[12:], "1000000000 layers are too many"),
    "quantized": (lambda raw: QUANTIZED, "version 2, only version 0, float32, is supported"),
}


@pytest.mark.parametrize(("change", "words"), BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_a_one_line_error(tmp_path, weights, change, words):
    path = tmp_path / "x.bin"
    path.write_bytes(change(file_of(weights, True)))
    with pytest.raises(ValueError, match=rf"^[^\n]*x\.bin [^\n]*{words}[^\n]*$"):
        Llama2c(path)


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


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TEXT, {"vocab_size": 60}, "special tokens differently"),
        # Without a piece for the space, llama2.c falls back to its byte, SentencePiece to the bytes of its space sign.
        ("abcabcabd" * 50, {"vocab_size": 270, "byte_fallback": True, "add_dummy_prefix": False}, "for the space"),
    ],
)
def test_a_tokenizer_that_tokenizer_bin_cannot_express_is_an_error(tmp_path, text, options, words):
    tokenizer = load_tokenizer(trained_by_sentencepiece(tmp_path, text, model_type="bpe", **options))
    with pytest.raises(ValueError, match=words):
        llama2c.save_tokenizer(tokenizer, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()
