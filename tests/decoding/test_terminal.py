"""User input: commands and texts of several lines in a terminal, plain lines from a pipe."""

import io
import sys

import pytest

from model.decoding.terminal import GREETING, HELP, greet, read_turn


class Screen(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def __init__(self, content=b""):
        super().__init__(io.BytesIO(content), encoding="utf-8")

    def isatty(self):
        return True


def turns(reset=pytest.fail):
    greet()
    return list(iter(lambda: read_turn(reset), None))


EXAMPLES = [
    ("Tim", ["Tim"]),
    ("", [""]),
    (" /etc", [" /etc"]),
    ('"""one\n\n  two\\\nthree"""', ["one\n\n  two\\\nthree"]),
    ('"""\none\n"""\nnext', ["one", "next"]),
    ('"""/help"""', ["/help"]),
    ('say """ twice', ['say """ twice']),
    ("before\n/exit\nafter", ["before"]),
    ('"""never closed', []),
]


@pytest.mark.parametrize(("typed", "expected"), EXAMPLES)
def test_a_terminal_has_commands_and_texts_of_several_lines(monkeypatch, capsys, typed, expected):
    """Also without the module readline, which Windows lacks."""
    monkeypatch.setattr(sys, "stdin", Screen(typed.encode() + b"\n"))
    monkeypatch.setitem(sys.modules, "readline", None)
    assert turns() == expected
    assert capsys.readouterr().err.startswith(f"{GREETING}\n")


def test_help_lists_the_commands_and_reset_calls_back(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(sys, "stdin", Screen(b"/help\n/reset  \n/rest now\nTim\n"))
    assert turns(lambda: called.append("reset")) == ["Tim"]
    assert called == ["reset"]
    err = capsys.readouterr().err
    for words in (HELP, "(the conversation is cleared)", "/rest now is not a command, see /help"):
        assert words in err


def test_from_a_pipe_every_line_is_a_text(monkeypatch, capsys):
    content = b'/reset\n"""one\n/exit\nlast'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert turns() == ["/reset", '"""one', "/exit", "last"]
    assert capsys.readouterr().err == ""
