"""User input: commands and texts of several lines in a terminal, plain lines from a pipe."""

import builtins
import io
import sys

import pytest

from model.decoding.terminal import GREETING, HELP, Terminal


class Screen(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def __init__(self, content=b""):
        super().__init__(io.BytesIO(content), encoding="utf-8")

    def isatty(self):
        return True


def turns(terminal):
    """All texts, with the message of each error in its place."""
    texts = []
    while True:
        try:
            text = terminal.read_turn()
        except ValueError as error:
            text = f"error: {error}"
        if text is None:
            return texts
        texts.append(text)


EXAMPLES = [
    ("Tim", ["Tim"]),
    ("", [""]),
    (" /etc", [" /etc"]),
    ("//etc", ["/etc"]),
    ("//", ["/"]),
    ('"""one\n\n  two\\\nthree"""', ["one\n\n  two\\\nthree"]),
    ('"""\none\n"""\nnext', ["one", "next"]),
    ('"""/help"""', ["/help"]),
    ('say """ twice', ['say """ twice']),
    ("before\n/exit\nafter", ["before"]),
    ("/rest now", ["error: /rest is not a command, see /help; if it is text, write //rest"]),
    ("/", ["error: / is not a command, see /help; if it is text, write //"]),
    ('"""never closed', []),
]


@pytest.mark.parametrize(("typed", "expected"), EXAMPLES)
@pytest.mark.parametrize("line_editing", [True, False])
def test_a_terminal_has_commands_and_texts_of_several_lines(monkeypatch, capsys, typed, expected, line_editing):
    """With line editing, if stdout is a terminal too, and without."""
    lines = iter(typed.split("\n"))

    def fake_input(prompt):
        assert prompt in ("> ", "... ")
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", Screen(typed.encode() + b"\n"))
    if line_editing:
        monkeypatch.setattr(sys, "stdout", Screen())
        monkeypatch.setattr(builtins, "input", fake_input)
    assert turns(Terminal(pytest.fail)) == expected
    assert capsys.readouterr().err.startswith(f"{GREETING}\n")


def test_help_lists_the_commands_and_reset_calls_back(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(sys, "stdin", Screen(b"/help\n/reset  \nTim\n"))
    assert turns(Terminal(lambda: called.append("reset"))) == ["Tim"]
    assert called == ["reset"]
    err = capsys.readouterr().err
    assert HELP in err
    assert "(the conversation is cleared)" in err


def test_from_a_pipe_every_line_is_a_text(monkeypatch, capsys):
    content = b'/reset\n"""one\n//two\n/exit\nlast'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert turns(Terminal(pytest.fail)) == ["/reset", '"""one', "//two", "/exit", "last"]
    assert capsys.readouterr().err == "> " * 6 + "\n"


def test_lines_are_read_without_a_readline_module_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "readline", None)
    monkeypatch.setattr(sys, "stdin", Screen())
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(builtins, "input", lambda prompt: "/exit")
    assert turns(Terminal(pytest.fail)) == []
