"""Safetensors files, and atomic writes of any file."""

import json
import os

import pytest
import torch

from model.cli import files
from model.weights import tensors


def test_content_is_synced_before_the_file_is_renamed(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    files.write_text(tmp_path / "a", "x")
    assert events == ["fsync", "replace", "fsync"]  # sync the file, rename it, sync the directory


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
    assert header["a"] == ("F32", (4, 3))
    assert header["b"] == ("BF16", (5,))


def safetensors_bytes(header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (10**9).to_bytes(8, "little") + b"{}",
        safetensors_bytes({"a": GOOD}, bytes(7)),
        safetensors_bytes({"a": GOOD}, bytes(9)),
        safetensors_bytes(b"[" * 100_000),
        safetensors_bytes({"a": {**GOOD, "dtype": "X9"}}, bytes(8)),
        safetensors_bytes({"a": {**GOOD, "shape": [3]}}, bytes(8)),
        safetensors_bytes({"a": {**GOOD, "shape": [2**63, 0], "data_offsets": [0, 0]}}),
        safetensors_bytes({"a": GOOD, "b": GOOD}, bytes(8)),
    ],
)
def test_a_corrupt_safetensors_file_is_a_one_line_error(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*x.safetensors is corrupt or cut short: get the file again$"):
        tensors.load_tensors(path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000, b"[1]"])
def test_broken_json_is_a_one_line_error(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*config\.json [^\n]*$"):
        files.read_json(tmp_path / "config.json")
