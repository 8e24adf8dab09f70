"""Compile a chat template, which is a Jinja program that came with a checkpoint, with the settings of transformers.

This module is imported only where a template is used, because jinja2 takes a tenth of a second to import. Jinja's
sandbox denies a template access to files and to Python's internals. It limits neither time nor memory: a template that
was written to run forever runs until Ctrl-C.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks an assistant's words for training. Rendering ignores the mark."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)  # type: ignore[no-any-return]


def compile_template(source: str) -> jinja2.Template:
    """Raises jinja2.TemplateSyntaxError for an invalid template. Rendering may raise anything."""
    extensions = [Generation, jinja2.ext.loopcontrols]
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return sandbox.from_string(source)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's filter of this name also escapes characters that are special in HTML; transformers' does not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)


def raise_exception(message: str) -> NoReturn:
    """Templates call this for conversations that they do not support, for example two user messages in a row."""
    raise jinja2.TemplateError(message)
