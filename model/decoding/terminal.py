"""User input of a conversation: line editing, multi-line texts, and commands.

Commands and multi-line texts work only in a terminal. If stdin is a file or a pipe, each line is a turn, even if it
looks like a command.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from ..cli import print_note
from .prompts import decode_utf8

QUOTES = '"""'  # around a multi-line text, as in ollama
END_KEYS = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
GREETING = f"(/reset clears the conversation, /help lists all commands, {END_KEYS} ends)"
HELP = f"""\
/reset      clear the conversation
/help       print this list
/exit       end, like {END_KEYS}
{QUOTES}         begin or end a multi-line text
//          begin a text with a slash: //etc is /etc
Ctrl-C      stop the model, or discard the line"""


class Terminal:
    """Read the user's turns from stdin. ``reset`` is called for ``/reset``."""

    def __init__(self, reset: Callable[[], object]) -> None:
        self.reset = reset
        self.is_interactive = sys.stdin.isatty()
        # ``input`` edits lines only if stdin and stdout are terminals. Otherwise it would write its prompt to stdout.
        self.has_line_editing = self.is_interactive and sys.stdout.isatty()
        if self.has_line_editing:
            with suppress(ImportError):  # Windows has no readline; its console edits lines itself
                import_module("readline")
        if self.is_interactive:
            print_note(GREETING)

    def read_turn(self) -> str | None:
        """The next text, None at the end of the input or after /exit.

        Raises ValueError for invalid UTF-8 or an unknown command.
        """
        while True:
            text = self._read_line("> ")
            if not self.is_interactive or text is None:
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
            self._run_command(command)

    def _read_quoted(self, text: str) -> str | None:
        """The text up to the closing quotes; the rest of their line is discarded."""
        while QUOTES not in text:
            line = self._read_line("... ")
            if line is None:
                return None
            text += "\n" + line
        return text.partition(QUOTES)[0].strip("\n")

    def _run_command(self, command: str) -> None:
        if command == "/reset":
            self.reset()
            print_note("(the conversation is cleared)")
        elif command == "/help":
            print_note(HELP)
        else:
            name = command.split()[0][:30]
            reason = "takes no argument" if name in ("/exit", "/reset", "/help") else "is not a command"
            raise ValueError(f"{name} {reason}, see /help; if it is text, write /{name}")

    def _read_line(self, prompt: str) -> str | None:
        """A line without its line break; None at the end of the input."""
        if self.has_line_editing:
            try:
                return input(prompt)
            except EOFError:
                line = b""
        else:
            print_note(prompt, end="")
            line = sys.stdin.buffer.readline()
        if not line:
            print_note("")  # end the line of the prompt
            return None
        return decode_utf8(line, "stdin").rstrip("\r\n")
