"""User input of a conversation: line editing, multi-line texts, and commands.

Commands and multi-line texts work only in a terminal. If stdin is a file or a pipe, each line is a turn, even if it
looks like a command.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

from ..cli import print_note
from ..cli.files import decode_utf8

QUOTES = '"""'  # around a multi-line text, as in ollama
END_KEYS = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
GREETING = f"(/reset clears the conversation, /help lists all commands, {END_KEYS} ends)"
OTHER_INPUT = {
    "/help": "print this list",
    "/exit": f"end, like {END_KEYS}",
    QUOTES: "begin or end a multi-line text, or one that begins with a slash",
    "Ctrl-C": "stop the model, or discard the line",
}


class Command(NamedTuple):
    """What a line that begins with a slash does."""

    help: str
    run: Callable[[str], str | None]  # of what follows the name; returns a text that the model is to answer, or None
    argument: str = ""  # what follows the name, in the help


def greet() -> None:
    """In a terminal, load line editing and print the first commands."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # Windows has no readline; its console edits lines itself
            import_module("readline")
        print_note(GREETING)


def read_turn(commands: Mapping[str, Command]) -> str | None:
    """The user's next text, None at the end of stdin or after /exit. Before, the ``commands`` that are typed are run.

    In a terminal an empty line is not a text. Raises ValueError for invalid UTF-8, and what commands raise.
    """
    while True:
        text = _read_line("> ")
        if text is None or not sys.stdin.isatty():
            return text
        if text.startswith(QUOTES):
            return _read_quoted(text.removeprefix(QUOTES))
        if not text.strip():
            continue
        if not text.startswith("/"):
            return text
        name, _, argument = text.rstrip().partition(" ")
        if name == "/exit":
            return None
        if name == "/help":
            print_help(commands)
        elif name in commands:
            again = commands[name].run(argument.strip())
            if again is not None:
                return again
        else:
            print_note(f"{text.rstrip()[:30]} is not a command, see /help; if it is text, put it in {QUOTES}")


def print_help(commands: Mapping[str, Command]) -> None:
    rows = {f"{name} {command.argument}".rstrip(): command.help for name, command in commands.items()} | OTHER_INPUT
    for usage, text in rows.items():
        print_note(f"{usage:<17} {text}")


def _read_quoted(text: str) -> str | None:
    """The text up to the closing quotes; the rest of their line is discarded."""
    while QUOTES not in text:
        line = _read_line("... ")
        if line is None:
            return None
        text += "\n" + line
    return text.partition(QUOTES)[0].strip("\n")


def _read_line(prompt: str) -> str | None:
    """A line without its line break; None at the end of the input. Only a terminal gets a prompt."""
    if not sys.stdin.isatty():
        line = sys.stdin.buffer.readline()
        return decode_utf8(line, "stdin").rstrip("\r\n") if line else None
    try:
        return input(prompt)
    except EOFError:
        print_note("")  # end the line of the prompt
        return None
