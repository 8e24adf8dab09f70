import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from model.cli import (
    Parser,
    add_flags,
    format_flags,
    instances,
    read_flags,
    read_toml,
    toml_text,
)
from model.cli.parser import nearest
from model.config import check_settings


@dataclass(frozen=True)
class Shape:
    kind: Annotated[str, "which"] = "round"
    factor: Annotated[float, "how much"] = 1.0


@dataclass(frozen=True)
class Everything:
    """One field of each type.

    This paragraph is not for --help.
    """

    count: Annotated[int, "how many, 100% sure"] = 3
    start: Annotated[int, "where from"] = 0
    rate: Annotated[float, "how fast"] = 0.5
    on: Annotated[bool, "whether"] = False
    name: Annotated[str, "what it is called"] = ""
    file: Annotated[Path | None, "where it is"] = None
    mode: Annotated[Literal["fast", "slow"], "which way"] = "fast"
    names: Annotated[tuple[str, ...], "all names"] = ()
    limit: Annotated[int | None, "at most"] = None
    shape: Annotated[Shape | None, "a table"] = None

    def __post_init__(self):
        check_settings(self)


@dataclass(frozen=True)
class Other:
    """Something else."""

    seed: Annotated[int, "of the random numbers"] = 7


CLASSES = (Everything, Other)


def flags(*arguments: str) -> dict:
    parser = Parser(prog="script.py")
    add_flags(parser, *CLASSES)
    return read_flags(parser.parse_args(arguments), *CLASSES)


def toml(tmp_path: Path, text: str) -> dict:
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    return read_toml(path, *CLASSES)


@pytest.mark.parametrize(
    ("name", "flag", "text", "value"),
    [
        ("rate", "2", "2", 2.0),
        ("name", "12", '"12"', "12"),
        ("names", "1", '"1"', ("1",)),
        ("shape", "{ kind = 'flat', factor = 2 }", "{ kind = 'flat', factor = 2 }", Shape("flat", 2.0)),
        ("shape", "{}", "{}", Shape()),
    ],
)
def test_flags_and_files_are_parsed_to_the_same_values(tmp_path, name, flag, text, value):
    for settings in (flags(f"--{name}", flag), toml(tmp_path, f"{name} = {text}")):
        assert settings == {name: value}
        assert type(settings[name]) is type(value)


def test_flags_override_the_file_which_overrides_the_defaults(tmp_path):
    settings = toml(tmp_path, "count = 10\nrate = 0.1\nseed = 1\non = true") | flags("--count", "20", "--no-on")
    assert instances(settings, *CLASSES) == [Everything(count=20, rate=0.1, on=False), Other(seed=1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count = true", "count is True: give a whole number"),
        (f"rate = {'9' * 400}", "999: give a number"),
        ("mode = 'medium'", "mode is 'medium': give one of fast, slow"),
        ("names = [1, 'two']", "names is (1, 'two'): give a list of texts"),
        ("shape = 'flat'", "shape is 'flat': give a table"),
        ("name = 3", "name is 3: give a text"),
        ("file = 3", "file is 3: give a path"),
        ("count = 'x'\non = 1", "count is 'x': give a whole number; on is 1: give true or false"),
        ("shape = { kidn = 'flat' }", "'kidn': did you mean 'kind'?"),
        ("cuont = 3", "'cuont': did you mean 'count'?"),
        ("count = ", "Invalid value"),
    ],
)
def test_an_error_in_a_file_names_the_file_and_all_wrong_values_with_the_fix(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"my\.toml: .*{re.escape(message)}"):
        toml(tmp_path, text)


@pytest.mark.parametrize(
    "everything",
    [
        Everything(),
        Everything(rate=1e18, name='quotes " and \\ and \n newline, tab \t, é, 🪢'),
        Everything(9, 1, 1e-5, True, "it's ☃", Path("a b/c.txt"), "slow", ("1", "a b"), 4, Shape("flat", 3.5)),
        Everything(-9, 1, -1e-5, False, "------", Path("-x"), "slow", ("1", "-2")),
        Everything(count=0, rate=0.0),
        Everything(name="-x", file=Path("--count"), names=("-1",)),
    ],
)
def test_settings_written_as_flags_or_toml_are_read_back_unchanged(everything, tmp_path):
    assert Everything(**toml(tmp_path, toml_text(everything))) == everything
    words = shlex.split(format_flags(vars(everything)))
    assert Everything(**flags(*words)) == everything


def test_help_is_generated_from_the_fields():
    parser = Parser(prog="script.py")
    add_flags(parser, *CLASSES)
    text = " ".join(parser.format_help().split())
    assert text.endswith(
        "One field of each type: --count N how many, 100% sure (default: 3) --start N where from (default: 0) "
        "--rate X how fast (default: 0.5) --on, --no-on whether --name TEXT what it is called --file PATH where it is "
        '--mode {fast,slow} which way (default: "fast") --names TEXT [TEXT ...] all names --limit N at most '
        "--shape TABLE a table Something else: --seed N of the random numbers (default: 7)"
    )


def test_a_name_is_found_by_its_beginning_if_only_one_begins_so():
    names = ["temperature", "template_var", "top_k", "top_p", "data"]
    found = {name: nearest(name, names) for name in ("tempe", "da", "to", "topk", "zz")}
    assert found == {"tempe": "temperature", "da": "data", "to": None, "topk": "top_k", "zz": None}
    assert nearest("temp", names) == "temperature", "its name in llama.cpp"
    assert nearest("temp", names[1:]) == "template_var"
