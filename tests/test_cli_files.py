"""JSON from elsewhere: any value in any known field is taken or refused by name, and only files are read."""

import json
import math
import os

import pytest

from model.cli.files import (
    FLAG,
    IDS,
    NUMBER,
    TABLE,
    TEXT,
    TEXTS,
    TOKEN,
    WHOLE,
    check_fields,
    read_json,
    shortened,
    write_text,
)
from model.weights import load_args, load_tokenizer, save_model
from model.weights.hf_config import CONFIG_KINDS, UNSUPPORTED

GOOD = {
    WHOLE: [0, -1, 2**62],
    NUMBER: [0, 1.5, -1e300],
    FLAG: [True, False],
    TEXT: ["", "llama", "日"],
    TEXTS: [[], ["a", "b"]],
    TABLE: [{}, {"a": 1}],
    IDS: [3, [1, 2], 0],
    TOKEN: ["<s>", {"content": "<s>"}],
}
ODD = [
    None, True, 0, -1, 2**63, 10**400, 0.5, 1e308, 5e-324, math.nan, math.inf, "", "7", "x" * 5000, "\ud800", "a\nb\0",
    [], [1], [None], [[1]], ["a", 1], {}, {"a": 1}, json.loads("[" * 400 + "]" * 400),
]  # fmt: skip


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind[0])
def test_what_is_of_the_kind_passes_and_what_is_not_is_named(kind):
    for value in [*GOOD[kind], None]:
        check_fields({"name": value, "other": object()}, {"name": kind})
    for value in [10**400, math.nan, "\ud800", [None], [[1]], object()]:
        if not (kind is WHOLE and value == 10**400):
            with pytest.raises(ValueError, match=f"^name is .*: {kind[0]} is needed$") as error:
                check_fields({"name": value}, {"name": kind})
            assert "\n" not in str(error.value)
            assert len(str(error.value)) < 200


def refusal(read, path):
    """What it says, or nothing; any other exception is a fault."""
    try:
        read(path)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
@pytest.mark.parametrize("name", ["fifo", "folder", "large"])
def test_only_files_of_a_sane_size_are_read(tmp_path, name, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("{}  ", encoding="utf-8")
    monkeypatch.setattr("model.cli.files.LARGEST_JSON", 3)
    with pytest.raises(ValueError, match=f"{name} (is not a file|has 4 bytes)"):
        read_json(tmp_path / name)


@pytest.mark.parametrize("field", [*CONFIG_KINDS, *UNSUPPORTED, "bos_token_id", "eos_token_id"])
def test_any_value_in_any_field_of_a_configuration_ends_in_one_line(small_model, tmp_path, field):
    save_model(small_model(head_dim=8), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for value in ODD:
        (tmp_path / "config.json").write_text(json.dumps({**config, field: value}), encoding="utf-8")
        for read in (load_args, load_tokenizer):
            said = refusal(read, tmp_path)
            assert "\n" not in said
            assert len(said) < 600


def test_a_directory_that_cannot_be_opened_is_written_into_all_the_same(tmp_path, monkeypatch):
    """Windows opens none; elsewhere it may be one that only its owner may list."""
    real_open = os.open

    def refuse_directories(path, *flags, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *flags, **options)

    monkeypatch.setattr(os, "open", refuse_directories)
    write_text(tmp_path / "a.txt", "words")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "words"
    monkeypatch.setattr(os, "open", lambda path, *_: refuse_directories(tmp_path))
    with pytest.raises(PermissionError):
        write_text(tmp_path / "b.txt", "words")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_value_of_60_characters_is_shown_whole_and_a_longer_one_is_cut_to_60():
    assert shortened("x" * 58) == f"'{'x' * 58}'"
    assert shortened("x" * 59) == f"'{'x' * 56}..."
    assert len(shortened("x" * 59)) == 60
    assert shortened(2**63 - 1) == str(2**63 - 1)
    assert shortened(2**63) == shortened(-(2**63)) == "a number beyond 2**63"
