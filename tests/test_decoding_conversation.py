"""A text in turns: nothing is read twice, and no end of a turn harms the rest."""

import io
from types import SimpleNamespace

import pytest
from letters import LETTERS

from model import generation
from model.decoding.conversation import Conversation, converse
from model.decoding.network import for_decoding
from model.decoding.samples import Speed
from model.decoding.sampling import Sampling


@pytest.fixture
def talk(small_model):
    """A conversation, and what its network computed: (start_pos, tokens) of each forward."""
    model = small_model(vocab_size=258, max_seq_len=64).eval()
    read = []
    hidden = model.hidden
    model.hidden = lambda tokens, start_pos, cache: (
        read.append((start_pos, tokens.tolist()[0])) or hidden(tokens, start_pos, cache)
    )
    conversation = Conversation(for_decoding(model), LETTERS, Sampling(0.0), Speed())
    return SimpleNamespace(model=model, read=read, conversation=conversation)


def said(samples):
    return list(samples)[-1]


def test_turns_continue_one_text_and_read_nothing_twice(talk):
    first = said(talk.conversation.turn("ab", 5, []))
    second = said(talk.conversation.turn("cd", 5, []))
    whole = LETTERS.encode("ab") + first.tokens + LETTERS.encode("\ncd", bos=False)
    expected = next(iter(generation.generate(talk.model, [whole], 1)))
    assert second.tokens[0] == expected[0]
    read = talk.read[:-1]
    slots = [start + at for start, tokens in read for at in range(len(tokens))]
    assert slots == list(range(len(slots))), "each slot is written once, in order"
    assert [token for _, tokens in read for token in tokens] == whole + second.tokens[:-1]


def test_the_repetition_penalty_knows_the_turns_before(talk):
    talk.conversation.sampling = Sampling(0.0, repetition_penalty=1e6)
    given = [token for line in ("ab", "cd", "ef") for token in said(talk.conversation.turn(line, 5, [])).tokens]
    assert len(set(given)) == len(given) == 15


def test_an_interrupted_turn_leaves_the_conversation_whole(talk):
    turn = talk.conversation.turn("ab", 9, [])
    given = [list(next(turn).tokens) for _ in range(3)][-1]
    turn.close()
    second = said(talk.conversation.turn("cd", 2, []))
    whole = LETTERS.encode("ab") + given + LETTERS.encode("\ncd", bos=False)
    assert second.tokens == [step[0] for step in generation.generate(talk.model, [whole], 2)]


def test_a_full_context_is_said_and_a_new_text_begins(talk, monkeypatch, capsys):
    lines = io.BytesIO(b"a" * 40 + b"\n" + b"b" * 40 + b"\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=lines))
    converse(talk.conversation, 5, [])
    notes = capsys.readouterr().err
    assert "the context is full: 45 of its 64 tokens are taken, and the line has 41; a new text begins" in notes
    assert talk.conversation.forwarded == 41 + 4


def test_ctrl_c_ends_the_turn_and_not_the_conversation(talk, monkeypatch, capsys):
    turns = talk.conversation.turn
    asked = []

    def interrupted(line, *rest):
        asked.append(line)
        for number, sample in enumerate(turns(line, *rest)):
            if line == "one" and number == 2:
                raise KeyboardInterrupt
            yield sample

    monkeypatch.setattr(talk.conversation, "turn", interrupted)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    converse(talk.conversation, 5, [])
    assert asked == ["one", "two"]
    assert "Ctrl-D ends" in capsys.readouterr().err


def test_a_line_that_fits_no_context_does_not_end_the_conversation(talk, monkeypatch, capsys):
    lines = io.BytesIO(b"a" * 400 + b"\n" + b"ok\n" + b"b" * 400 + b"\n\xff\nthe last\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=lines))
    converse(talk.conversation, 5, [])
    out, notes = capsys.readouterr()
    assert notes.count("and the line has 401: give another line") == 2
    assert "stdin is not UTF-8 at byte 0" in notes
    assert talk.conversation.turns == 2
    assert out.count("\n") >= 2


def test_without_stdin_a_conversation_is_over(talk, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    converse(talk.conversation, 5, [])
    assert capsys.readouterr().out == ""


def test_a_turn_ends_at_a_stop_string_and_the_next_continues_the_text(talk):
    first = said(talk.conversation.turn("ab", 9, []))
    talk.conversation.start_anew()
    stop = first.text[3:5]
    cut = said(talk.conversation.turn("ab", 9, [stop]))
    assert (cut.finish, cut.text) == ("stop", first.text[: first.text.index(stop)])
    second = said(talk.conversation.turn("cd", 2, []))
    whole = LETTERS.encode("ab") + cut.tokens + LETTERS.encode("\ncd", bos=False)
    assert second.tokens == [step[0] for step in generation.generate(talk.model, [whole], 2)]
