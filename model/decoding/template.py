"""Render a chat template, a program that came with a checkpoint: as a process of its own, which imports only jinja2.

Jinja's sandbox keeps a template away from Python's internals and from files. It does not keep one from looping for
ever or from doubling a text until the memory is full, so this process limits itself, but on Windows.

stdin: a JSON object with ``template``, ``variables`` and ``conversations``: messages and add_generation_prompt of each.
stdout: a JSON object with ``texts``, one for each conversation, or with ``error``.
"""

import json
import re
import sys
from datetime import datetime
from importlib.metadata import version
from typing import Any, NoReturn

import jinja2.ext
import jinja2.nodes
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

SAFE = (3, 1, 6)  # the oldest jinja2 that is used: templates could leave the sandbox of earlier ones
SECONDS = 5  # of processor time
MEMORY = 1 << 30  # bytes
MAX_CHARACTERS = 4_000_000  # characters of a text


class Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what an assistant said for those who train on it; the text is the same without."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)  # type: ignore[no-any-return]


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own gives an undefined value for a forbidden attribute, which prints as nothing: this one raises."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it accesses {attribute!r} of a {type(obj).__name__}")


class Namespace(jinja2.utils.Namespace):
    """What a template may write to, but for names with an underscore, which have a meaning in Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it sets {name!r} of a namespace")
        super().__setitem__(name, value)


def environment() -> Sandbox:
    """As transformers has it: its settings, its extensions, its ``tojson``, and two functions."""
    installed = version("jinja2")
    if tuple(int(number) for number in re.findall(r"\d+", installed)[:3]) < SAFE:
        raise ValueError(f"jinja2 {installed} has known vulnerabilities: pip install --upgrade jinja2")
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": Namespace}
    return made


def strftime_now(text: str) -> str:
    return datetime.now().strftime(text)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter escapes what means something in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    """For templates that cannot have a conversation, such as one with two messages of a user in a row."""
    raise jinja2.TemplateError(message)


def render(template: str, variables: dict[str, Any], conversations: list[Any]) -> list[str]:
    compiled = environment().from_string(template)
    texts = []
    for messages, add_generation_prompt in conversations:
        text = ""
        for part in compiled.generate(
            messages=messages, add_generation_prompt=add_generation_prompt, tools=None, documents=None, **variables
        ):
            text += part
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"it writes more than {MAX_CHARACTERS} characters")
        texts.append(text)
    return texts


def limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def main() -> None:
    request = json.load(sys.stdin)
    if resource is not None:
        limit(resource.RLIMIT_CPU, SECONDS)
        limit(resource.RLIMIT_CORE, 0)
        if sys.platform != "darwin":  # which refuses this one
            limit(resource.RLIMIT_AS, MEMORY)
    try:
        answer: dict[str, Any] = {"texts": render(**request)}
    except Exception as error:  # whatever a template may raise
        answer = {"error": f"{type(error).__name__}: {error}"[:300].rstrip(": ")}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
