"""Prompts from flags, files and pipes, and which are errors."""

import codecs
import io

import pytest
import torch

from model.decoding.batches import memory_needed
from model.decoding.prompts import read_texts


def test_prompts_come_from_flags_a_file_and_stdin(tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_bytes("one\fpage\r\n\n  two\u2028lines \n".encode())  # only line feeds separate prompts
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("piped äö\n".encode()), encoding="utf-8"))
    assert read_texts([], None) == [""]
    assert read_texts(["a"], None) == ["a"], "stdin is read for a dash only"
    assert read_texts(["a", "-"], file) == ["a", "piped äö", "one\fpage", "  two\u2028lines "]
    file.write_bytes(b"\n \n")
    with pytest.raises(ValueError, match="contains no prompt"):
        read_texts([], file)
    for mark, byte in ((b"", 2), (codecs.BOM_UTF8, 5)):
        file.write_bytes(mark + "naïve".encode("latin-1"))
        with pytest.raises(ValueError, match=f"prompts.txt is not UTF-8 at byte {byte}"):
            read_texts([], file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_needed_is_the_size_of_cache_and_logits(small_args, dtype):
    """All sizes differ and are small, so that a missing factor or summand changes the result."""
    args = small_args(n_layers=3, n_heads=10, n_kv_heads=5, head_dim=14, vocab_size=41, max_seq_len=30)
    rows, length = 7, 11
    keys = torch.empty(args.n_layers, rows, args.n_kv_heads, length, args.head_dim, dtype=dtype)
    logits = torch.empty(rows, args.vocab_size, dtype=torch.float32)
    assert memory_needed(args, rows, length, dtype) == 2 * keys.nbytes + logits.nbytes
