"""llama2.c's .bin files, compared with files that this test builds byte by byte from the definition of the format."""

import struct

import numpy as np
import pytest
import torch

from model import ModelArgs
from model.weights import llama2c
from model.weights.int8 import Quantized
from model.weights.llama2c import Llama2c

COUNTS = {"dim": 48, "hidden_dim": 64, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "vocab_size": 40, "max_seq_len": 9}
SHAPES = {  # of one layer, with sizes as the C program computes them
    "attention_norm": (48,), "wq": (48, 48), "wk": (16, 48), "wv": (16, 48), "wo": (48, 48), "ffn_norm": (48,),
    "w1": (64, 48), "w2": (48, 64), "w3": (64, 48),
}  # fmt: skip
V0 = ["attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3"]
MATRICES = ["wq", "wk", "wv", "wo", "w1", "w2", "w3"]
PARENTS = dict.fromkeys(MATRICES[:4], "attention.") | dict.fromkeys(MATRICES[4:], "feed_forward.")


@pytest.fixture
def weights():
    """{name: array}, a layer's tensors stacked: wq (2, 48, 48) and so on."""
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((2, *shape)).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["embedding"], arrays["output"] = random.standard_normal((2, 40, 48)).astype(np.float32)
    arrays["norm"] = random.standard_normal(48).astype(np.float32)
    return arrays


def header(version, tied, group=0):
    counts = list(COUNTS.values())
    if version == 0:
        counts[5] *= 1 if tied else -1
        return struct.pack("<7i", *counts)
    raw = struct.pack("<Ii7iB", 0x616B3432, version, *counts, tied)
    return (raw + (struct.pack("<i", group) if version == 2 else b"")).ljust(256, b"\0")


def version0(weights, tied):
    rope = np.full((2, 9, 4), 1e9, np.float32)  # cosines and sines, which must not be read
    parts = [weights["embedding"], *(weights[name] for name in V0), weights["norm"], rope]
    return header(0, tied) + b"".join(part.tobytes() for part in [*parts, *([] if tied else [weights["output"]])])


def version2(weights, tied, group):
    """The file, and the weights after rounding to int8."""
    rounded = dict(weights)
    data = b"".join(weights[name].tobytes() for name in ("attention_norm", "ffn_norm", "norm"))
    for name in ["embedding", *MATRICES, *([] if tied else ["output"])]:
        layers = weights[name] if weights[name].ndim == 3 else weights[name][None]
        dequantized = []
        for tensor in layers:
            groups = tensor.reshape(-1, group)
            scales = (np.abs(groups).max(1) / 127).astype(np.float32)
            quantized = np.round(groups / scales[:, None]).astype(np.int8)
            data += quantized.tobytes() + scales.tobytes()
            dequantized.append((quantized.astype(np.float32) * scales[:, None]).reshape(tensor.shape))
        rounded[name] = np.stack(dequantized).reshape(weights[name].shape)
    return header(2, tied, group) + data, rounded


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_files_of_every_version_are_read(tmp_path, weights, tied, version):
    content = version2(weights, tied, 16)[0] if version else version0(weights, tied)
    (tmp_path / "x.bin").write_bytes(content)
    model = Llama2c(tmp_path / "x.bin").model()
    assert model.args == ModelArgs(**COUNTS, norm_eps=1e-5, tie_embeddings=tied)
    stored = version2(weights, tied, 16)[1] if version == 2 else weights
    expected = {"tok_embeddings.weight": stored["embedding"], "norm.weight": stored["norm"]}
    for i in range(2):
        for name in SHAPES:
            expected[f"layers.{i}.{PARENTS.get(name, '')}{name}.weight"] = stored[name][i]
    if not tied:
        expected["output.weight"] = stored["output"]
    state = model.state_dict()
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(state[name].numpy(), array), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_written_file_equals_the_one_built_by_hand(tmp_path, weights, tied):
    (tmp_path / "x.bin").write_bytes(version0(weights, tied))
    llama2c.save(Llama2c(tmp_path / "x.bin").model(), tmp_path / "y.bin")
    ours, rope = (tmp_path / "y.bin").read_bytes(), 9 * 4 * 4
    at = 28 + 4 * (40 * 48 + 2 * sum(int(np.prod(s)) for s in SHAPES.values()) + 48)
    expected = (tmp_path / "x.bin").read_bytes()
    assert ours[:at] == expected[:at]
    assert ours[at + 2 * rope :] == expected[at + 2 * rope :]
    angles = np.outer(np.arange(9), 10000.0 ** -(np.arange(0, 8, 2) / 8))
    assert np.allclose(np.frombuffer(ours[at : at + rope], "<f4").reshape(9, 4), np.cos(angles), atol=1e-6)
    assert np.allclose(np.frombuffer(ours[at + rope : at + 2 * rope], "<f4").reshape(9, 4), np.sin(angles), atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("group", [8, 16])
def test_int8_weights_stay_quantized_and_are_written_bit_by_bit(tmp_path, weights, tied, group):
    content, rounded = version2(weights, tied, group)
    (tmp_path / "x.bin").write_bytes(content)
    model = Llama2c(tmp_path / "x.bin").model(int8=True, group_size=4)
    w2 = model.layers[1].feed_forward.w2
    assert (w2.weight.dtype, w2.scales.shape) == (torch.int8, (48, 64 // group))
    dequantized = Quantized(w2.weight, w2.scales).dequantize(torch.float32)
    assert np.array_equal(dequantized.numpy(), rounded["w2"][1])
    llama2c.save(model, tmp_path / "y.bin")
    assert (tmp_path / "y.bin").read_bytes() == content


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_quantized_by_us_is_written_as_the_file_built_by_hand(tmp_path, weights, tied):
    (tmp_path / "x.bin").write_bytes(version0(weights, tied))
    source = Llama2c(tmp_path / "x.bin")
    assert llama2c.group_size_for(source.args) == 16, "dim is 48, hidden_dim is 64"
    llama2c.save(source.model(int8=True, group_size=16), tmp_path / "y.bin")
    assert (tmp_path / "y.bin").read_bytes() == version2(weights, tied, 16)[0]


def test_scales_of_whole_rows_cannot_be_written(tmp_path, weights):
    (tmp_path / "x.bin").write_bytes(version0(weights, True))
    with pytest.raises(ValueError, match=r"the groups have sizes \[48, 64\]"):
        llama2c.save(Llama2c(tmp_path / "x.bin").model(int8=True), tmp_path / "y.bin")
    assert not (tmp_path / "y.bin").exists()


BROKEN = {
    "empty": lambda raw: b"",
    "short": lambda raw: raw[:-1],
    "long": lambda raw: raw + b"\0",
    "text": lambda raw: b"once upon a time, there was a file" * 20,
    "huge": lambda raw: struct.pack("<7i", *[2**31 - 1] * 7) + raw[28:],
    "many layers": lambda raw: raw[:8] + struct.pack("<i", 10**9) + raw[12:],
    "version 1": lambda raw: struct.pack("<Ii", 0x616B3432, 1).ljust(256, b"\0") + raw,
    "version 3": lambda raw: struct.pack("<Ii", 0x616B3432, 3).ljust(256, b"\0"),
    "group": lambda raw: header(2, True, 48) + raw,
    "negative group": lambda raw: header(2, True, -16) + raw,
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_a_one_line_error(tmp_path, weights, change):
    path = tmp_path / "x.bin"
    path.write_bytes(change(version0(weights, True)))
    with pytest.raises(ValueError, match=r"x\.bin") as error:
        Llama2c(path)
    assert "\n" not in str(error.value)
