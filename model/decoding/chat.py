"""Chat templates: turn messages into the tokens that an instruct checkpoint was trained on.

The template is a program in the checkpoint's directory, so it runs in a sandboxed process (template.py). It may write
names of control tokens around the messages, for example ``<|eot_id|>``, and these become the tokens. The same name
inside a message is encoded as plain characters, so a user can neither end a turn nor write as the system.
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
from ..weights.tokenizers import TEMPLATE
from .prompts import decode_utf8

RENDERER = Path(__file__).with_name("template.py")  # not imported here, because jinja2 delays the start
CONVERSATIONS_PER_PROCESS = 500
SECONDS = 5  # limit of processor time of a process
TIMEOUT = 60.0  # limit of wall time in seconds; high, because on a busy machine a process gets little processor time
MEMORY = 1 << 30  # limit in bytes
# Marks around the names of control tokens in a message while it is rendered: Unicode noncharacters, which no text
# should contain.
START, END = "\ufdd0", "\ufdd1"
MARK = re.compile(f"[{START}{END}]")

Message = dict[str, str]  # role (system, user or assistant) and content


class Chat:
    """A template and its tokenizer. ``system``, if given, is the first message of every conversation.

    Raises ValueError if the template fails on a conversation of one question and its answer.
    """

    def __init__(
        self, template: str, variables: dict[str, str], tokenizer: Tokenizer, source: Path, system: str | None = None
    ) -> None:
        self.template = template
        self.variables = variables
        self.tokenizer = tokenizer
        self.source = source  # the file of the template, named in errors
        self.system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.control_ids = tokenizer.control_tokens(template)
        names = sorted(map(re.escape, self.control_ids), key=len, reverse=True)
        self._control_name = re.compile("|".join(names) or "(?!)")  # the latter matches nothing
        # The second alternative matches a mark alone. Only the template can have written one, because ``_marked``
        # removes marks from messages.
        self._marked_name = re.compile(f"{START}({self._control_name.pattern}){END}|{MARK.pattern}")

        question, answer = user_message("A"), {"role": "assistant", "content": "Answer."}
        first, second, answered = self._render(
            [([question], True), ([user_message("B")], True), ([question, answer], False)]
        )
        # The number of tokens before the first question, including the system message. An endless text keeps these.
        self.prefix_length = common_prefix_length(self._encode(first), self._encode(second))
        # The control token that the template writes after an answer, for example <|eot_id|>, ends a turn, too.
        self.eos_ids = tokenizer.eos_ids
        before, _, after = answered.rpartition(answer["content"])
        end = self._control_name.match(after.lstrip()) if before else None
        if end and self.control_ids[end[0]] not in self.eos_ids:
            self.eos_ids = (*self.eos_ids, self.control_ids[end[0]])

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the whole conversation, including the system message, up to where the answer begins."""
        return self._encode(self._render([(messages, True)])[0])

    def encode_questions(self, questions: Sequence[str]) -> Iterator[list[int]]:
        """Encode one conversation per question, with many conversations in each process."""
        for first in range(0, len(questions), CONVERSATIONS_PER_PROCESS):
            group = questions[first : first + CONVERSATIONS_PER_PROCESS]
            for text in self._render([([user_message(question)], True) for question in group]):
                yield self._encode(text)

    def _render(self, conversations: Sequence[tuple[Sequence[Message], bool]]) -> list[str]:
        """Render conversations, each (messages, add_generation_prompt), to text in one process."""
        marked = [
            ([self._marked(message) for message in [*self.system, *messages]], add_generation_prompt)
            for messages, add_generation_prompt in conversations
        ]
        task = {"template": self.template, "variables": self.variables, "conversations": marked}
        request = {"task": task, "seconds": SECONDS, "memory": MEMORY}
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(RENDERER)],
                input=json.dumps(request).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT,
            )  # fmt: skip
            answer = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, json.JSONDecodeError):
            raise ValueError(
                f"the chat template of {self.source} takes too much time or memory: get the file again, or leave out "
                "--chat and --interactive"
            ) from None
        if "error" in answer:
            raise ValueError(f"the chat template of {self.source} fails: {answer['error']}")
        texts: list[str] = answer["texts"]
        try:
            for text in texts:
                check_encodable(text)
        except ValueError:
            raise ValueError(f"the chat template of {self.source} writes text that is not valid Unicode") from None
        return texts

    def _marked(self, message: Message) -> Message:
        """The message with marks around the names of control tokens in its content."""
        content = MARK.sub("", check_encodable(message["content"]))
        return message | {"content": self._control_name.sub(f"{START}\\g<0>{END}", content)}

    def _encode(self, text: str) -> list[int]:
        """The tokens of a rendered text. A marked name becomes its characters, any other name its control token.

        Some tokenizers prepend a space to every text, which would be wrong between two pieces of one text. So a
        newline is put in front of each later piece. The space then comes before the newline, and the tokens of both are
        cut off again.
        """
        first, *later_pieces = self._marked_name.split(text)
        ids = self.tokenizer.encode_control(first)
        newline = self.tokenizer.encode_literal("\n")
        for number, piece in enumerate(later_pieces):
            if not piece:  # empty, or None for a mark that the template wrote
                continue
            is_marked = number % 2 == 0  # the split gives marked names and the text between them in turn
            encode = self.tokenizer.encode_literal if is_marked else self.tokenizer.encode_control
            with_newline = encode("\n" + piece)
            is_separate = with_newline[: len(newline)] == newline  # the newline may merge with the piece
            piece_ids = with_newline[len(newline) :] if is_separate else encode(piece)
            if is_marked and set(piece_ids) & set(self.control_ids.values()):
                raise ValueError(f"{self.tokenizer.path} encodes {piece!r} only as a control token: leave it out")
            ids += piece_ids
        return ids


def user_message(content: str) -> Message:
    return {"role": "user", "content": content}


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens that two texts have in common before they differ."""
    for position, (token_a, token_b) in enumerate(zip(a, b)):
        if token_a != token_b:
            return position
    return min(len(a), len(b))


def open_chat(directory: Path, tokenizer: Tokenizer, system: str | None = None, required: bool = False) -> Chat | None:
    """Open the chat template of a directory: chat_template.jinja, else the one in tokenizer_config.json, else None.

    Sets the tokenizer's ``eos_ids`` to those of the chat. Raises ValueError if the template fails, or if there is none
    and it is ``required`` or a ``system`` message is given.
    """
    source, config = directory / TEMPLATE, directory / "tokenizer_config.json"
    settings: dict[str, Any] = {}
    for file in (directory / "special_tokens_map.json", config):
        settings |= read_json(file) if file.is_file() else {}
    if source.is_file():
        template: Any = decode_utf8(source.read_bytes(), str(source))
    else:
        source, template = config, settings.get("chat_template")
        if isinstance(template, list):  # several templates, each with a name
            defaults = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
            template = defaults[0].get("template") if defaults else template
    if template is None:
        if required or system is not None:
            raise ValueError(
                f"{directory} has no chat template, neither in tokenizer_config.json nor as {TEMPLATE}: "
                "leave --chat and --system out"
            )
        return None
    if not isinstance(template, str):
        raise ValueError(f"{source}: chat_template is {short_repr(template)}: it must be text")
    variables: dict[str, str] = {}  # bos_token and the like; a token may be an object with its text as content
    for name, value in settings.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            variables[name] = token
    chat = Chat(template, variables, tokenizer, source, system)
    tokenizer.eos_ids = chat.eos_ids
    return chat
