"""Safetensors files."""

import json
import os
import sys

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
    assert header["a"][:2] == ((4, 3), torch.float32)
    assert header["n"][:2] == ((3,), "I64")
    assert torch.equal(header["b"].read(), saved["b"])


def test_a_file_that_is_cut_short_or_announces_an_impossible_size_is_corrupt(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}}).encode()
    for content in (b"", len(header).to_bytes(8, "little") + header):
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"^[^\n]*x.safetensors is corrupt or cut short: get the file again$"):
            tensors.load_tensors(tmp_path / "x.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are Unicode")
def test_a_file_whose_name_is_not_utf8_is_not_called_corrupt(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.safetensors")
    tensors.save_tensors(path, {"a": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"^[^\n]*safetensors has a name that is not UTF-8, .* rename it$"):
        tensors.load_tensors(path)
