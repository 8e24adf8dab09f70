"""The prompts of generate.py, given by flags, on standard input and in files, and encoded."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli.files import decode_utf8
from ..text.dataset import start_text
from ..text.readers import ROWS, File, json_rows, rows
from .batches import Prompt
from .chat import Chat, user_message
from .opened_model import OpenedModel

Row = tuple[str, dict[str, Any]]  # a prompt, and the other fields of its row


def encode_prompts(rows: Sequence[Row], model: OpenedModel, chat: Chat | None) -> list[Prompt]:
    """The prompts as tokens, with ``chat`` as questions in its template.

    Otherwise ``start_text`` replaces an empty prompt, which would be BOS alone: a model trained on few documents has
    rarely seen BOS.
    """
    if chat:
        encoded = [chat.encode([user_message(text)]) for text, _ in rows]
    else:
        start = start_text(model.checkpoint.path)
        encoded = [model.tokenizer.encode(text or start) for text, _ in rows]
    return [Prompt(text, tokens, fields) for (text, fields), tokens in zip(rows, encoded)]


def read_prompts(prompts: Sequence[str], file: Path | None) -> list[Row]:
    """The texts in ``prompts``, where ``-`` is stdin, then those in ``file``: its lines that are not blank.

    Of JSON they are the field ``prompt`` of each row. Without prompts and file, the only text is the empty one. Raises
    ValueError if a text is not valid UTF-8.
    """
    found: list[Row] = []
    for text in prompts:
        text = decode_utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if text == "-" else text
        found.append((text, {}))
    if file is not None:
        found += _prompts_in(file)
    return found or [("", {})]


def _prompts_in(file: Path) -> list[Row]:
    source = File(str(file), file)
    if source.is_text:
        content = decode_utf8(file.read_bytes(), str(file)).replace("\r\n", "\n")
        lines = content.split("\n")  # splitlines would also split at U+2028
        found: list[Row] = [(line, {}) for line in lines if line.strip()]
    elif ROWS[source.format] is json_rows:
        found = [_prompt_of(row, where) for where, row in rows(source, "prompt")]
    else:
        raise ValueError(f"{file} is no list of prompts: give text, one prompt per line, or .jsonl")
    if not found:
        raise ValueError(f"{file} contains no prompt: write one per line")
    return found


def _prompt_of(row: Any, where: str) -> Row:
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str):
        raise ValueError(f'{where} has no prompt: write {{"prompt": "text"}}, as --jsonl does')
    return prompt, row
