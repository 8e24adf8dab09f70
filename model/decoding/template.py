"""Render a chat template, which is a program that came with a checkpoint, in a separate process that needs only jinja2.

Jinja's sandbox denies a template access to Python's internals and to files. It does not prevent an endless loop, or a
text that is doubled until the memory is full. So this process limits its time, except on Windows, and its memory,
except on Windows and macOS.

stdin: a JSON object with ``task`` (the arguments of ``render``) and the limits ``seconds`` and ``memory`` (bytes).
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

OLDEST_SAFE_JINJA2 = (3, 1, 6)  # templates can break out of the sandbox of earlier versions
MAX_CHARACTERS = 4_000_000  # limit of a rendered text


class Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks an assistant's words for training. Rendering ignores the mark."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)  # type: ignore[no-any-return]


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, but a forbidden attribute is an error instead of an undefined value, which prints nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it accesses {attribute!r} of a {type(obj).__name__}")


class Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, to which a template may write, except to names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it sets {name!r} of a namespace")
        super().__setitem__(name, value)


def environment() -> Sandbox:
    """A Jinja environment with the settings, extensions, filter and functions that transformers provides."""
    installed = version("jinja2")
    if tuple(int(number) for number in re.findall(r"\d+", installed)[:3]) < OLDEST_SAFE_JINJA2:
        raise ValueError(f"jinja2 {installed} has known vulnerabilities: pip install --upgrade jinja2")
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": Namespace}
    return sandbox


def strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's filter of this name also escapes characters that are special in HTML; transformers' does not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    """Templates call this for conversations that they do not support, for example two user messages in a row."""
    raise jinja2.TemplateError(message)


def render(template: str, variables: dict[str, Any], conversations: list[Any]) -> list[str]:
    """Render each conversation, given as a list [messages, add_generation_prompt], to its text."""
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


def set_limit(kind: int, value: int) -> None:
    """Set a resource limit of this process to ``value``, or to its hard limit if that is lower."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def main() -> None:
    request = json.load(sys.stdin)
    if resource is not None:
        set_limit(resource.RLIMIT_CPU, request["seconds"])
        set_limit(resource.RLIMIT_CORE, 0)
        if sys.platform != "darwin":  # macOS does not support this limit
            set_limit(resource.RLIMIT_AS, request["memory"])
    try:
        answer: dict[str, Any] = {"texts": render(**request["task"])}
    except Exception as error:  # a template can raise anything
        description = type(error).__name__
        if str(error):
            description += f": {error}"
        answer = {"error": description[:300]}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
