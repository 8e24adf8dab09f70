"""Chat templates: a conversation's messages as the tokens that an instruct checkpoint was trained on.

The template is a program in the checkpoint's directory, and runs in a sandboxed process (template.py). What it writes
around the messages may name control tokens, such as ``<|eot_id|>``, and these become the tokens. The same name inside
a message is encoded as the characters that were typed: a user cannot end a turn, or speak as the system.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..cli.files import read_json, short_repr
from ..text.tokenizer import Tokenizer, check_encodable
from . import template as renderer
from .prompts import utf8

CONVERSATIONS_PER_PROCESS = 500  # conversations that one process renders
TIMEOUT = 60.0  # seconds, for a machine so busy that the limit of processor time is not reached
# Around control names in a message while it is rendered: Unicode has no characters of these numbers.
START, END = "\ufdd0", "\ufdd1"
MARK = re.compile(f"[{START}{END}]")

Message = dict[str, str]  # role (system, user or assistant) and content


class Chat:
    """A template and its tokenizer. ``system`` is the first message of every conversation, where it is given.

    Raises ValueError where the template fails on a conversation of one question and its answer.
    """

    def __init__(
        self, template: str, variables: dict[str, str], tokenizer: Tokenizer, source: Path, system: str | None = None
    ) -> None:
        self.template, self.variables, self.tokenizer, self.source = template, variables, tokenizer, source
        self.system: list[Message] = [] if system is None else [user(system) | {"role": "system"}]
        self.control = tokenizer.control_tokens(template)
        names = sorted(map(re.escape, self.control), key=len, reverse=True)
        self._name = re.compile("|".join(names) or "(?!)")
        self._pieces = re.compile(f"{START}({self._name.pattern}){END}|{MARK.pattern}")

        question, answer = user("A"), {"role": "assistant", "content": "Answer."}
        first, other, answered = self._render([([question], True), ([user("B")], True), ([question, answer], False)])
        # What stands before the first message, the system's included: an endless text keeps it.
        self.head = common_prefix(self._encode(first), self._encode(other))
        found, _, after = answered.rpartition(answer["content"])
        end = self._name.match(after.lstrip()) if found else None
        ends = [self.control[end[0]]] if end else []
        self.eos_ids = tuple(dict.fromkeys([*tokenizer.eos_ids, *ends]))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the whole conversation, the system's message before it, up to where the answer begins."""
        return self._encode(self._render([(messages, True)])[0])

    def encode_questions(self, questions: Sequence[str]) -> Iterator[list[int]]:
        """The same of conversations that each begin with one question, in few processes."""
        for first in range(0, len(questions), CONVERSATIONS_PER_PROCESS):
            texts = self._render(
                [([user(question)], True) for question in questions[first : first + CONVERSATIONS_PER_PROCESS]]
            )
            yield from map(self._encode, texts)

    def _render(self, conversations: Sequence[tuple[Sequence[Message], bool]]) -> list[str]:
        """The text of each conversation, with or without the beginning of an answer, in one process for all."""
        marked = [([self._marked(message) for message in [*self.system, *each]], add) for each, add in conversations]
        request = {"template": self.template, "variables": self.variables, "conversations": marked}
        try:
            done = subprocess.run(
                [sys.executable, "-P", renderer.__file__],
                input=json.dumps(request).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT,
            )  # fmt: skip
            answer = json.loads(done.stdout)
            if "error" in answer:
                raise ValueError(f"the chat template of {self.source} fails: {answer['error']}")
            texts: list[str] = answer["texts"]
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise ValueError(f"the chat template of {self.source} writes text that is not valid Unicode") from None
        except (subprocess.TimeoutExpired, json.JSONDecodeError):
            raise ValueError(
                f"the chat template of {self.source} gives no text within {renderer.SECONDS} seconds and "
                f"{renderer.MEMORY >> 20} MiB of memory: get the file again, or leave --chat out"
            ) from None
        return texts

    def _marked(self, message: Message) -> Message:
        content = MARK.sub("", check_encodable(message["content"]))
        return message | {"content": self._name.sub(f"{START}\\g<0>{END}", content)}

    def _encode(self, text: str) -> list[int]:
        """The tokens of a rendered text. Where nothing was marked, it is encoded in one go.

        Some tokenizers put a space before every text. Inside this one it would be wrong, and they do not do it after a
        newline, which is therefore put before each later piece and taken away again.
        """
        first, *others = self._pieces.split(text)
        ids = self.tokenizer.encode_control(first)
        newline = self.tokenizer.encode_literal("\n")
        for number, piece in enumerate(others):
            if piece:
                typed = number % 2 == 0
                encode = self.tokenizer.encode_literal if typed else self.tokenizer.encode_control
                after = encode("\n" + piece)
                after = after[len(newline) :] if after[: len(newline)] == newline else encode(piece)
                if typed and not {*after}.isdisjoint(self.control.values()):
                    raise ValueError(f"{self.tokenizer.path} has no tokens for {piece!r} as text: leave it out")
                ids += after
        return ids


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common before they differ."""
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def open_chat(directory: Path, tokenizer: Tokenizer, system: str | None = None, required: bool = False) -> Chat | None:
    """The chat template in a directory: chat_template.jinja, or else that of tokenizer_config.json; None without one.

    The tokenizer's ``eos_ids`` become those of the chat. Raises ValueError for a template that fails, and without one
    where it is ``required`` or a ``system`` message is given.
    """
    source, config = directory / "chat_template.jinja", directory / "tokenizer_config.json"
    settings: dict[str, Any] = {}
    for file in (directory / "special_tokens_map.json", config):
        settings |= read_json(file) if file.is_file() else {}
    if source.is_file():
        template: Any = utf8(source.read_bytes(), str(source))
    else:
        source, template = config, settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = [each for each in template if isinstance(each, dict) and each.get("name") == "default"]
            template = named[0].get("template") if named else template
    if template is None:
        if required or system is not None:
            raise ValueError(
                f"{directory} has no chat template, neither in tokenizer_config.json nor as chat_template.jinja: "
                "leave --chat and --system out"
            )
        return None
    if not isinstance(template, str):
        raise ValueError(f"{source}: chat_template is {short_repr(template)}: a text is needed")
    values = {name: value.get("content") if isinstance(value, dict) else value for name, value in settings.items()}
    variables = {name: value for name, value in values.items() if name.endswith("_token") and isinstance(value, str)}
    chat = Chat(template, variables, tokenizer, source, system)
    tokenizer.eos_ids = chat.eos_ids
    return chat
