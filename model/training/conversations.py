"""Conversations as training text: their tokens and targets, and texts for the tokenizer."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

from ..cli import quantity
from ..cli.files import write_text
from ..decoding.chat import Chat, texts_of, user_message
from ..decoding.examples import read_examples
from ..text.dataset import META
from ..text.rows import is_learnt
from ..text.sources import Documents
from ..text.tokenize import EncodedPart, write_dataset


def conversation_texts(documents: Documents) -> Iterator[str]:
    """Texts to train a tokenizer on."""
    for _, messages in documents.conversations():
        for message in messages:
            yield "\n".join([message["role"], *texts_of(message).values()])


def example_question(documents: Documents, chat: Chat, context: int) -> str:
    """The first question that takes at most half of the context, for samples during training; empty without one."""
    messages = (message for _, conversation in documents.conversations() for message in conversation)
    questions = (message["content"] for message in messages if message["role"] == "user")
    short = (question for question in questions if len(chat.encode([user_message(question)])) <= context // 2)
    return next(short, "")


def tokenize_conversations(
    directory: Path,
    chat: Chat,
    context: int,
    documents: Documents,
    val_fraction: float,
    val_documents: Documents | None = None,
) -> None:
    """Write the tokens and the targets of each conversation into the directory, in at most ``context + 1`` tokens.

    About ``val_fraction`` of them, or ``val_documents``, are for validation. Raises ValueError for a row of a file that
    is no conversation, and if nothing is left to train or to validate on.
    """

    def encode(source: Documents) -> Iterator[EncodedPart]:
        answers = left_out = 0
        for _, messages, found in read_examples(source, chat, context + 1):
            due = sum(map(is_learnt, messages))
            answers += due
            left_out += due - sum(example.answer_count for example in found)
            for number, example in enumerate(found):
                size = len(example.text(chat.tokenizer).encode())
                yield EncodedPart(example.tokens, size, starts_document=number == 0, targets=example.targets)
        if left_out == answers:
            raise ValueError(f"no conversation fits into a context of {context} tokens: give a larger max_seq_len")
        if left_out:
            warnings.warn(
                f"max_seq_len is {context}: {left_out:,} of {quantity(answers, 'answer')} are left out, because their "
                "conversations are longer",
                stacklevel=1,
            )

    sources = [documents, val_documents] if val_documents else [documents]
    facts = write_dataset(directory, sources, encode, chat.tokenizer, val_fraction, are_conversations=True)
    write_text(directory / META, json.dumps(facts))
