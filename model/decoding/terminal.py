"""What a person types, turn by turn: line editing, texts of several lines, and commands; in a terminal only.

From a pipe each line is a turn, whatever it holds.
"""

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TextIO

from ..cli import decode_argument, print_note
from .prompts import utf8

QUOTES = '"""'  # around a text of several lines, as ollama has it
END_KEYS = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
GREETING = f"(/reset begins a new text, /help lists everything, {END_KEYS} ends)"
HELP = f"""\
/reset      begin a new text
/help       this list
/exit       end, as {END_KEYS} does
{QUOTES}         begins and ends a text of several lines
//          begins a text with a slash: //etc is /etc
Ctrl-C      stop the model, or leave out what you have typed"""


class Terminal:
    """The turns of a conversation. ``reset`` is called for ``/reset``."""

    def __init__(self, reset: Callable[[], object]) -> None:
        self.reset = reset
        self.typed = is_terminal(sys.stdin)
        # Python reads with line editing only if both are: otherwise its prompt would be among the text on stdout.
        self.edited = self.typed and is_terminal(sys.stdout)
        if self.edited:
            with suppress(ImportError):  # Windows has none, and edits lines by itself
                import_module("readline")
        if self.typed:
            print_note(GREETING)

    def read_turn(self) -> str | None:
        """The next text, None at the end of the input. Raises ValueError for what is not UTF-8 or no command."""
        while True:
            text = self._read_line("> ")
            if not self.typed or text is None:
                return text
            if text.startswith(QUOTES):
                return self._read_quoted(text.removeprefix(QUOTES))
            if text.startswith("//"):
                return text[1:]
            if not text.startswith("/"):
                return text
            command = text.rstrip()
            if command == "/exit":
                return None
            self._obey(command)

    def _read_quoted(self, text: str) -> str | None:
        """The lines up to the next quotes; what follows these is dropped."""
        while QUOTES not in text:
            line = self._read_line("... ")
            if line is None:
                return None
            text += "\n" + line
        return text.partition(QUOTES)[0].strip("\n")

    def _obey(self, command: str) -> None:
        if command == "/reset":
            self.reset()
            print_note("(a new text begins)")
        elif command == "/help":
            print_note(HELP)
        else:
            name = command.split()[0][:30]
            raise ValueError(f"{name} is no command, see /help; if it is text, write /{name}")

    def _read_line(self, prompt: str) -> str | None:
        """A line without its end; None at the end of the input."""
        if self.edited:
            try:
                return decode_argument(input(prompt))
            except EOFError:
                line = b""
        else:
            print_note(prompt, end="")
            line = sys.stdin.buffer.readline() if sys.stdin else b""
        if not line:
            print_note("")  # what comes next starts on a line of its own
            return None
        return utf8(line, "stdin").rstrip("\r\n")


def is_terminal(stream: TextIO | None) -> bool:
    return isinstance(stream, io.TextIOWrapper) and stream.isatty()
