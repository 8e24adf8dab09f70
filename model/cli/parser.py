"""argparse without abbreviated flags, with suggestions for mistyped ones and one-line errors."""

import argparse
import difflib
import itertools
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .script import fail


def format_flag(flag: str, text: str) -> str:
    """The flag and its value, in double quotes if it has a space; a long text is truncated."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f'{flag} "{text}"' if " " in text else f"{flag} {text}"


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest the nearest flag.

    ``text_flag`` is suggested for text without a flag; ``--prompt`` in generate.py.
    """

    def __init__(self, text_flag: str | None = None, **options: Any) -> None:
        self.text_flag = text_flag
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        args = sys.argv[1:] if args is None else args
        for word in args:
            if word.startswith("--") and word.endswith("=--"):  # argparse of Python 3.11 drops this value
                self.error(f"{word}: the value -- cannot be given to a flag")
        parsed, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return parsed
        if self.text_flag and not unknown[0].startswith("-"):
            text = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), unknown))
            self.error(f"unknown argument {unknown[0]!r}: did you mean {format_flag(self.text_flag, text)}?")
        name = unknown[0].split("=")[0]
        close = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.5)
        suggestion = f"did you mean {close[0]!r}?" if close else "try --help"
        self.error(f"unknown argument {name!r}: {suggestion}")

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)
