"""Settings from dataclass defaults, overridden by a TOML file, overridden by flags; ``--help`` is made from the fields.

``config.py`` of the network says how a field is written. A field that is a frozen dataclass is an inline table in TOML.
"""

import argparse
import dataclasses
import json
import tomllib
from collections.abc import Collection
from contextlib import suppress
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from ..config import TEXTS, Range, is_number, raise_problems, setting_fields, value_problems
from .parser import Parser, nearest, user_path

Settings = dict[str, Any]  # values by field name; fields that are left out have their defaults


class Flag(Enum):
    """How a field is given on the command line, if not as ``--name VALUE``: ``Annotated[Path, "help", POSITIONAL]``."""

    POSITIONAL = "without its name"
    REPEATED = "one value at a time, as often as wanted"  # other lists take several values at a time


POSITIONAL, REPEATED = Flag.POSITIONAL, Flag.REPEATED
Options = TypeVar("Options")
DeviceName = Annotated[str, "auto, cpu, cuda, cuda:N or mps"]  # a setting of several programs
METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH", TEXTS: "TEXT"}


def add_flags(parser: Parser, *classes: type) -> None:
    """Add a flag ``--name VALUE`` for each field, in a group per class. Flags that are not given are not set."""
    owners = {name: cls for cls in classes for name in setting_fields(cls)}
    for name in parser.common:
        add_flag(parser, parser, owners[name], name)
    for cls in classes:
        group = parser.add_argument_group((cls.__doc__ or cls.__name__).split("\n")[0].rstrip(". "))
        for name in setting_fields(cls):
            if name not in parser.common:
                add_flag(parser, group, cls, name)


def add_flag(parser: Parser, group: argparse._ActionsContainer, cls: type, name: str) -> None:
    kind, text, bounds, marks = setting_fields(cls)[name]
    text += f" [{bounds}]" if bounds != Range() else ""
    default = getattr(cls, name, None)  # of a dataclass, the default of the field
    if name in parser.defaults:
        text += f" (default: {parser.defaults[name]})"
    elif default is not False and default not in (None, "", ()):
        text += f" (default: {toml_value(default)})"
    options: dict[str, Any] = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction  # --no-NAME overrides a TOML file
    elif get_origin(kind) is Literal:
        options["metavar"] = "{" + ",".join(get_args(kind)) + "}"
    else:
        options["metavar"] = METAVARS.get(kind, "TABLE")
    if kind == TEXTS:
        options |= {"action": "append"} if REPEATED in marks else {"nargs": "+", "action": "extend"}
    if POSITIONAL in marks:
        if hasattr(cls, name):  # it has a default, so that it may be left out
            options["nargs"] = "*" if kind == TEXTS else "?"
        parser.add_argument(name, **options | {"metavar": name.upper()})
    else:
        group.add_argument(f"--{name}", **options)


def parse(parser: Parser, cls: type[Options], *others: type) -> tuple[Options, Settings]:
    """Parse the command line: an instance of ``cls``, and the given settings of the ``others``.

    Settings of the ``others`` that are not given come from elsewhere, such as a file.
    """
    add_flags(parser, cls, *others)
    flags = parser.parse_args()
    return cls(**read_flags(flags, cls)), read_flags(flags, *others)


def read_flags(flags: argparse.Namespace, *classes: type) -> Settings:
    """The given flags that are fields of ``classes``, converted to the types of the fields."""
    fields = setting_fields(*classes)
    return from_table({name: value for name, value in vars(flags).items() if name in fields}, *classes)


def read_toml(path: Path, *classes: type) -> Settings:
    """The settings in a file. Raises ValueError with the file and the key; an unknown key gets a suggestion."""
    try:
        return from_table(tomllib.loads(path.read_text(encoding="utf-8-sig")), *classes)
    except (ValueError, RecursionError) as error:  # TOML and UTF-8 errors are ValueErrors
        raise ValueError(f"{path}: {error}") from None


def from_table(table: Settings, *classes: type) -> Settings:
    """The settings in a TOML table, converted to the types of the fields.

    Raises ValueError that lists every value of a wrong type or out of its range.
    """
    fields = setting_fields(*classes)
    for name in table:
        if name not in fields:
            raise ValueError(f"unknown setting {name!r}{suggest_name(name, fields)}")
    settings = {name: convert(value, fields[name].kind) for name, value in table.items()}
    raise_problems(problem for name, value in settings.items() for problem in value_problems(name, value, fields[name]))
    return settings


def suggest_name(name: str, names: Collection[str]) -> str:
    """The end of an error message: the nearest of ``names``, or all of them if none is near."""
    meant = nearest(name, names)
    return f": did you mean {meant!r}?" if meant else f": give one of {', '.join(names)}"


def convert(value: Any, kind: Any) -> Any:
    """Convert ``value``, which is text if it comes from a flag, to the field's type.

    A value that cannot be converted is returned as it is.
    """
    is_text = isinstance(value, str)
    if kind == TEXTS:
        return tuple(value) if isinstance(value, list) else (value,)
    if is_text and kind is Path:
        return user_path(value)
    with suppress(ValueError, OverflowError):
        if (is_text and kind in (int, float)) or (kind is float and is_number(value, int)):
            return kind(value)
        if is_text and dataclasses.is_dataclass(kind):
            value = tomllib.loads(f"value = {value}")["value"]
    if isinstance(value, dict) and isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**from_table(value, kind))
    return value


def instances(settings: Settings, *classes: type) -> list[Any]:
    """An instance of each dataclass, made from the settings that are its fields. Each must be a field of one class."""
    fields = [setting_fields(cls) for cls in classes]
    assert settings.keys() <= set().union(*fields)
    return [cls(**{name: settings[name] for name in own if name in settings}) for cls, own in zip(classes, fields)]


def values(*instances: Any) -> Settings:
    """The fields of all instances by name."""
    return {name: value for instance in instances for name, value in vars(instance).items()}


def toml_text(*instances: Any) -> str:
    """All fields that are not None as TOML, the inverse of ``read_toml``."""
    fields = values(*instances).items()
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in fields if value is not None)


def format_flags(settings: Settings) -> str:
    """The settings as flags, quoted for a shell; the inverse of ``read_flags``."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            items = value if isinstance(value, tuple) else (value,)
            texts = [toml_value(item) if dataclasses.is_dataclass(item) else str(item) for item in items]
            words += [f"--{name}={quote(text)}" for text in texts]
    return " ".join(words)


def toml_value(value: Any) -> str:
    """``value`` in TOML syntax."""
    if dataclasses.is_dataclass(value):
        inner = ", ".join(f"{name} = {toml_value(item)}" for name, item in vars(value).items() if item is not None)
        return f"{{ {inner} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):  # TOML's strings are JSON's, except that DEL must be escaped
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
