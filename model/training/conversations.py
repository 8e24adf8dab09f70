"""Conversations as training text: their tokens, and which of them the loss counts.

The loss counts what the model has to write in a chat: the words of the assistant, and the token that ends its turn. It
does not count what the template writes around them, nor the words of the user and of the system.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..cli import quantity
from ..decoding.chat import Chat, common_prefix_length, user_message
from ..text.dataset import Counts, Piece, write_pieces
from ..text.readers import Message
from ..text.sources import Documents
from ..text.tokenizer import Tokenizer


class Example(NamedTuple):
    """Tokens to train on as one text, and for each whether the loss counts its prediction."""

    tokens: list[int]
    counted: list[bool]
    answers: int = 1  # in the part that counts

    def text(self, tokenizer: Tokenizer) -> str:
        """The words that count."""
        return tokenizer.decode([token for token, counts in zip(self.tokens, self.counted) if counts])


def conversation_texts(documents: Documents) -> Iterator[str]:
    """Texts to train a tokenizer on."""
    for _, messages in documents.conversations():
        for message in messages:
            yield f"{message['role']}\n{message['content']}"


def example_question(documents: Documents, chat: Chat, context: int) -> str:
    """The first question that takes at most half of the context, for samples during training; empty without one."""
    messages = (message for _, conversation in documents.conversations() for message in conversation)
    questions = (message["content"] for message in messages if message["role"] == "user")
    short = (question for question in questions if len(chat.encode([user_message(question)])) <= context // 2)
    return next(short, "")


def examples_at(where: str, messages: Sequence[Message], chat: Chat, limit: int) -> list[Example]:
    """``examples``, with the place of the conversation in errors, for example those that a template raises."""
    try:
        return examples(chat, messages, limit)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def examples(chat: Chat, messages: Sequence[Message], limit: int) -> list[Example]:
    """Encode a conversation in at most ``limit`` tokens, up to the last answer that fits, usually as one example.

    Some templates render an answer differently once it is followed by another question: Qwen3's drops the reasoning.
    Such a conversation becomes one example for each answer, rendered as in the chat when that answer is due.
    The list is empty if the first question and answer alone are too long.
    """
    ends = [number + 1 for number, message in enumerate(messages) if message["role"] == "assistant"]
    answers = [encode_answer(chat, messages[:end]) for end in ends]
    fitting = [answer for answer in answers if len(answer.tokens) <= limit]
    if not fitting:
        return []
    whole = fitting[-1].tokens
    if any(whole[: len(answer.tokens)] != answer.tokens for answer in fitting):
        return fitting
    counted = np.zeros(len(whole), bool)
    for answer in fitting:
        counted[: len(answer.tokens)] |= answer.counted
    return [Example(whole, counted.tolist(), len(fitting))]


def encode_answer(chat: Chat, messages: Sequence[Message]) -> Example:
    """A conversation up to the end of its last turn, an answer, which alone counts.

    The answer begins where the conversation differs from its prompt, which ends with the header of the answer. Raises
    ValueError if the template does not end it with a token at which generation stops.
    """
    prompt = chat.encode(messages[:-1])
    tokens = chat.encode(messages, add_generation_prompt=False)
    start = common_prefix_length(prompt, tokens)
    ends = (position for position in range(start, len(tokens)) if tokens[position] in chat.tokenizer.eos_ids)
    end = next(ends, None)
    if end is None:
        raise ValueError(
            f"the chat template of {chat.source} writes no token that ends the assistant's turn, so the model could "
            "not learn to stop: end the turn with eos_token in the template"
        )
    tokens = tokens[: end + 1]
    counted = [position >= start for position in range(len(tokens))]
    return Example(tokens, counted)


def tokenize_conversations(
    directory: Path,
    chat: Chat,
    context: int,
    documents: Documents,
    val_fraction: float,
    val_documents: Documents | None = None,
) -> None:
    """Write each conversation as a row of ``context + 1`` tokens into tokens.bin, and write tokens.json.

    The last ``val_fraction`` of them, or ``val_documents``, are for validation. Raises ValueError for a row of a file
    that is no conversation, and if nothing is left to train or to validate on.
    """

    def encode(source: Documents) -> Iterator[Piece]:
        answers = left_out = 0
        for where, messages in source.conversations():
            found = examples_at(where, messages, chat, context + 1)
            due = sum(message["role"] == "assistant" for message in messages)
            answers += due
            left_out += due - sum(example.answers for example in found)
            if found:
                yield piece_of(found, chat.tokenizer, context + 1)
        if left_out == answers:
            raise ValueError(f"no conversation fits into a context of {context} tokens: give a larger max_seq_len")
        if left_out:
            warnings.warn(
                f"max_seq_len is {context}: {left_out:,} of {quantity(answers, 'answer')} are left out, because their "
                "conversations are longer",
                stacklevel=1,
            )

    sources = [documents, val_documents] if val_documents else [documents]
    write_pieces(directory, sources, encode, np.dtype(np.int32), val_fraction, row=context + 1)


def piece_of(found: Sequence[Example], tokenizer: Tokenizer, length: int) -> Piece:
    """Examples of a conversation, each in a row of ``length`` tokens, padded at the end."""
    rows = np.full((len(found), length), ~0)
    for row, example in zip(rows, found):
        tokens = np.array(example.tokens)
        row[: len(tokens)] = np.where(example.counted, tokens, ~tokens)
    counts = Counts(
        rows.size,
        size=sum(len(example.text(tokenizer).encode()) for example in found),
        counted=sum(sum(example.counted) for example in found),
        padding=rows.size - sum(len(example.tokens) for example in found),
    )
    return rows.ravel(), counts
