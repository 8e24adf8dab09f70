"""A conversation in turns: no token is computed twice, and a turn may end at any point."""

import io
import itertools
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from letters import LETTERS

from chat import converse
from model import generate
from model.decoding.batches import Speed
from model.decoding.conversation import Conversation
from model.decoding.options import Sampling
from model.fast.step import for_decoding


@pytest.fixture
def begin(small_model):
    """``begin(chat, **options)``: a conversation, its model, and the (start_pos, tokens) of each forward."""

    def build(chat=None, max_seq_len=64, **options):
        model, read = small_model(vocab_size=258, max_seq_len=max_seq_len).eval(), []
        if chat is not None:  # so that only letters are sampled, whose text is encoded to the same tokens
            letters = slice(2 + ord("a"), 2 + ord("z") + 1)
            with torch.no_grad():
                wide = model.output.weight[letters] * 9
                model.output.weight.zero_()[letters] = wide
        conversation = Conversation(for_decoding(model), LETTERS, Sampling(0.0), Speed(), chat, **options)
        forward = conversation.network.forward
        conversation.network.forward = lambda tokens, start_pos, cache, mask: (
            read.append((start_pos, tokens.tolist()[0])) or forward(tokens, start_pos, cache, mask)
        )
        return SimpleNamespace(conversation=conversation, model=model, read=read)

    return build


@pytest.fixture
def talk(begin):
    return begin()


@pytest.fixture
def notes(monkeypatch, capsys):
    """``notes(talk, lines, n)``: take a turn for each line of a pipe; the notes on stderr."""

    def call(talk, lines, n):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))
        converse(talk.conversation, n, [])
        return capsys.readouterr().err

    return call


def say(talk, line, n=5, stop=()):
    """Take a turn to its end, and return its sample."""
    return list(talk.conversation.turn(line, n, stop))[-1]


def continuation(talk, tokens, n, **options):
    """The tokens that ``generate`` gives after these."""
    return [token for (token,) in generate(talk.model, [tokens], n, **options)]


@given(st.lists(st.tuples(st.text("ab", max_size=4), st.integers(1, 6), st.booleans()), min_size=2, max_size=4))
def test_turns_continue_one_text_and_compute_no_token_twice(begin, turns):
    """However a turn ends: after its last token, at an end token, which is left out of the text, or by an interrupt."""
    talk = begin()
    talk.conversation.eos_ids = tuple(range(0, 258, 4))
    text, computed = [], 0
    for line, n, interrupted in turns:
        text += LETTERS.encode("\n" + line, bos=False) if text else LETTERS.encode(line)
        talk.read.clear()
        turn = talk.conversation.turn(line, n, [])
        sample = list(itertools.islice(turn, n // 2 if interrupted and n > 1 else n))[-1]
        turn.close()
        expected = continuation(talk, text, n, eos_ids=talk.conversation.eos_ids)
        assert sample.tokens == expected[: len(sample.tokens)]
        text += sample.tokens
        positions = [start + at for start, tokens in talk.read for at in range(len(tokens))]
        assert positions == [*range(computed, len(text) - 1)]
        assert [token for _, tokens in talk.read for token in tokens] == text[computed:-1]
        computed = len(text) - 1
        if sample.finish == "end":
            text.pop()


def test_the_repetition_penalty_counts_earlier_turns(talk):
    talk.conversation.sampling = Sampling(0.0, repetition_penalty=1e6)
    tokens = [token for line in ("ab", "cd", "ef") for token in say(talk, line).tokens]
    assert len(set(tokens)) == len(tokens) == 15


def test_ctrl_c_ends_the_turn_but_not_the_conversation(talk, notes, monkeypatch):
    original_turn = talk.conversation.turn
    lines = []

    def interrupted(line, *rest):
        lines.append(line)
        for number, sample in enumerate(original_turn(line, *rest)):
            if line == "one" and number == 2:
                raise KeyboardInterrupt
            yield sample

    monkeypatch.setattr(talk.conversation, "turn", interrupted)
    assert "Ctrl-D ends" in notes(talk, b"one\ntwo\n", 5)
    assert lines == ["one", "two"]


def test_a_line_that_is_no_text_ends_a_pipe_but_not_a_conversation_in_a_terminal(talk, notes, monkeypatch, capsys):
    """From a pipe it ends the program, because the later answers would stand beside the wrong questions."""
    with pytest.raises(ValueError, match=r"^stdin is not UTF-8 at byte 0: convert it to UTF-8$"):
        notes(talk, b"ok\n\xff\nthe last\n", 5)
    assert len(talk.conversation.messages) == 2
    typed = ["more", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "the last", EOFError]
    monkeypatch.setattr("builtins.input", Mock(side_effect=typed))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    converse(talk.conversation, 5, [])
    assert "give another line" in capsys.readouterr().err
    assert len(talk.conversation.messages) == 6


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.booleans()), min_size=1, max_size=6))
def test_a_turn_that_is_taken_back_leaves_no_trace(begin, turns):
    talk, kept = begin(), []
    text: list[int] = []
    for line, is_kept in turns:
        prompt = text + (LETTERS.encode("\n" + line, bos=False) if text else LETTERS.encode(line))
        answer = say(talk, line, 4).tokens
        assert answer == continuation(talk, prompt, 4)
        if is_kept:
            kept.append(line)
            text = prompt + answer
        else:
            assert talk.conversation.undo() == line
        assert talk.conversation.tokens == text
        assert [message["content"] for message in talk.conversation.messages[::2]] == kept


def test_a_turn_is_taken_back_after_the_context_was_full(talk):
    """What was evicted is computed again: the context is 64."""
    first = say(talk, "a" * 20, 30).tokens
    say(talk, "b" * 20, 30)
    assert talk.conversation.cache.evicted
    talk.conversation.undo()
    text = [*LETTERS.encode("a" * 20), *first]
    assert talk.conversation.tokens == text
    again = say(talk, "c" * 20, 5).tokens
    text += LETTERS.encode("\n" + "c" * 20, bos=False)
    assert again == continuation(talk, text, 5, endless=True)


def test_commands_of_a_terminal(talk, notes, monkeypatch, capsys):
    conversation = talk.conversation
    conversation.sampling = Sampling(2.0, seed=1)
    seen = []
    turn = conversation.turn
    monkeypatch.setattr(conversation, "turn", lambda line, *rest: seen.append(line) or turn(line, *rest))
    typed = ["/undo", "one", "", "two", "/retry", "/set temperature 0", "/set top_k x", "/set heat 1", "/set"]
    typed += ["/context", "/system Be brief.", "/undo", "/reset", "/retry", "/help", "/exit"]
    monkeypatch.setattr("builtins.input", Mock(side_effect=typed))
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    converse(conversation, 5, [])
    out, err = capsys.readouterr()
    assert seen == ["one", "two", "two"]
    assert len({*out.split("\n")[1:3]}) == 2, "another answer, also with a seed"
    assert conversation.sampling == Sampling(0.0, seed=1)
    assert conversation.messages == []
    for words in (
        "there is no turn to take back",
        "temperature 0.0, top_k None",
        "top_k is 'x': give a whole number",
        "unknown setting 'heat'",
        "of 64 tokens",
        "no chat template, so it has no system message",
        "(taken back: two)",
        "(the conversation is cleared)",
        "/set NAME VALUE ",
    ):
        assert words in err


@pytest.mark.parametrize(("length", "n"), [(2, 150), (63, 3), (64, 3), (200, 3)])
def test_a_turn_equals_endless_generation(talk, length, n):
    """Also if the line alone is longer than the context, which is 64."""
    sample = say(talk, "a" * length, n)
    expected = continuation(talk, LETTERS.encode("a" * length), n, endless=True, eos_ids=LETTERS.eos_ids)
    assert sample.tokens == expected
    assert talk.conversation.cached == length + n


class PlainChat:
    """A chat template in Python: a mark before and after every message. ``shortened`` old messages become "-"."""

    prefix_length, eos_ids = 0, LETTERS.eos_ids

    def __init__(self, shortened=()):
        self.shortened, self.encoded = shortened, []

    def encode(self, messages):
        self.encoded.append([*messages])
        return self.tokens(messages)

    def tokens(self, messages):
        parts = []
        for at, message in enumerate(messages):
            content = "-" if at in self.shortened and at < len(messages) - 1 else message["content"]
            parts += [250 if message["role"] == "user" else 251, *LETTERS.encode(content, bos=False), *LETTERS.eos_ids]
        return [LETTERS.bos_id, *parts, 251]


@pytest.mark.parametrize("shortened", [(), (1,)], ids=["same", "changed"])
def test_a_chat_forwards_only_what_the_cache_lacks(begin, shortened):
    """If the template later renders an answer differently, tokens from the first difference on are computed again."""
    chat = PlainChat(shortened)
    talk = begin(chat, 96)
    for number, line in enumerate(("ab", "cd", "ef")):
        cached = talk.conversation.tokens[: talk.conversation.cached]
        talk.read.clear()
        answer = say(talk, line, 7)
        whole = chat.tokens(chat.encoded[number])
        assert answer.tokens == continuation(talk, whole, 7)
        start = len(chat.tokens(chat.encoded[0])) if shortened and number == 1 else len(cached)
        assert talk.read[0] == (start, whole[start:])
    assert [message["role"] for message in talk.conversation.messages] == ["user", "assistant"] * 3
    assert [message["content"] for message in talk.conversation.messages[::2]] == ["ab", "cd", "ef"]


def test_a_turn_without_an_answer_is_not_added_to_the_messages(begin):
    talk = begin(PlainChat())
    say(talk, "ab")
    talk.conversation.turn("cd", 5, []).close()
    assert len(talk.conversation.messages) == 2
    turn = talk.conversation.turn("ef", 5, [])
    begun = next(turn)
    turn.close()
    assert talk.conversation.messages[-1] == {"role": "assistant", "content": begun.text}


def test_a_chat_keeps_a_system_message_of_up_to_half_the_context(begin):
    chat = PlainChat()
    chat.prefix_length = 33
    assert begin(chat).conversation.cache.keep == 32
    chat.prefix_length = 9
    talk = begin(chat)
    cache = talk.conversation.cache
    first = say(talk, "a" * 30, 40)
    system_keys = cache.layers[-1].keys[..., :9, :].clone()
    second = say(talk, "b", 40)
    assert len(first.tokens) == len(second.tokens) == 40
    assert 48 < talk.conversation.cached - cache.evicted <= 64 < talk.conversation.cached
    assert torch.equal(cache.layers[-1].keys[..., :9, :], system_keys)


@pytest.mark.parametrize("changed", [1, 3], ids=["evicted", "cached"])
def test_a_text_that_changes_after_an_eviction_is_computed_again_from_the_change(begin, changed):
    """If the change is among the evicted tokens, from the start."""
    chat = PlainChat()
    talk = begin(chat)
    for line in ("a" * 20, "b" * 20):
        say(talk, line, 30)
    cache, old = talk.conversation.cache, talk.conversation.tokens
    assert cache.evicted
    chat.shortened = (changed,)
    evicted = cache.evicted
    talk.read.clear()
    answer = say(talk, "c", 5)
    text = chat.tokens(chat.encoded[-1])
    same = next(at for at, (one, other) in enumerate(zip(old, text)) if one != other)
    if changed == 1:
        assert talk.read[0] == (0, text[: cache.chunk])
        assert answer.tokens == continuation(talk, text, 5, endless=True)
    else:
        assert same >= cache.keep + evicted
        assert talk.read[0] == (same - evicted, text[same:][: cache.chunk])
