"""A conversation in turns: no token is computed twice, and a turn may end at any point."""

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
def typed(monkeypatch):
    """``typed(lines)``: stdin is a pipe with these lines."""
    return lambda lines: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))


def finished(turn):
    """Run a turn to its end, and return its sample."""
    return list(turn)[-1]


def test_turns_continue_one_text_and_compute_no_token_twice(talk):
    first = finished(talk.conversation.turn("ab", 5, []))
    second = finished(talk.conversation.turn("cd", 5, []))
    whole = LETTERS.encode("ab") + first.tokens + LETTERS.encode("\ncd", bos=False)
    expected = next(iter(generate(talk.model, [whole], 1)))
    assert second.tokens[0] == expected[0]
    read = talk.read[:-1]
    slots = [start + at for start, tokens in read for at in range(len(tokens))]
    assert slots == list(range(len(slots))), "each slot is written once, in order"
    assert [token for _, tokens in read for token in tokens] == whole + second.tokens[:-1]


def test_the_repetition_penalty_counts_earlier_turns(talk):
    talk.conversation.sampling = Sampling(0.0, repetition_penalty=1e6)
    tokens = []
    for line in ("ab", "cd", "ef"):
        tokens += finished(talk.conversation.turn(line, 5, [])).tokens
    assert len(set(tokens)) == len(tokens) == 15


def test_an_interrupted_turn_leaves_the_conversation_consistent(talk):
    turn = talk.conversation.turn("ab", 9, [])
    for _ in range(3):
        answer = list(next(turn).tokens)
    turn.close()
    second = finished(talk.conversation.turn("cd", 2, []))
    whole = LETTERS.encode("ab") + answer + LETTERS.encode("\ncd", bos=False)
    assert second.tokens == [step[0] for step in generate(talk.model, [whole], 2)]


def test_a_full_context_is_reported_and_a_new_text_begins(talk, typed, capsys):
    typed(b"a" * 40 + b"\n" + b"b" * 40 + b"\n")
    converse(talk.conversation, 5, [])
    assert "the context is full: the oldest 2 messages are dropped" in capsys.readouterr().err
    assert talk.conversation.forwarded == 41 + 4


def test_ctrl_c_ends_the_turn_but_not_the_conversation(talk, typed, monkeypatch, capsys):
    original_turn = talk.conversation.turn
    lines = []

    def interrupted(line, *rest):
        lines.append(line)
        for number, sample in enumerate(original_turn(line, *rest)):
            if line == "one" and number == 2:
                raise KeyboardInterrupt
            yield sample

    monkeypatch.setattr(talk.conversation, "turn", interrupted)
    typed(b"one\ntwo\n")
    converse(talk.conversation, 5, [])
    assert lines == ["one", "two"]
    assert "Ctrl-D ends" in capsys.readouterr().err


def test_a_line_that_fits_no_context_does_not_end_the_conversation(talk, typed, capsys):
    typed(b"a" * 63 + b"\n" + b"ok\n" + b"b" * 400 + b"\n\xff\nthe last\n")
    converse(talk.conversation, 5, [])
    out, notes = capsys.readouterr()
    assert "the line needs 64 tokens, and there is room for 63: give another line" in notes
    assert "the line needs 401 tokens" in notes
    assert "stdin is not UTF-8 at byte 0" in notes
    assert "dropped" not in notes
    assert talk.conversation.turns == 2
    assert out.count("\n") >= 2


def test_a_turn_ends_at_a_stop_string_and_the_next_continues_the_text(talk):
    first = finished(talk.conversation.turn("ab", 9, []))
    talk.conversation.reset()
    stop = first.text[3:5]
    cut = finished(talk.conversation.turn("ab", 9, [stop]))
    assert (cut.finish, cut.text) == ("stop", first.text[: first.text.index(stop)])
    second = finished(talk.conversation.turn("cd", 2, []))
    whole = LETTERS.encode("ab") + cut.tokens + LETTERS.encode("\ncd", bos=False)
    assert second.tokens == [step[0] for step in generate(talk.model, [whole], 2)]


def test_an_endless_conversation_evicts_tokens_and_goes_on(endless, typed, capsys):
    typed(b"a" * 40 + b"\n" + b"b" * 40 + b"\n" + b"c" * 64 + b"\nd\n")
    converse(endless.conversation, 30, [])
    notes = capsys.readouterr().err
    assert "the context of 64 tokens is full: 16 " in notes
    assert "the line needs 65 tokens, and there is room for 64: give another line" in notes
    assert "dropped" not in notes
    whole = 41 + 30 + 41 + 30 + 2 + 30
    assert endless.conversation.forwarded == whole - 1
    assert len(endless.conversation.tokens) == whole
    assert 0 < endless.conversation.forwarded - endless.conversation.cache.evicted <= 64


def test_a_line_that_fits_only_a_new_text_begins_one(endless, capsys):
    """After the first tokens, which are never evicted, an endless text has room for 60 more."""
    finished(endless.conversation.turn("a", 3, []))
    sample = finished(endless.conversation.turn("b" * 61, 3, []))
    assert "the oldest 2 messages are dropped" in capsys.readouterr().err
    steps = generate(endless.model, [LETTERS.encode("b" * 61)], 3, endless=True)
    assert sample.tokens == [step[0] for step in steps]


def test_an_endless_turn_equals_endless_generation(endless):
    sample = finished(endless.conversation.turn("ab", 150, []))
    steps = generate(endless.model, [LETTERS.encode("ab")], 150, endless=True, eos_ids=LETTERS.eos_ids)
    assert sample.tokens == [step[0] for step in steps]
    assert len(sample.tokens) > 64


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
            parts += [
                250 if message["role"] == "user" else 251,
                *LETTERS.encode(content, bos=False),
                LETTERS.eos_ids[0],
            ]
        return [LETTERS.bos_id, *parts, 251]


@pytest.mark.parametrize("shortened", [(), (1,)], ids=["same", "changed"])
def test_a_chat_forwards_only_what_the_cache_lacks(begin, shortened):
    """If the template later renders an answer differently, tokens from the first difference on are computed again."""
    chat = PlainChat(shortened)
    talk = begin(chat, 96)
    conversation, read = talk.conversation, talk.read
    for number, line in enumerate(("ab", "cd", "ef")):
        cached = conversation.tokens[: conversation.forwarded]
        read.clear()
        answer = finished(conversation.turn(line, 7, []))
        assert answer.text.isalpha()
        whole = chat.tokens(chat.encoded[number])
        assert answer.tokens == [step[0] for step in generate(talk.model, [whole], 7)]
        start = len(chat.tokens(chat.encoded[0])) if shortened and number == 1 else len(cached)
        assert read[0] == (start, whole[start:])
        assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * (number + 1)
    assert [message["content"] for message in conversation.messages[::2]] == ["ab", "cd", "ef"]


def test_a_turn_without_an_answer_is_not_added_to_the_messages(begin):
    conversation = begin(PlainChat()).conversation
    finished(conversation.turn("ab", 5, []))
    conversation.turn("cd", 5, []).close()
    assert len(conversation.messages) == 2
    turn = conversation.turn("ef", 5, [])
    begun = next(turn)
    turn.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": begun.text}


def test_a_chat_that_fills_the_context_drops_its_oldest_turn(begin, capsys):
    conversation = begin(PlainChat()).conversation
    for line in ("a" * 20, "b" * 10, "c" * 20):
        finished(conversation.turn(line, 5, []))
    assert "the oldest 2 messages are dropped" in capsys.readouterr().err
    assert [message["content"][0] for message in conversation.messages[::2]] == ["b", "c"]


def test_an_endless_chat_keeps_the_system_message_and_goes_on(begin):
    chat = PlainChat()
    chat.prefix_length = 9
    conversation = begin(chat, endless=True).conversation
    assert conversation.cache.keep == 9
    first = finished(conversation.turn("a" * 30, 40, []))
    system_keys = conversation.cache.layers[-1].keys[..., :9, :].clone()
    second = finished(conversation.turn("b", 40, []))
    assert len(first.tokens) == len(second.tokens) == 40
    assert 48 < conversation.forwarded - conversation.cache.evicted <= 64 < conversation.forwarded
    assert torch.equal(conversation.cache.layers[-1].keys[..., :9, :], system_keys)
    assert len(conversation.messages) == 4


@pytest.fixture
def changing(begin):
    """An endless chat of two turns that has evicted tokens, and whose template renders them differently in a third."""
    talk = begin(PlainChat(shortened=(3,)), endless=True)
    for line in ("a" * 20, "b" * 20):
        finished(talk.conversation.turn(line, 30, []))
    assert talk.conversation.cache.evicted
    talk.read.clear()
    return talk


def test_an_endless_chat_drops_its_oldest_turns_if_a_changed_text_does_not_fit(changing, capsys):
    """After an eviction, a text that begins differently is computed from its start, and may not fit."""
    finished(changing.conversation.turn("c" * 20, 30, []))
    assert changing.read[0][0] == 0
    assert [message["content"][0] for message in changing.conversation.messages[::2]] == ["c"]
    assert "the oldest 4 messages are dropped" in capsys.readouterr().err


def test_a_line_that_does_not_fit_leaves_the_messages_of_an_endless_chat(changing, capsys):
    messages = list(changing.conversation.messages)
    with pytest.raises(ValueError, match="the line needs 104 tokens, and there is room for 64"):
        finished(changing.conversation.turn("c" * 100, 30, []))
    assert changing.conversation.messages == messages
    assert "dropped" not in capsys.readouterr().err


def test_a_system_message_longer_than_half_of_the_context_is_not_kept(begin):
    chat = PlainChat()
    chat.prefix_length = 33
    assert begin(chat, endless=True).conversation.cache.keep == 4


class InterruptedLayers(list):
    """The layers of a cache. Iterating over them raises KeyboardInterrupt after the first one."""

    def __iter__(self):
        yield self[0]
        raise KeyboardInterrupt


def test_an_interrupted_eviction_begins_a_new_text(endless, capsys, monkeypatch):
    conversation, cache = endless.conversation, endless.conversation.cache
    expected = finished(conversation.turn("cd", 5, [])).tokens
    conversation.reset()
    layers, evict = cache.layers, cache.evict

    def interrupted(count, length):
        cache.layers = InterruptedLayers(layers)
        try:
            evict(count, length)
        finally:
            cache.layers = layers

    monkeypatch.setattr(cache, "evict", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finished(conversation.turn("ab", 90, []))
    monkeypatch.undo()
    assert finished(conversation.turn("cd", 5, [])).tokens == expected
    assert "a new text begins" in capsys.readouterr().err


def test_a_conversation_may_begin_with_an_empty_line(talk, endless):
    for conversation in (talk.conversation, endless.conversation):
        sample = finished(conversation.turn("", 3, []))
        assert len(sample.tokens) == 3
        assert conversation.forwarded == len(LETTERS.encode("")) + 2


def test_an_endless_conversation_takes_a_line_that_exactly_fills_the_context(endless):
    finished(endless.conversation.turn("a" * 63, 3, []))
    tokens, keep = len(endless.conversation.tokens), endless.conversation.cache.keep
    sample = finished(endless.conversation.turn("b" * (64 - keep - 2), 3, []))
    assert len(sample.tokens) == 3
    assert len(endless.conversation.tokens) == tokens + 64 - keep - 1 + 3, "the text goes on"
    with pytest.raises(ValueError, match="the line needs 65 tokens, and there is room for 64"):
        finished(endless.conversation.turn("a" * 64, 3, []))
