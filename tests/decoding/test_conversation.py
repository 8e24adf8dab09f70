"""A conversation in turns: no token is computed twice, and a turn may end at any point."""

import copy
import io
from types import SimpleNamespace

import pytest
import torch
from letters import LETTERS

from model import generate
from model.decoding.conversation import Conversation, converse
from model.decoding.network import for_decoding
from model.decoding.samples import Speed
from model.decoding.sampling import Sampling


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
        hidden = conversation.network.hidden
        conversation.network.hidden = lambda tokens, start_pos, cache, mask: (
            read.append((start_pos, tokens.tolist()[0])) or hidden(tokens, start_pos, cache, mask)
        )
        return SimpleNamespace(conversation=conversation, model=model, read=read)

    return build


@pytest.fixture
def talk(begin):
    return begin()


@pytest.fixture
def endless(begin):
    return begin(endless=True)


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


def test_turns_continue_one_text_and_compute_no_token_twice(talk):
    first = say(talk, "ab")
    second = say(talk, "cd")
    whole = LETTERS.encode("ab") + first.tokens + LETTERS.encode("\ncd", bos=False)
    assert second.tokens[0] == continuation(talk, whole, 1)[0]
    read = talk.read[:-1]
    slots = [start + at for start, tokens in read for at in range(len(tokens))]
    assert slots == list(range(len(slots))), "each slot is written once, in order"
    assert [token for _, tokens in read for token in tokens] == whole + second.tokens[:-1]


def test_the_repetition_penalty_counts_earlier_turns(talk):
    talk.conversation.sampling = Sampling(0.0, repetition_penalty=1e6)
    tokens = [token for line in ("ab", "cd", "ef") for token in say(talk, line).tokens]
    assert len(set(tokens)) == len(tokens) == 15


def test_after_an_interrupt_or_a_stop_string_the_next_turn_continues_the_text(talk):
    turn = talk.conversation.turn("ab", 9, [])
    for _ in range(3):
        answer = list(next(turn).tokens)
    turn.close()
    after = LETTERS.encode("\ncd", bos=False)
    assert say(talk, "cd", 2).tokens == continuation(talk, LETTERS.encode("ab") + answer + after, 2)
    talk.conversation.reset()
    text = say(talk, "ab", 9).text
    talk.conversation.reset()
    cut = say(talk, "ab", 9, [text[3:5]])
    assert (cut.finish, cut.text) == ("stop", text[: text.index(text[3:5])])
    assert say(talk, "cd", 2).tokens == continuation(talk, LETTERS.encode("ab") + cut.tokens + after, 2)


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


def test_a_line_that_fits_no_context_does_not_end_the_conversation(talk, notes):
    said = notes(talk, b"a" * 63 + b"\n" + b"ok\n" + b"b" * 400 + b"\n\xff\nthe last\n", 5)
    assert "the line needs 64 tokens, and there is room for 63: give another line" in said
    assert "the line needs 401 tokens" in said
    assert "stdin is not UTF-8 at byte 0" in said
    assert "dropped" not in said
    assert talk.conversation.turns == 2


def test_an_end_token_is_left_out_of_the_text(talk):
    end = say(talk, "ab", 1).tokens[0]
    talk.conversation.reset()
    talk.conversation.tokenizer = copy.copy(LETTERS)
    talk.conversation.tokenizer.eos_ids = (end,)
    assert say(talk, "ab").finish == "end"
    whole = LETTERS.encode("ab") + LETTERS.encode("\ncd", bos=False)
    assert say(talk, "cd", 1).tokens == continuation(talk, whole, 1)


def test_an_empty_line_in_a_full_context_begins_a_new_text(talk):
    """Its only token is cached already, but the network must see it again for its logits."""
    say(talk, "a" * 40, 30)
    assert say(talk, "", 3).tokens == continuation(talk, LETTERS.encode(""), 3)


def test_a_full_context_is_reported_and_a_new_text_begins(talk, notes):
    said = notes(talk, b"a" * 40 + b"\n" + b"b" * 40 + b"\n", 5)
    assert "the context is full: the oldest 2 messages are dropped" in said
    assert talk.conversation.forwarded == 41 + 4


def test_an_endless_conversation_evicts_tokens_and_goes_on(endless, notes):
    said = notes(endless, b"a" * 40 + b"\n" + b"b" * 40 + b"\n" + b"c" * 64 + b"\nd\n", 30)
    assert "the context of 64 tokens is full: 16 " in said
    assert "the line needs 65 tokens, and there is room for 64: give another line" in said
    assert "dropped" not in said
    whole = 41 + 30 + 41 + 30 + 2 + 30
    assert endless.conversation.forwarded == whole - 1
    assert len(endless.conversation.tokens) == whole
    assert 0 < endless.conversation.forwarded - endless.conversation.cache.evicted <= 64


def test_an_endless_turn_equals_endless_generation(endless):
    sample = say(endless, "ab", 150)
    expected = continuation(endless, LETTERS.encode("ab"), 150, endless=True, eos_ids=LETTERS.eos_ids)
    assert sample.tokens == expected
    assert len(sample.tokens) > 64


@pytest.mark.parametrize("length", [0, 60, 63])
def test_the_first_line_may_be_empty_or_fill_the_context(talk, endless, length):
    for each in (talk, endless) if length < 63 else (endless,):  # without eviction, one position is for the answer
        assert len(say(each, "a" * length, 3).tokens) == 3
        assert each.conversation.forwarded == 1 + length + 2


def test_a_later_line_of_an_endless_text_fits_beside_the_first_tokens_or_begins_a_new_text(endless, capsys):
    say(endless, "a" * 20)
    tokens = len(endless.conversation.tokens)
    say(endless, "b" * 58, 3)  # 60 tokens with the line break and the last answer's end; 4 are never evicted
    assert len(endless.conversation.tokens) == tokens + 59 + 3, "the text goes on"
    assert "dropped" not in capsys.readouterr().err
    sample = say(endless, "b" * 59, 3)
    assert "messages are dropped" in capsys.readouterr().err
    assert sample.tokens == continuation(endless, LETTERS.encode("b" * 59), 3, endless=True)


class PlainChat:
    """A chat template in Python: a mark before and after every message. ``shortened`` old messages become "-"."""

    prefix_length = 0

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


def questions(talk):
    return [message["content"][0] for message in talk.conversation.messages[::2]]


@pytest.mark.parametrize("shortened", [(), (1,)], ids=["same", "changed"])
def test_a_chat_forwards_only_what_the_cache_lacks(begin, shortened):
    """If the template later renders an answer differently, tokens from the first difference on are computed again."""
    chat = PlainChat(shortened)
    talk = begin(chat, 96)
    for number, line in enumerate(("ab", "cd", "ef")):
        cached = talk.conversation.tokens[: talk.conversation.forwarded]
        talk.read.clear()
        answer = say(talk, line, 7)
        whole = chat.tokens(chat.encoded[number])
        assert answer.tokens == continuation(talk, whole, 7)
        start = len(chat.tokens(chat.encoded[0])) if shortened and number == 1 else len(cached)
        assert talk.read[0] == (start, whole[start:])
    assert [message["role"] for message in talk.conversation.messages] == ["user", "assistant"] * 3
    assert questions(talk) == ["a", "c", "e"]


def test_a_turn_without_an_answer_is_not_added_to_the_messages(begin):
    talk = begin(PlainChat())
    say(talk, "ab")
    talk.conversation.turn("cd", 5, []).close()
    assert len(talk.conversation.messages) == 2
    turn = talk.conversation.turn("ef", 5, [])
    begun = next(turn)
    turn.close()
    assert talk.conversation.messages[-1] == {"role": "assistant", "content": begun.text}


def test_a_chat_that_fills_the_context_drops_its_oldest_turn(begin, capsys):
    talk = begin(PlainChat())
    for line in ("a" * 20, "b" * 10, "c" * 20):
        say(talk, line)
    assert "the oldest 2 messages are dropped" in capsys.readouterr().err
    assert questions(talk) == ["b", "c"]


def test_an_endless_chat_keeps_a_system_message_of_up_to_half_the_context(begin):
    chat = PlainChat()
    chat.prefix_length = 33
    assert begin(chat, endless=True).conversation.cache.keep == 4
    chat.prefix_length = 9
    talk = begin(chat, endless=True)
    cache = talk.conversation.cache
    first = say(talk, "a" * 30, 40)
    system_keys = cache.layers[-1].keys[..., :9, :].clone()
    second = say(talk, "b", 40)
    assert len(first.tokens) == len(second.tokens) == 40
    assert 48 < talk.conversation.forwarded - cache.evicted <= 64 < talk.conversation.forwarded
    assert torch.equal(cache.layers[-1].keys[..., :9, :], system_keys)


def test_an_endless_chat_drops_its_oldest_turns_if_a_changed_text_does_not_fit(begin, capsys):
    """After an eviction, a text that begins differently is computed from its start, and may not fit."""
    talk = begin(PlainChat(shortened=(3,)), endless=True)
    for line in ("a" * 20, "b" * 20):
        say(talk, line, 30)
    assert talk.conversation.cache.evicted
    with pytest.raises(ValueError, match="the line needs 104 tokens, and there is room for 64"):
        say(talk, "c" * 100, 30)
    assert questions(talk) == ["a", "b"]
    talk.read.clear()
    say(talk, "c" * 20, 30)
    assert talk.read[0][0] == 0
    assert questions(talk) == ["c"]
    assert "the oldest 4 messages are dropped" in capsys.readouterr().err
