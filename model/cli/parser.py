"""argparse that takes whole names only, suggests the nearest one, and answers a mistake with one line."""

import argparse
import difflib
import itertools
from typing import Any, NoReturn

from .script import fail


def with_dashes(action: argparse.Action, values: Any) -> Any:
    """The value of a flag, which may be two dashes: for ``--prompt=--`` Python 3.11 gives an empty list instead.

    There they count as the mark between flags and other arguments even when they are written as a flag's value.
    """
    if values != [] or not action.option_strings:
        return values
    if action.choices is not None:
        raise argparse.ArgumentError(action, f"invalid choice: '--' (choose from {', '.join(action.choices)})")
    value = action.type("--") if callable(action.type) else "--"
    return [value] if action.nargs == "+" else value


class Store(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, with_dashes(self, values))


class Append(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        earlier = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*earlier, with_dashes(self, values)])


class Extend(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        earlier = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*earlier, *with_dashes(self, values)])


def as_value(flag: str, text: str) -> str:
    """The flag with this value, as it is typed in any shell; a long text is cut short."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f'{flag} "{text}"' if " " in text else f"{flag} {text}"


class Parser(argparse.ArgumentParser):
    """Not a page of usage before the mistake, but one line with the nearest name.

    ``text_flag`` is the flag that a user probably meant who gave text without a flag, such as ``--prompt``.
    """

    def __init__(self, text_flag: str | None = None, **options: Any) -> None:
        self.flag_names: list[str] = []  # what a mistyped flag is compared with
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
        found, unknown = self.parse_known_args(args, namespace)
        if unknown and self.text_flag and not unknown[0].startswith("-"):
            words = itertools.takewhile(lambda word: not word.startswith("-"), unknown)
            fail(
                self.prog, f"unknown argument {unknown[0]!r}: did you mean {as_value(self.text_flag, ' '.join(words))}?"
            )
        for text in unknown:
            name = text.split("=")[0]
            close = difflib.get_close_matches(name, self.flag_names, n=1, cutoff=0.5)
            remedy = f"did you mean {close[0]!r}?" if close else "try --help"
            fail(self.prog, f"unknown argument {name!r}: {remedy}")
        return found

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)
