"""argparse without abbreviated flags, with suggestions for mistyped ones and one-line errors."""

import argparse
import difflib
import itertools
from typing import Any, NoReturn

from .script import fail


def restore_double_dash(action: argparse.Action, values: Any) -> Any:
    """The value of a flag, with ``--`` restored: for ``--prompt=--`` argparse of Python 3.11 passes an empty list.

    argparse takes the value ``--`` for the separator between flags and positional arguments.
    """
    if values != [] or not action.option_strings:
        return values
    if action.choices is not None:
        raise argparse.ArgumentError(action, f"invalid choice: '--' (choose from {', '.join(action.choices)})")
    value = action.type("--") if callable(action.type) else "--"
    return [value] if action.nargs == "+" else value


class Store(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, restore_double_dash(self, values))


class Append(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        earlier = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*earlier, restore_double_dash(self, values)])


class Extend(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        earlier = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*earlier, *restore_double_dash(self, values)])


def format_flag(flag: str, text: str) -> str:
    """The flag and its value, in double quotes if it has a space; a long text is truncated."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f'{flag} "{text}"' if " " in text else f"{flag} {text}"


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest the nearest flag.

    ``text_flag`` is suggested for text without a flag; ``--prompt`` in generate.py.
    """

    def __init__(self, text_flag: str | None = None, **options: Any) -> None:
        self.flag_names: list[str] = []  # candidates for suggestions
        self.text_flag = text_flag
        super().__init__(allow_abbrev=False, **options)
        self.register("action", None, Store)
        self.register("action", "store", Store)
        self.register("action", "append", Append)
        self.register("action", "extend", Extend)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.flag_names += action.option_strings
        return action

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return parsed
        if self.text_flag and not unknown[0].startswith("-"):
            text = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), unknown))
            fail(self.prog, f"unknown argument {unknown[0]!r}: did you mean {format_flag(self.text_flag, text)}?")
        name = unknown[0].split("=")[0]
        close = difflib.get_close_matches(name, self.flag_names, n=1, cutoff=0.5)
        suggestion = f"did you mean {close[0]!r}?" if close else "try --help"
        fail(self.prog, f"unknown argument {name!r}: {suggestion}")

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)
