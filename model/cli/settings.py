"""Settings come from a dataclass's defaults, then a TOML file, then flags; each field is its own documentation.

A field reads ``name: Annotated[type, "help"] = default``. Its type is int, float, bool, str, Path, Literal, a tuple of
one of these, any of them ``| None``, or a frozen dataclass, which a user writes as a TOML inline table.
"""

import argparse
import dataclasses
import difflib
import json
import os
import tomllib
import types
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .files import check_is_file, shortened
from .parser import Parser

Settings = dict[str, Any]  # the settings a user gave, by field name
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def hints(*classes: type) -> dict[str, tuple[Any, str]]:
    """Field name -> (type without ``| None``, help)."""
    found = {}
    for cls in classes:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind, text = hint, ""
            if get_origin(hint) is Annotated:
                kind, text = get_args(hint)
            if get_origin(kind) in (Union, types.UnionType):
                kind = next(arm for arm in get_args(kind) if arm is not type(None))
            found[name] = (kind, text)
    return found


def add_flags(parser: Parser, *classes: type) -> None:
    """One flag a field, ``--name VALUE``, in a group for each class; flags left out leave no trace."""
    for cls in classes:
        group = parser.add_argument_group((cls.__doc__ or cls.__name__).split("\n")[0].rstrip(". "))
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, (kind, text) in hints(cls).items():
            if defaults[name] is not False and defaults[name] not in (None, "", (), dataclasses.MISSING):
                text += f" (default: {toml_value(defaults[name])})"
            options: dict[str, Any] = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
            if kind is bool:
                parser.flag_names += add_switch(group, name, options)
                continue
            if get_origin(kind) is tuple:
                options |= {"nargs": "+", "action": "extend"}
            group.add_argument(f"--{name}", metavar=metavar(kind), **options)
            parser.flag_names.append(f"--{name}")


def add_switch(group: Any, name: str, options: dict[str, Any]) -> list[str]:
    """``--name``, and ``--not_name`` against a file with true. No value: what follows may be the file or model."""
    group.add_argument(f"--{name}", action="store_true", **options)
    group.add_argument(f"--not_{name}", action="store_false", dest=name, **options | {"help": argparse.SUPPRESS})
    return [f"--{name}", f"--not_{name}"]


def metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if get_origin(kind) is tuple:
        return metavar(get_args(kind)[0])
    return {int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(kind, "TABLE")


def read_flags(flags: argparse.Namespace, *classes: type) -> Settings:
    """The flags that were given and belong to ``classes``, as values of their fields' types."""
    kinds = hints(*classes)
    found = {}
    for name, value in vars(flags).items():
        if name in kinds:
            kind, _ = kinds[name]
            found[name] = convert(name, from_text(value, kind), kind)
    return found


def read_toml(path: Path, *classes: type) -> Settings:
    """The settings a file holds. Raises ValueError that names the file and the key, and suggests the nearest name."""
    check_is_file(path)
    try:
        return from_table(parse_toml(path.read_text(encoding="utf-8")), *classes)
    except ValueError as error:  # a TOML or UTF-8 error is one too
        raise ValueError(f"{path}: {error}") from None


def parse_toml(text: str) -> Settings:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its tables or lists are nested too deeply: no setting needs that") from None


def from_table(table: Settings, *classes: type) -> Settings:
    kinds = hints(*classes)
    for name in table:
        if name not in kinds:
            raise ValueError(f"unknown setting {name!r}{nearest(name, kinds)}")
    return {name: convert(name, value, kinds[name][0]) for name, value in table.items()}


def nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {found[0]!r}?" if found else f": known are {', '.join(known)}"


def from_text(text: Any, kind: Any) -> Any:
    """What a flag's text means for a field of this type; what means nothing stays text, for ``convert`` to refuse."""
    if isinstance(text, bool):
        return text
    if isinstance(text, list):
        return [from_text(item, get_args(kind)[0]) for item in text]
    try:
        if kind in (int, float):
            return kind(text)
        if dataclasses.is_dataclass(kind):
            return parse_toml(f"value = {text}")["value"]
    except ValueError:
        pass
    return text


def typed_text(text: str) -> str:
    """An argument as the text that was typed: where the locale's encoding lacks its letters, its bytes are UTF-8.

    Raises ValueError for what is no UTF-8 either.
    """
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # Python holds bytes that it cannot decode as lone surrogates
        pass
    try:
        return text.encode(errors="surrogateescape").decode()
    except UnicodeError:
        raise ValueError(f"{text!r} is not UTF-8: write or name it in UTF-8") from None


def local_path(text: str) -> Path:
    """The file of this name, typed or from a settings file. Where the locale lacks a letter, the disk has its UTF-8."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        text = os.fsdecode(text.encode())
    return Path(text)


def convert(name: str, value: Any, kind: Any) -> Any:
    """``value`` as the field's type. Raises ValueError that says what to give instead."""
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(convert(name, item, get_args(kind)[0]) for item in items)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name} is {shortened(value)}: give one of {', '.join(get_args(kind))}")
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {shortened(value)}: give a table, such as {{ name = value }}")
        return from_settings(kind, from_table(value, kind))
    if kind is float and type(value) is int and abs(value) < 2**63:  # TOML and JSON have integers beyond any float
        return float(value)
    if kind is Path and isinstance(value, str | Path):
        return local_path(str(value))
    if type(value) is not kind:
        raise ValueError(f"{name} is {shortened(value)}: give {WORDS[kind]}")
    return typed_text(value) if kind is str else value


def from_settings(cls: type, settings: Settings) -> Any:
    """An instance of ``cls`` from those settings that are its fields."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in settings.items() if name in names})


def write_toml(*instances: Any) -> str:
    """Every field that has a value, as TOML that ``read_toml`` gives back."""
    values = {name: value for instance in instances for name, value in vars(instance).items()}
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in values.items() if value is not None)


def typed_flags(settings: Settings, *classes: type) -> str:
    """The flags that ``read_flags`` gives back as these settings, quoted for a shell."""
    words = []
    for name in hints(*classes):
        value = settings.get(name)
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--not_{name}")
            continue
        values = value if isinstance(value, tuple) else (value,)
        words.append(f"--{name}")
        words += [quote(toml_value(each) if dataclasses.is_dataclass(each) else str(each)) for each in values]
    return " ".join(words)


def toml_value(value: Any) -> str:
    """``value`` as TOML writes it."""
    if dataclasses.is_dataclass(value):
        inner = ", ".join(f"{name} = {toml_value(item)}" for name, item in vars(value).items() if item is not None)
        return f"{{ {inner} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):  # JSON's strings are TOML's, except that TOML takes no DEL as it is
        return json.dumps(typed_text(str(value)), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
