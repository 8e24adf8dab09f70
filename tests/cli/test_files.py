"""JSON from elsewhere: a wrong value in any field is refused with its name, and only regular files are read."""

import json
import math
import os

import pytest

from model.cli.files import (
    FLAG,
    IDS,
    INTEGER,
    NUMBER,
    TABLE,
    TEXT,
    TEXTS,
    TOKEN,
    check_fields,
    read_json,
    short_repr,
    write_text,
)
from model.weights import load_args, load_tokenizer, save_model
from model.weights.hf_config import UNSUPPORTED

GOOD = {
    INTEGER: [0, -1, 2**62],
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
def test_a_value_of_another_kind_is_refused_with_the_name_of_its_field(kind):
    for value in [*GOOD[kind], None]:
        check_fields({"name": value, "other": object()}, {"name": kind})
    for value in [10**400, math.nan, "\ud800", [None], [[1]], object()]:
        if not (kind is INTEGER and value == 10**400):
            with pytest.raises(ValueError, match=f"^name is .*: {kind[0]} is needed$") as error:
                check_fields({"name": value}, {"name": kind})
            assert "\n" not in str(error.value)
            assert len(str(error.value)) < 200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
@pytest.mark.parametrize("name", ["fifo", "folder", "large"])
def test_pipes_folders_and_huge_files_are_not_read_as_json(tmp_path, name, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("{}  ", encoding="utf-8")
    monkeypatch.setattr("model.cli.files.LARGEST_JSON", 3)
    with pytest.raises(ValueError, match=f"{name} (is not a file|has 4 bytes)"):
        read_json(tmp_path / name)


def refusal(read, path):
    """The message of the ValueError, or an empty text if there is none; any other exception is a fault."""
    try:
        read(path)
    except ValueError as error:
        return str(error)
    return ""


FIELDS = ["hidden_size", "num_hidden_layers", "intermediate_size", "num_key_value_heads", "max_position_embeddings"]
FIELDS += ["rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "model_type", "hidden_act", "architectures"]
FIELDS += [*UNSUPPORTED, "bos_token_id", "eos_token_id"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_value_in_any_field_of_config_json_is_refused_in_one_line(small_model, tmp_path, field):
    save_model(small_model(head_dim=8), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for value in ODD:
        (tmp_path / "config.json").write_text(json.dumps({**config, field: value}), encoding="utf-8")
        for read in (load_args, load_tokenizer):
            message = refusal(read, tmp_path)
            assert "\n" not in message
            assert len(message) < 900


def test_a_file_is_written_into_a_directory_that_cannot_be_opened(tmp_path, monkeypatch):
    """On Windows no directory can be opened; elsewhere it may lack read permission."""
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


def test_values_in_messages_are_truncated_to_60_characters():
    assert short_repr("x" * 58) == f"'{'x' * 58}'"
    assert short_repr("x" * 59) == f"'{'x' * 56}..."
    assert len(short_repr("x" * 59)) == 60
    assert short_repr(2**63 - 1) == str(2**63 - 1)
    assert short_repr(2**63) == short_repr(-(2**63)) == "a number beyond 2**63"
