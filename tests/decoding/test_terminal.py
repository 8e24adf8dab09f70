"""User input: commands and texts of several lines in a terminal, plain lines from a pipe."""

import io
import sys

import pytest

from model.decoding.terminal import GREETING, Command, greet, read_turn


class Screen(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def __init__(self, content=b""):
        super().__init__(io.BytesIO(content), encoding="utf-8")

    def isatty(self):
        return True


def turns(**commands):
    table = {f"/{name}": Command(f"what {name} does", run, "TEXT") for name, run in commands.items()}
    greet()
    return list(iter(lambda: read_turn(table), None))


EXAMPLES = [
    ("Tim", ["Tim"]),
    ("\n \nTim\n\n", ["Tim"]),
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


def test_a_command_gets_what_follows_its_name_and_may_give_a_text(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(sys, "stdin", Screen(b"/help\n/note  one two \n/note\n/notes now\n/again x\nTim\n"))
    assert turns(note=called.append, again=str.upper) == ["X", "Tim"]
    assert called == ["one two", ""]
    err = capsys.readouterr().err
    for words in ("/note TEXT        what note does\n", "/exit  ", "/notes now is not a command, see /help"):
        assert words in err


def test_from_a_pipe_every_line_is_a_text(monkeypatch, capsys):
    content = b'/reset\n\n"""one\n/exit\nlast'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert turns() == ["/reset", "", '"""one', "/exit", "last"]
    assert capsys.readouterr().err == ""
