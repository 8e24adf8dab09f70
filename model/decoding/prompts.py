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
from .options import OpenedModel


def encode_prompts(texts: Sequence[str], model: OpenedModel, chat: Chat | None) -> list[Prompt]:
    """The prompts as tokens, with ``chat`` as questions in its template.

    Otherwise ``start_text`` replaces an empty prompt, which would be BOS alone: a model trained on few documents has
    rarely seen BOS.
    """
    if chat:
        encoded = [chat.encode([user_message(text)]) for text in texts]
    else:
        start = start_text(model.checkpoint.path)
        encoded = [model.tokenizer.encode(text or start) for text in texts]
    return [Prompt(text, tokens) for text, tokens in zip(texts, encoded)]


def read_texts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """The texts in ``prompts``, where ``-`` is stdin, then those in ``file``: its lines that are not blank.

    Of JSON they are the field ``prompt`` of each row. Without prompts and file, the only text is the
    empty one. Raises ValueError if a text is not valid UTF-8.
    """
    texts = []
    for text in prompts:
        texts.append(decode_utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if text == "-" else text)
    if file is not None:
        texts += _texts_in(file)
    return texts or [""]


def _texts_in(file: Path) -> list[str]:
    source = File(str(file), file)
    if source.is_text:
        content = decode_utf8(file.read_bytes(), str(file)).replace("\r\n", "\n")
        texts = [line for line in content.split("\n") if line.strip()]  # splitlines would also split at U+2028
    elif ROWS[source.format] is json_rows:
        texts = [_prompt_of(row, where) for where, row in rows(source, "prompt")]
    else:
        raise ValueError(f"{file} is no list of prompts: give text, one prompt per line, or .jsonl")
    if not texts:
        raise ValueError(f"{file} contains no prompt: write one per line")
    return texts


def _prompt_of(row: Any, where: str) -> str:
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str):
        raise ValueError(f'{where} has no prompt: write {{"prompt": "text"}}, as --jsonl does')
    return prompt
