"""Conversations as examples to train on and to score: their tokens, and which of them the loss counts.

The loss counts the tokens that the model has to write in a chat: from the end of the prompt, where an answer begins, to
the token that ends the assistant's turn. That may be more than the words of the answer, for example an empty thought.
It does not count the template's text before, nor the words of the user and of the system, nor an answer whose row says
``"weight": 0`` or ``"train": false``.
"""

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..cli import quantity
from ..text.dataset import UNCOUNTED
from ..text.rows import Message, is_learnt
from ..text.sources import Documents
from ..text.tokenizer import Tokenizer
from .chat import Chat, common_prefix_length, shortened, texts_of


class Example(NamedTuple):
    """Tokens to train on as one text, and as targets the same, or UNCOUNTED where the loss leaves one out."""

    tokens: list[int]
    targets: list[int]
    answer_count: int = 1  # in the part that counts
    lost: str = ""  # what the template leaves out of the messages
    stray: str = ""  # how the example goes on where it differs from the prompt of the chat

    def text(self, tokenizer: Tokenizer) -> str:
        """The words that count."""
        return tokenizer.decode([token for token in self.targets if token != UNCOUNTED])


def read_examples(source: Documents, chat: Chat, limit: int) -> Iterator[tuple[str, Sequence[Message], list[Example]]]:
    """Each conversation of a source with its place, and its ``examples``. Errors have the place, too.

    Warns at the end if the template leaves out words, or if examples do not begin with the prompts of the chat.
    """
    lost: list[str] = []
    stray: list[str] = []
    count = 0
    for where, messages in source.conversations():
        try:
            found = examples(chat, messages, limit)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        count += len(found)
        lost += [f"{shortened(each.lost)} of {where}" for each in found if each.lost]
        stray += [f"{each.stray} in {where}" for each in found if each.stray]
        yield where, messages, found
    if lost:
        warnings.warn(
            f"the chat template of {chat.source} leaves out words of {len(lost):,} of {quantity(count, 'example')}, so "
            f"nothing is learnt from them, for example {lost[0]}: change the template or the rows",
            stacklevel=1,
        )
    if stray:
        warnings.warn(
            f"the chat template of {chat.source} begins {len(stray):,} of {quantity(count, 'example')} with another "
            f"text than the prompt of a chat, so the answers are learnt after that text, for example {stray[0]}: "
            "change the template or the rows",
            stacklevel=1,
        )


def examples(chat: Chat, messages: Sequence[Message], limit: int) -> list[Example]:
    """Encode a conversation in at most ``limit`` tokens, up to the last answer that fits, usually as one example.

    Some templates render an answer differently once it is followed by another question: Qwen3's drops the reasoning.
    Such a conversation becomes one example for each answer, rendered as in the chat when that answer is due.
    The list is empty if the first question and answer alone are too long.
    """
    ends = [number + 1 for number, message in enumerate(messages) if is_learnt(message)]
    answers = [encode_answer(chat, messages[:end], begin) for begin, end in pairwise([0, *ends])]
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
    lost = next((answer.lost for answer in fitting if answer.lost), "")
    stray = next((answer.stray for answer in fitting if answer.stray), "")
    return [Example(whole, targets.tolist(), len(fitting), lost, stray)]


def encode_answer(chat: Chat, messages: Sequence[Message], first: int) -> Example:
    """A conversation up to the end of its last turn, an answer, which alone counts.

    Words of the messages from ``first`` on are looked for in the text. Raises ValueError if the template does not end
    the answer with a token at which generation stops.
    """
    text = chat.render(messages, add_generation_prompt=False)
    tokens = chat.tokenizer.encode_control(text)
    start, stray = find_answer(chat, messages, text, tokens)
    end = next((position for position in range(start, len(tokens)) if tokens[position] in chat.eos_ids), None)
    if end is None:
        raise ValueError(
            f"the chat template of {chat.source} writes no token that ends the assistant's turn, so the model could "
            "not learn to stop: end the turn with eos_token in the template"
        )
    start = max(start, 1)  # the first token is never predicted
    tokens = tokens[: end + 1]
    checked = [each for each in messages[first:] if each["role"] != "assistant" or is_learnt(each)]
    targets = [*[UNCOUNTED] * start, *tokens[start:]]
    return Example(tokens, targets, lost=chat.lost_words(checked, text), stray=stray)


def find_answer(chat: Chat, messages: Sequence[Message], text: str, tokens: Sequence[int]) -> tuple[int, str]:
    """The position of the first token of the last message, an answer, in a conversation that is rendered as ``text``.

    It follows the prompt that a chat would make of the messages before it. If there is no prompt, because the assistant
    begins the conversation, or if the template renders these messages differently now, the answer begins where the same
    conversation with another answer differs. The second result says how the text differs from the prompt, if it does.
    """
    earlier, answer = messages[:-1], messages[-1]
    stray = ""
    if asks(earlier):
        prompt = chat.render(earlier)
        prompt_tokens = chat.tokenizer.encode_control(prompt)
        if tokens[: len(prompt_tokens)] == prompt_tokens:
            return len(prompt_tokens), ""
        place = min(common_prefix_length(prompt, text), len(prompt) - 1)
        stray = f"{shortened(text[place:])} instead of {shortened(prompt[place:])}"
    with_another = chat.encode([*earlier, another(answer)], add_generation_prompt=False)
    return common_prefix_length(tokens, with_another), stray


def asks(messages: Sequence[Message]) -> bool:
    """Whether an answer is due after these messages, so that a chat would make a prompt of them."""
    roles = [message["role"] for message in messages if message["role"] != "system"]
    return bool(roles) and roles[-1] != "assistant"


def another(answer: Message) -> Message:
    """An answer that differs from the beginning on."""
    texts = texts_of(answer).items()
    return answer | {field: "!" if words.strip().startswith("?") else "?" for field, words in texts}
