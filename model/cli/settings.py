"""Settings from dataclass defaults, overridden by a TOML file, overridden by flags; ``--help`` is made from the fields.

A field is written ``name: Annotated[type, "help"] = default``, with a range ``Annotated[int, "help", Range(1)]``. Its
type is int, float, bool, str, Path, Literal, a tuple of one of these, any of them ``| None``, or a frozen dataclass,
which is an inline table in TOML.
"""

import argparse
import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ..ranges import Range, kind_and_range
from .files import check_is_file, is_utf8, short_repr
from .parser import Parser

Settings = dict[str, Any]  # values by field name; fields that are left out have their defaults
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


class Field(NamedTuple):
    """A setting's type, without ``| None``, its help and its range."""

    kind: Any
    help: str
    range: Range


def setting_fields(*classes: type) -> dict[str, Field]:
    """The fields of the dataclasses by name."""
    fields = {}
    for cls in classes:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind, bounds = kind_and_range(hint)
            text = get_args(hint)[1] if get_origin(hint) is Annotated else ""
            fields[name] = Field(kind, text, bounds)
    return fields


def add_flags(parser: Parser, *classes: type) -> None:
    """Add a flag ``--name VALUE`` for each field, in a group per class. Flags that are not given are not set."""
    for cls in classes:
        group = parser.add_argument_group((cls.__doc__ or cls.__name__).split("\n")[0].rstrip(". "))
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, (kind, text, bounds) in setting_fields(cls).items():
            text += f" [{bounds}]" if bounds != Range() else ""
            if defaults[name] is not False and defaults[name] not in (None, "", (), dataclasses.MISSING):
                text += f" (default: {toml_value(defaults[name])})"
            options: dict[str, Any] = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
            if kind is bool:
                # --not_name overrides a TOML file. The two take no value, so a path may follow them.
                group.add_argument(f"--{name}", action="store_true", **options)
                hidden = options | {"help": argparse.SUPPRESS}
                group.add_argument(f"--not_{name}", action="store_false", dest=name, **hidden)
                continue
            if get_origin(kind) is tuple:
                options |= {"nargs": "+", "action": "extend"}
            group.add_argument(f"--{name}", metavar=metavar(kind), **options)


def metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if get_origin(kind) is tuple:
        return metavar(get_args(kind)[0])
    return {int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(kind, "TABLE")


def read_flags(flags: argparse.Namespace, *classes: type) -> Settings:
    """The given flags that are fields of ``classes``, converted to the types of the fields."""
    fields = setting_fields(*classes)
    settings = {}
    for name, value in vars(flags).items():
        if name in fields:
            kind = fields[name].kind
            settings[name] = convert(name, parse_text(value, kind), kind)
    return settings


def read_toml(path: Path, *classes: type) -> Settings:
    """The settings in a file. Raises ValueError with the file and the key; an unknown key gets a suggestion."""
    check_is_file(path)
    try:
        return from_table(parse_toml(path.read_text(encoding="utf-8")), *classes)
    except ValueError as error:  # includes TOML and UTF-8 errors
        raise ValueError(f"{path}: {error}") from None


def parse_toml(text: str) -> Settings:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its tables or lists are nested too deeply: no setting needs that") from None


def from_table(table: Settings, *classes: type) -> Settings:
    """The settings in a TOML table, converted to the types of the fields."""
    fields = setting_fields(*classes)
    for name in table:
        if name not in fields:
            raise ValueError(f"unknown setting {name!r}{suggest_name(name, fields)}")
    return {name: convert(name, value, fields[name].kind) for name, value in table.items()}


def suggest_name(name: str, names: Iterable[str]) -> str:
    """The end of an error message: the nearest of ``names``, or all of them if none is near."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else f": give one of {', '.join(names)}"


def parse_text(text: Any, kind: Any) -> Any:
    """Parse a flag's text as a number or table. Invalid text is returned unchanged, and ``convert`` refuses it."""
    if isinstance(text, bool):
        return text
    if isinstance(text, list):
        return [parse_text(item, get_args(kind)[0]) for item in text]
    try:
        if kind in (int, float):
            return kind(text)
        if dataclasses.is_dataclass(kind):
            return parse_toml(f"value = {text}")["value"]
    except ValueError:
        pass
    return text


def convert(name: str, value: Any, kind: Any) -> Any:
    """Convert ``value`` to the field's type. Raises ValueError that tells what to give instead."""
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(convert(name, item, get_args(kind)[0]) for item in items)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name} is {short_repr(value)}: give one of {', '.join(get_args(kind))}")
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {short_repr(value)}: give a table like {{ name = value }}")
        return from_settings(kind, from_table(value, kind))
    if kind is float and type(value) is int and abs(value) < 2**63:  # larger integers may overflow a float
        return float(value)
    if kind is Path and isinstance(value, str):
        value = Path(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {short_repr(value)}: give {TYPE_NAMES[kind]}")
    if kind in (str, Path) and not is_utf8(str(value)):
        raise ValueError(f"{name} is {short_repr(str(value))}, which is not UTF-8: write or name it in UTF-8")
    return value


def from_settings(cls: type, settings: Settings) -> Any:
    """An instance of ``cls``. Settings that are not its fields are ignored."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in settings.items() if name in names})


def toml_text(*instances: Any) -> str:
    """All fields that are not None as TOML, the inverse of ``read_toml``."""
    values = {name: value for instance in instances for name, value in vars(instance).items()}
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in values.items() if value is not None)


def format_flags(settings: Settings, *classes: type) -> str:
    """The settings as flags, quoted for a shell; the inverse of ``read_flags``."""
    words = []
    for name in setting_fields(*classes):
        value = settings.get(name)
        if value is None or value == ():
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--not_{name}")
            continue
        values = value if isinstance(value, tuple) else (value,)
        texts = [toml_value(each) if dataclasses.is_dataclass(each) else str(each) for each in values]
        if any(text.startswith("-") for text in texts):  # as a separate word it would be taken for a flag
            words += [f"--{name}={quote(text)}" for text in texts]
        else:
            words += [f"--{name}", *map(quote, texts)]
    return " ".join(words)


def format_path(path: str | Path) -> str:
    """The path as a positional argument, quoted for a shell."""
    text = str(path)
    return quote(f"./{text}" if text.startswith("-") else text)  # as ``-x`` it would be taken for a flag


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
