"""Rows that are conversations: what becomes of each of their fields, and of the fields of their messages.

A field is read, or refused with the place of its row, or counted and named in one warning (``Notes``). A message goes
whole to the chat template, because some templates read more of it than its role and its content.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..cli import enumerated, quantity
from .tokenizer import check_encodable

Message = dict[str, Any]  # role, content and other fields of the row; weight 0 if nothing is to be learnt from it
ROLES = ("system", "user", "assistant")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
EXAMPLE = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'

# The forms of rows: a list of messages (OpenAI, ShareGPT), or a question and an answer (Alpaca, Dolly, TRL, UltraChat,
# Orca, GSM8K), perhaps with what the question is about
MESSAGE_LISTS = ("messages", "conversations", "conversation")
PAIRS = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "chosen"),  # of a preference; rejected is named as not read
    ("question", "response"),
    ("question", "answer"),
)
CONTEXT = ("input", "context")  # follows the question
SYSTEM = ("system", "system_prompt")
HISTORY = "history"  # earlier turns: messages, or pairs of a question and an answer
# False or 0 if nothing is to be learnt: of a message, or of the whole row, which is left out. label is of KTO, whose
# files hold bad answers beside good ones. They are not refused, because the good ones are worth learning.
MARKS = ("weight", "train", "loss")
ROW_MARKS = ("label", "weight", "train")
TOOL_CALLS = ("tool_calls", "function_call")  # of a message: the row is left out, because tools are not supported
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "thinking")  # of a message, for the template
# Common fields that change no meaning: where a row comes from, and what it is about
NEUTRAL = """
id idx index uuid name hash source origin dataset subset split url link title topic category subcategory tags domain
task lang language model license author date time timestamp created_at updated_at turn turns num_turns meta metadata
"""
KNOWN = frozenset({*NEUTRAL.split(), *SYSTEM, HISTORY, *ROW_MARKS})


@dataclass
class Notes:
    """What is left out of the rows of a source, or not read in them, with the number of rows."""

    left_out: Counter[str] = field(default_factory=Counter)  # whole rows
    unread: Counter[str] = field(default_factory=Counter)  # fields

    def __str__(self) -> str:
        """In words; empty if there is nothing to say."""
        parts = [f"{quantity(count, 'row')} left out, because {why}" for why, count in self.left_out.items()]
        if self.unread:
            named = [f"{name!r} (in {quantity(count, 'row')})" for name, count in self.unread.items()]
            parts.append(f"not read: {enumerated(named)}")
        return "; ".join(parts)


def is_conversation(row: Any) -> bool:
    return isinstance(row, dict) and _form_of(row) is not None


def is_learnt(message: Message) -> bool:
    """Whether the loss counts a message."""
    return message["role"] == "assistant" and message.get("weight") != 0


def read_conversation(where: str, row: Any, notes: Notes) -> list[Message] | None:
    """The messages of a row, or None if it is left out, which is noted. Raises ValueError for an invalid field."""
    form = _form_of(row) if isinstance(row, dict) else None
    if form is None:
        raise ValueError(f"{where} is no conversation, but the first row is one: correct or remove it")
    used, turns = form
    history = _earlier_turns(where, row.get(HISTORY))
    reasons = [f"{name} is false" for name in ROW_MARKS if _is_on(row.get(name)) is False]
    calls = [name for name in TOOL_CALLS for turn in history + turns if _value(turn, name) is not None]
    reasons += [f"{name} is not supported" for name in calls]
    if reasons:
        notes.left_out[reasons[0]] += 1
        return None
    messages = [read_message(f"{where}, message {number}", each) for number, each in enumerate(history + turns, 1)]
    messages = _with_system(where, row, messages)
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        raise ValueError(f"{where} has no message of the assistant, from which to learn: correct or remove it")
    if not any(map(is_learnt, answers)):
        notes.left_out["the weight of every answer is 0"] += 1
        return None
    unread = [name for name in row if name not in used and not _is_known(name) and _value(row, name) is not None]
    unread += [name for name in ROW_MARKS if _value(row, name) is not None and _is_on(row[name]) is None]
    others = [name for message in messages for name in message if name not in ("role", *TEXT_FIELDS)]
    unread += [name for name in others if not _is_known(name)]
    notes.unread.update(dict.fromkeys(unread, 1))
    return messages


def read_message(where: str, message: Any) -> Message:
    """A message with all its fields that are not null; role and content in these names, and marks as ``weight`` 0."""
    fields = message if isinstance(message, dict) else {}
    role, content = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
    role = SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise ValueError(f"{where} has the role {_shown(role)}: give one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"{where} has {_shown(content)} as its content: give a text")
    read = {"role": role, "content": content}
    for name, value in fields.items():
        if name in MARKS and value is not None:
            if _is_on(value) is None:
                raise ValueError(f"{where} has {_shown(value)} as its {name}: give 0 or 1")
            if not _is_on(value):
                read["weight"] = 0
        elif name not in ("role", "from", "content", "value") and _value(fields, name) is not None:
            read[name] = value
    for value in read.values():
        if isinstance(value, str):
            check_encodable(value, where)
    return read


def _form_of(row: dict[str, Any]) -> tuple[set[str], list[Any]] | None:
    """The fields that are the form of a row, and the messages in them, not checked yet; None for another row."""
    for name in MESSAGE_LISTS:
        if isinstance(row.get(name), list):
            return {name}, row[name]
    for question, answer in PAIRS:
        if {question, answer} <= row.keys():
            asked, answered = row[question], row[answer]
            if isinstance(asked, list) and isinstance(answered, list):
                return {question, answer}, [*asked, *answered]
            parts = [asked, *(row[name] for name in CONTEXT if _value(row, name) is not None)]
            no_texts = [part for part in parts if not isinstance(part, str)]
            # read_message refuses a content that is no text.
            content = no_texts[0] if no_texts else "\n\n".join(filter(None, parts))
            return {question, answer, *CONTEXT}, _turn(content, answered)
    return None


def _turn(question: Any, answer: Any) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _earlier_turns(where: str, history: Any) -> list[Any]:
    """The messages of a history, not checked yet."""
    turns: list[Any] = []
    if not isinstance(history, list):
        history = [history] if history else []
    for turn in history:
        if isinstance(turn, list) and len(turn) == 2:
            turns += _turn(*turn)
        elif isinstance(turn, dict):
            turns.append(turn)
        else:
            raise ValueError(f"{where} has {_shown(turn)} in its history: give [[question, answer], ...]")
    return turns


def _with_system(where: str, row: dict[str, Any], messages: list[Message]) -> list[Message]:
    """The messages after the system message that a field of the row holds, if any."""
    given = [
        read_message(f"{where}, {name}", {"role": "system", "content": row[name]})
        for name in SYSTEM
        if _value(row, name) is not None
    ]
    first = [message for message in messages[:1] if message["role"] == "system"]
    if len({message["content"] for message in given + first}) > 1:
        raise ValueError(f"{where} has two system messages: leave one of them")
    return [*(first or given[:1]), *messages[len(first) :]]


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:40]


def _value(fields: Any, name: str) -> Any:
    """The value of a field; None also if it is empty, or if ``fields`` is not a dict."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return None if value in ("", [], {}) else value


def _is_on(mark: Any) -> bool | None:
    """What a mark says, in JSON or as the text of a CSV; None for anything else."""
    return {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}.get(str(mark).lower())


def _is_known(name: str) -> bool:
    return name in KNOWN or name.startswith("_") or name.endswith("_id")
