"""Conversations as examples to train on and to score: their tokens, and which of them the loss counts.

The loss counts what the model has to write in a chat: the words of the assistant, and the token that ends its turn. It
does not count what the template writes around them, nor the words of the user and of the system.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..text.dataset import UNCOUNTED
from ..text.rows import Message, is_learnt
from ..text.tokenizer import Tokenizer
from .chat import Chat, common_prefix_length


class Example(NamedTuple):
    """Tokens to train on as one text, and as targets the same, or UNCOUNTED where the loss leaves one out."""

    tokens: list[int]
    targets: list[int]
    answers: int = 1  # in the part that counts

    def text(self, tokenizer: Tokenizer) -> str:
        """The words that count."""
        return tokenizer.decode([token for token in self.targets if token != UNCOUNTED])


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
    ends = [number + 1 for number, message in enumerate(messages) if is_learnt(message)]
    answers = [encode_answer(chat, messages[:end]) for end in ends]
    fitting = [answer for answer in answers if len(answer.tokens) <= limit]
    if not fitting:
        return []
    whole = fitting[-1].tokens
    if any(whole[: len(answer.tokens)] != answer.tokens for answer in fitting):
        return fitting
    targets = np.full(len(whole), UNCOUNTED)
    for answer in fitting:
        part = targets[: len(answer.tokens)]
        np.copyto(part, answer.targets, where=np.array(answer.targets) != UNCOUNTED)
    return [Example(whole, targets.tolist(), len(fitting))]


def encode_answer(chat: Chat, messages: Sequence[Message]) -> Example:
    """A conversation up to the end of its last turn, an answer, which alone counts.

    The answer begins where the same conversation with another answer differs. So it does not matter what the template
    writes before it, for example a default system message. Raises ValueError if the template does not end the answer
    with a token at which generation stops.
    """
    tokens = chat.encode(messages, add_generation_prompt=False)
    content = messages[-1]["content"]
    other = messages[-1] | {"content": "?" if content.strip()[:1] != "?" else "!"}
    start = common_prefix_length(tokens, chat.encode([*messages[:-1], other], add_generation_prompt=False))
    ends = (position for position in range(start, len(tokens)) if tokens[position] in chat.eos_ids)
    end = next(ends, None)
    if end is None:
        raise ValueError(
            f"the chat template of {chat.source} writes no token that ends the assistant's turn, so the model could "
            "not learn to stop: end the turn with eos_token in the template"
        )
    start = max(start, 1)  # the first token is never predicted
    tokens = tokens[: end + 1]
    return Example(tokens, [*[UNCOUNTED] * start, *tokens[start:]])
