import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from model.cli import Parser, add_flags, format_flags, instances, read_flags, read_toml, toml_text


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
    sizes: Annotated[tuple[int, ...], "how large"] = ()
    limit: Annotated[int | None, "at most"] = None
    shape: Annotated[Shape | None, "a table"] = None


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
        ("sizes", "1", "1", (1,)),
        ("shape", "{ kind = 'flat', factor = 2 }", "{ kind = 'flat', factor = 2 }", Shape("flat", 2.0)),
        ("shape", "{}", "{}", Shape()),
    ],
)
def test_flags_and_files_are_parsed_to_the_same_values(tmp_path, name, flag, text, value):
    for settings in (flags(f"--{name}", flag), toml(tmp_path, f"{name} = {text}")):
        assert settings == {name: value}
        assert type(settings[name]) is type(value)


def test_a_switch_takes_no_value_and_can_be_negated(tmp_path):
    assert flags("--on") == {"on": True}
    assert toml(tmp_path, "on = true") | flags("--no-on") == {"on": False}


def test_flags_override_the_file_which_overrides_the_defaults(tmp_path):
    settings = toml(tmp_path, "count = 10\nrate = 0.1\nseed = 1") | flags("--count", "20", "--on")
    assert instances(settings, *CLASSES) == [Everything(count=20, rate=0.1, on=True), Other(seed=1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count = 'many'", "count is 'many': give a whole number"),
        ("count = true", "count is True: give a whole number"),
        (f"rate = {'9' * 400}", "999: give a number, below 2**63"),
        ("mode = 'medium'", "mode is 'medium': give one of fast, slow"),
        ("sizes = [1, 'two']", "sizes is 'two': give a whole number"),
        ("shape = 'flat'", "shape is 'flat': give a table"),
        ("shape = { kidn = 'flat' }", "'kidn': did you mean 'kind'?"),
        ("on = 1", "on is 1: give true or false"),
        ("name = 3", "name is 3: give a text"),
        ("cuont = 3", "'cuont': did you mean 'count'?"),
        ("count = ", "Invalid value"),
    ],
)
def test_an_error_in_a_file_names_file_key_and_fix(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"my\.toml: ") as caught:
        toml(tmp_path, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "everything",
    [
        Everything(),
        Everything(rate=1e20, name='quotes " and \\ and \n newline, tab \t, é, 🪢'),
        Everything(9, 1, 1e-5, True, "it's ☃", Path("a b/c.txt"), "slow", (1, 2), 4, Shape("flat", 3.5)),
        Everything(-9, 1, -1e-5, False, "------", Path("-x"), "slow", (1, -2)),
        Everything(name="-x", file=Path("--count"), sizes=(-1,)),
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
    for part in (
        "One field of each type: --count N how many, 100% sure (default: 3) --start",
        "--on, --no-on whether --name TEXT what it is called --file PATH where it is",
        '--mode {fast,slow} which way (default: "fast") --sizes N [N ...] how large',
        "--shape TABLE a table Something else: --seed N of the random numbers",
    ):
        assert part in text
