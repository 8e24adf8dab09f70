"""Prompts from flags, files and pipes, and which are errors."""

import codecs

import pytest
import torch
from letters import LETTERS

from model.decoding import prompts
from model.decoding.batches import memory_needed
from model.decoding.prompts import Prompt, check_fit, read_texts, shorten_prompts


@pytest.fixture
def stdin(monkeypatch, tmp_path):
    def give(content):
        path = tmp_path / "stdin"
        path.write_bytes(content)
        monkeypatch.setattr("sys.stdin", path.open(encoding="utf-8"))

    return give


def test_prompts_come_from_flags_a_file_and_stdin(tmp_path, stdin):
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"one\r\n\n  two \n")
    stdin("piped äö\n".encode())
    assert read_texts([], None) == [""]
    assert read_texts(["a"], None) == ["a"], "stdin is read for a dash only"
    assert read_texts(["a", "-"], file) == ["a", "piped äö", "one", "  two "]
    file.write_bytes("one\fpage\r\ntwo\u2028lines\x85\n".encode())
    assert read_texts([], file) == ["one\fpage", "two\u2028lines\x85"], "only line feeds separate prompts"
    file.write_bytes(b"\n \n")
    with pytest.raises(ValueError, match="contains no prompt"):
        read_texts([], file)


def prompts_of(*texts):
    return [Prompt(text, LETTERS.encode(text)) for text in texts]


def test_text_that_is_not_utf8_is_an_error(tmp_path, stdin):
    for mark, byte in ((b"", 2), (codecs.BOM_UTF8, 5)):
        (tmp_path / "p").write_bytes(mark + "naïve".encode("latin-1"))
        with pytest.raises(ValueError, match=f"not UTF-8 at byte {byte}"):
            read_texts([], tmp_path / "p")
    stdin(b"\xff")
    with pytest.raises(ValueError, match="stdin is not UTF-8"):
        read_texts(["-"], None)


def test_a_prompt_that_exceeds_the_context_is_an_error():
    check_fit(prompts_of("", "abc"), 5, None)
    with pytest.raises(
        ValueError, match=r"prompt 2 has 6 tokens, and with 1 new one it .* of 5: shorten it, or add --endless$"
    ):
        check_fit(prompts_of("", "abcde"), 5, None)
    with pytest.raises(ValueError, match=r"prompt 1 has 3 tokens, and with 3 new ones .* lower --max_new_tokens, or"):
        check_fit(prompts_of("ab"), 5, 3)


def test_an_endless_prompt_that_exceeds_the_context_keeps_its_first_and_last_tokens(capsys):
    short, long, longer = prompts_of("abcdefg", "abcdefghijklmnop", "abcdefghijklmnopq")
    assert shorten_prompts([short, long], 17) == [short, long]
    assert capsys.readouterr().err == ""
    shortened = shorten_prompts([short, long, longer], 9)
    assert shortened[0] == short
    assert [prompt.text for prompt in shortened] == [prompt.text for prompt in (short, long, longer)]
    for prompt, cut in zip((long, longer), shortened[1:]):
        assert cut.tokens == prompt.tokens[:4] + prompt.tokens[-5:]
    assert capsys.readouterr().err == (
        "note: prompt 2 has 17 tokens and exceeds the context of 9 (1 other prompt too): "
        "after its first 4 tokens, 8 are left out\n"
    )
    (tiny,) = shorten_prompts([long], 3)
    assert tiny.tokens == long.tokens[:1] + long.tokens[-2:], "only one, because a cache of this size keeps one"


def test_a_note_counts_the_skipped_blank_lines(tmp_path, capsys):
    (tmp_path / "p").write_text("one\n\n  \ntwo\n", encoding="utf-8")
    assert read_texts([], tmp_path / "p") == ["one", "two"]
    assert "2 blank lines skipped, 2 prompts" in capsys.readouterr().err
    (tmp_path / "p").write_text("one\ntwo\n", encoding="utf-8")
    read_texts([], tmp_path / "p")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_needed_is_the_size_of_cache_and_logits(small_args, dtype):
    """All sizes differ and are small, so that a missing factor or summand changes the result."""
    args = small_args(n_layers=3, n_heads=10, n_kv_heads=5, head_dim=14, vocab_size=41, max_seq_len=30)
    rows, length = 7, 11
    keys = torch.empty(args.n_layers, rows, args.n_kv_heads, length, args.head_dim, dtype=dtype)
    logits = torch.empty(rows, args.vocab_size, dtype=torch.float32)
    assert memory_needed(args, rows, length, dtype) == 2 * keys.nbytes + logits.nbytes
    assert memory_needed(args, 1, 1, torch.float32) == 2 * 3 * 5 * 14 * 4 + 41 * 4


def test_a_prompt_file_larger_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "MAX_PROMPT_BYTES", 10)
    (tmp_path / "ten.txt").write_bytes(b"0123456789")
    assert prompts.read_prompt_file(tmp_path / "ten.txt") == ["0123456789"]
    (tmp_path / "eleven.txt").write_bytes(b"0123456789\n")
    with pytest.raises(ValueError, match=r"eleven\.txt is longer than 0 MB: split it"):
        prompts.read_prompt_file(tmp_path / "eleven.txt")
