"""Chat templates: turn messages into the tokens that an instruct checkpoint was trained on.

A template may write names of control tokens around the messages, for example ``<|eot_id|>``, and these become the
tokens. The same name inside a message gets a space, ``< |eot_id|>``, and so stays text: a user can neither end a turn
nor write as the system.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cli.files import decode_utf8
from ..text.hf_tokenizer import read_settings
from ..text.rows import TEXT_FIELDS, Message
from ..text.tokenizer import Tokenizer
from ..weights.tokenizers import TEMPLATE

# For a model without a template of its own. It needs no tokens but BOS and EOS, or one of them, so it works with any
# tokenizer: <s>user\nHello</s>assistant\nHi!</s>
DEFAULT_TEMPLATE = """\
{%- set end = eos_token or bos_token or '' -%}
{{- bos_token or '' -}}
{%- for message in messages -%}
{{- message['role'] + '\\n' + message['content'] + end -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- 'assistant\\n' -}}
{%- endif -%}
"""
WORD = re.compile(r"<[^<>\s]*>|<|[^<\s]+")  # or a tag
OPEN_THOUGHT = re.compile(r"[<\[]\w*think\w*[>\]]\s*$", re.IGNORECASE)  # <think>, [THINK]


class Chat:
    """The chat template of a model's directory, and its tokenizer.

    An answer ends at any of ``eos_ids``, which are the tokenizer's and the token that the template writes after an
    answer. ``opening`` is what the template writes at the beginning of an answer, for example ``<think>``.
    ``system``, if given, is the first message of every conversation. ``variables`` are further ones of the template,
    for example ``enable_thinking``. ``default`` is a template for a directory without one. Raises ValueError if there
    is no template, if it does not have one of the ``variables``, or if it fails on one question and its answer.
    """

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
        default: str | None = None,
    ) -> None:
        from .template import compile_template

        self.source, template = find_template(directory)  # the file is named in errors
        template = default if template is None else template
        if template is None:
            raise ValueError(
                f"{directory} has no chat template, neither in {self.source.name} nor as {TEMPLATE}: "
                "leave --chat, --system and --template_var out"
            )
        self.tokenizer = tokenizer
        self.system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.variables: dict[str, Any] = {}  # bos_token and the like; a token may be an object with its text as content
        for name, value in read_settings(directory).items():
            token = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(token, str):
                self.variables[name] = token
        for name, value in (variables or {}).items():
            if name not in str(template):
                raise ValueError(f"the chat template of {self.source} has no variable {name}: leave it out")
            self.variables[name] = value
        with self._template_errors():
            self.template = compile_template(template)
        self.control_ids = tokenizer.control_tokens(template)
        # Without the template: only BOS, EOS and the like, not tokens as <think>, which a model writes as text.
        self.special_ids = tokenizer.control_tokens("")
        self.warned = False  # of words that the template leaves out
        one = self.begin_with(self.system)
        # Templates of some thinking models end the prompt with the tag of a thought, and the answer is its rest.
        opened = OPEN_THOUGHT.search(one)
        self.opening = opened[0] if opened else ""
        # The token that the template writes after an answer, for example <|eot_id|>
        answer = {"role": "assistant", "content": "Answer."}
        _, found, after = self.render([user_message("A"), answer], False).rpartition(answer["content"])
        ends = [name for name in self.control_ids if found and after.lstrip().startswith(name)]
        end_of_turn = [self.control_ids[max(ends, key=len)]] if ends else []
        self.eos_ids = tuple(dict.fromkeys([*tokenizer.eos_ids, *end_of_turn]))

    def begin_with(self, system: list[Message]) -> str:
        """Begin every conversation with the system message, if there is one; returns the rendering of a question.

        ``prefix_length`` is the number of tokens before the first question, which an endless text keeps.
        """
        before, self.system = self.system, system
        try:
            one, other = (self.render([user_message(text)]) for text in "AB")
        except ValueError:
            self.system = before
            raise
        self.warn_of_lost_words(system, one)
        encoded = (self.tokenizer.encode_control(text) for text in (one, other))
        self.prefix_length = common_prefix_length(*encoded)
        return one

    def encode(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The tokens of the whole conversation, including the system message.

        With ``add_generation_prompt`` they end where the next answer begins, and a warning says so if words of the last
        message are left out.
        """
        text = self.render(messages, add_generation_prompt)
        if add_generation_prompt:
            self.warn_of_lost_words(messages[-1:], text)
        return self.tokenizer.encode_control(text)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text of the whole conversation, with the names of control tokens."""
        harmless = [self._without_control(message) for message in [*self.system, *messages]]
        with self._template_errors():
            text = self.template.render(
                messages=harmless,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self.variables,
            )
            if not text:
                raise ValueError("it writes nothing")
            return text

    def lost_words(self, messages: Sequence[Message], text: str) -> str:
        """What a rendering leaves out of the messages, from the first lost word on; empty if it has all words."""
        harmless = [self._without_control(message) for message in messages]
        return lost_words([words for message in harmless for words in texts_of(message).values()], text)

    def warn_of_lost_words(self, messages: Sequence[Message], text: str) -> None:
        """Warn once if a rendering lacks words of the messages."""
        lost = self.lost_words(messages, text)
        if lost and not self.warned:
            self.warned = True
            warnings.warn(
                f"the chat template of {self.source} leaves out {shortened(lost)} of the {messages[-1]['role']} "
                "message, so the model does not see it",
                stacklevel=1,
            )

    def _without_control(self, message: Message) -> Message:
        """The message with a space in each name of a control token, after its first character."""
        names = self.special_ids if message["role"] == "assistant" else self.control_ids
        longest_first = sorted(names, key=len, reverse=True)  # a name may contain another one

        def harmless(value: Any) -> Any:
            if isinstance(value, str):
                for name in longest_first:
                    value = value.replace(name, f"{name[0]} {name[1:]}")
            elif isinstance(value, dict):
                return {key: harmless(each) for key, each in value.items()}
            elif isinstance(value, list):
                return [harmless(each) for each in value]
            return value

        return {key: value if key == "role" else harmless(value) for key, value in message.items()}

    @contextmanager
    def _template_errors(self) -> Iterator[None]:
        """Report whatever a template raises as ValueError."""
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"the chat template of {self.source} fails: {reason[:300]}") from None


def texts_of(message: Message) -> dict[str, str]:
    """The fields of a message that hold words for the template, and their words."""
    fields = {field: message.get(field) for field in TEXT_FIELDS}
    return {field: words for field, words in fields.items() if isinstance(words, str)}


def user_message(content: str) -> Message:
    return {"role": "user", "content": content}


def lost_words(texts: Iterable[str], rendering: str) -> str:
    """The first text whose words are not all in a rendering, from the first missing word on; empty if there is none.

    A template may trim a text, and divide it where it has tags, as Qwen3's does at </think>. Each text is found in a
    place of its own, and the longest one first, because a short one may also be in a longer one.
    """
    for text in sorted(texts, key=len, reverse=True):
        whole = text.strip()
        if whole in rendering:
            rendering = rendering.replace(whole, "\0", 1) if whole else rendering
            continue
        position = 0
        for word in WORD.finditer(text):
            start = rendering.find(word[0], position)
            if start < 0:
                return text[word.start() :]
            position = start + len(word[0])
    return ""


def shortened(text: str) -> str:
    """The beginning of a text, for a message."""
    return repr(text if len(text) <= 40 else f"{text[:40]} ...")


def common_prefix_length(a: Sequence[object], b: Sequence[object]) -> int:
    """The number of tokens, or characters, that two texts have in common before they differ."""
    differences = (position for position, (one, other) in enumerate(zip(a, b)) if one != other)
    return next(differences, min(len(a), len(b)))


def find_template(directory: Path) -> tuple[Path, Any]:
    """The file of the chat template, chat_template.jinja or else tokenizer_config.json, and the template or None."""
    file = directory / TEMPLATE
    if file.is_file():
        return file, decode_utf8(file.read_bytes(), str(file))
    template = read_settings(directory).get("chat_template")
    if isinstance(template, list):  # several templates, each with a name
        defaults = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = defaults[0].get("template") if defaults else template
    return directory / "tokenizer_config.json", template
