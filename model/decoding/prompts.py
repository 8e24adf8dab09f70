"""The texts of prompts: given by flags, on standard input and in files."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cli.files import decode_utf8
from ..text.readers import File


def read_texts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """The texts in ``prompts``, where ``-`` is stdin, then those in ``file``: its lines that are not blank.

    Of a file of JSON lines they are the field ``prompt`` of each line. Without prompts and file, the only text is the
    empty one. Raises ValueError if a text is not valid UTF-8.
    """
    texts = []
    for text in prompts:
        texts.append(decode_utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if text == "-" else text)
    if file is not None:
        texts += _texts_in(file)
    return texts or [""]


def _texts_in(file: Path) -> list[str]:
    content = decode_utf8(file.read_bytes(), str(file)).replace("\r\n", "\n")
    # splitlines would also split at U+2028
    lines = {number: line for number, line in enumerate(content.split("\n"), 1) if line.strip()}
    if not lines:
        raise ValueError(f"{file} contains no prompt: write one per line")
    if file.suffix.lower() in (".jsonl", ".ndjson"):
        return [_prompt_field(line, f"{file}: line {number}") for number, line in lines.items()]
    if not File(str(file), file).is_text:
        raise ValueError(f"{file} is no list of prompts: give text, one prompt per line, or .jsonl")
    return list(lines.values())


def _prompt_field(line: str, where: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, TypeError, KeyError, RecursionError):
        prompt = None
    if not isinstance(prompt, str):
        raise ValueError(f'{where} has no prompt: write {{"prompt": "text"}}, as --jsonl does')
    return prompt
