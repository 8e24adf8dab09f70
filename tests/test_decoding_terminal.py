"""What a person types: commands and texts of several lines in a terminal, plain lines from a pipe."""

import builtins
import io
import sys

import pytest

from model.decoding.terminal import GREETING, HELP, Terminal


class Screen(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, content=b""):
        super().__init__(io.BytesIO(content), encoding="utf-8")

    def isatty(self):
        return True


def turns(terminal):
    """Each text, and each mistake's message."""
    found = []
    while True:
        try:
            text = terminal.read_turn()
        except ValueError as error:
            text = f"error: {error}"
        if text is None:
            return found
        found.append(text)


TYPED = [
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
    ("/rest now", ["error: /rest is no command, see /help; if it is text, write //rest"]),
    ("/", ["error: / is no command, see /help; if it is text, write //"]),
    ('"""never closed', []),
]


@pytest.mark.parametrize(("typed", "expected"), TYPED)
@pytest.mark.parametrize("edited", [True, False])
def test_in_a_terminal_texts_have_several_lines_and_commands_are_obeyed(monkeypatch, capsys, typed, expected, edited):
    """With line editing, where stdout is a terminal, too, and without."""
    lines = iter(typed.split("\n"))

    def line_of(prompt):
        assert prompt in ("> ", "... ")
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", Screen(typed.encode() + b"\n"))
    if edited:
        monkeypatch.setattr(sys, "stdout", Screen())
        monkeypatch.setattr(builtins, "input", line_of)
    assert turns(Terminal(pytest.fail)) == expected
    assert capsys.readouterr().err.startswith(f"{GREETING}\n")


def test_help_lists_the_commands_and_reset_calls_back(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(sys, "stdin", Screen(b"/help\n/reset  \nTim\n"))
    assert turns(Terminal(lambda: called.append("reset"))) == ["Tim"]
    assert called == ["reset"]
    err = capsys.readouterr().err
    assert HELP in err
    assert "(a new text begins)" in err


def test_from_a_pipe_every_line_is_a_text(monkeypatch, capsys):
    content = b'/reset\n"""one\n//two\n/exit\nlast'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert turns(Terminal(pytest.fail)) == ["/reset", '"""one', "//two", "/exit", "last"]
    assert capsys.readouterr().err == "> " * 6 + "\n"


@pytest.mark.parametrize("typed", [True, False])
def test_line_editing_is_only_loaded_for_a_terminal(monkeypatch, typed):
    loaded = []
    monkeypatch.setattr("model.decoding.terminal.import_module", loaded.append)
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(sys, "stdin", Screen() if typed else io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    Terminal(pytest.fail)
    assert loaded == (["readline"] if typed else [])


def test_without_a_readline_module_lines_are_read_all_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "readline", None)
    monkeypatch.setattr(sys, "stdin", Screen())
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(builtins, "input", lambda prompt: "/exit")
    assert turns(Terminal(pytest.fail)) == []
