"""Safetensors files."""

import json

import pytest
import torch

from model.weights import tensors


def test_tensors_round_trip_bit_for_bit(tmp_path):
    saved = {
        "a": torch.randn(3, 4).T,  # not contiguous
        "b": torch.randn(5).bfloat16(),
        "n": torch.arange(3),
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 2),
    }
    tensors.save_tensors(tmp_path / "x.safetensors", saved, {"format": "pt"})
    loaded = tensors.load_tensors(tmp_path / "x.safetensors")
    assert loaded.keys() == saved.keys()
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    header = tensors.read_header(tmp_path / "x.safetensors")
    assert header["a"] == (tmp_path / "x.safetensors", "a", "F32", (4, 3))
    assert header["b"][2:] == ("BF16", (5,))


def safetensors_bytes(header, data=b""):
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        safetensors_bytes({"a": GOOD}, bytes(7)),
        safetensors_bytes({"a": {**GOOD, "shape": [2**63, 0], "data_offsets": [0, 0]}}),
    ],
)
def test_a_corrupt_safetensors_file_is_a_one_line_error(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*x.safetensors is corrupt or cut short: get the file again$"):
        tensors.load_tensors(path)
