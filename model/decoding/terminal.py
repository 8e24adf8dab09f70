"""User input of a conversation: line editing, multi-line texts, and commands.

Commands and multi-line texts work only in a terminal. If stdin is a file or a pipe, each line is a turn, even if it
looks like a command.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from ..cli import print_note
from ..cli.files import decode_utf8

QUOTES = '"""'  # around a multi-line text, as in ollama
END_KEYS = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
GREETING = f"(/reset clears the conversation, /help lists all commands, {END_KEYS} ends)"
HELP = f"""\
/reset      clear the conversation
/help       print this list
/exit       end, like {END_KEYS}
{QUOTES}         begin or end a multi-line text, or one that begins with a slash
Ctrl-C      stop the model, or discard the line"""


def greet() -> None:
    """In a terminal, load line editing and print the first commands."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # Windows has no readline; its console edits lines itself
            import_module("readline")
        print_note(GREETING)


def read_turn(reset: Callable[[], object]) -> str | None:
    """The user's next text, None at the end of stdin or after /exit; ``reset`` is called for /reset.

    Raises ValueError for invalid UTF-8.
    """
    while True:
        text = _read_line("> ")
        if text is None or not sys.stdin.isatty():
            return text
        if text.startswith(QUOTES):
            return _read_quoted(text.removeprefix(QUOTES))
        if not text.startswith("/"):
            return text
        command = text.rstrip()
        if command == "/exit":
            return None
        if command == "/reset":
            reset()
            print_note("(the conversation is cleared)")
        elif command == "/help":
            print_note(HELP)
        else:
            print_note(f"{command[:30]} is not a command, see /help; if it is text, put it in {QUOTES}")


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
