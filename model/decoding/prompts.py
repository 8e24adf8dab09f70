"""Prompts from flags, a file or stdin."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prompt:
    text: str
    tokens: list[int]


def read_texts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """Read the prompts: the texts in ``prompts``, where ``-`` is stdin, then the lines of ``file`` that are not blank.

    If neither is given, the only prompt is the empty text. Raises ValueError if a text is not valid UTF-8.
    """
    texts = []
    for text in prompts:
        texts.append(decode_utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if text == "-" else text)
    if file is not None:
        content = decode_utf8(file.read_bytes(), str(file)).replace("\r\n", "\n")
        lines = [line for line in content.split("\n") if line.strip()]  # splitlines also splits at U+2028
        if not lines:
            raise ValueError(f"{file} contains no prompt: write one per line")
        texts += lines
    return texts or [""]


def decode_utf8(content: bytes, source: str) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises ValueError that names the source and the invalid byte."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 at byte {error.start}: convert it to UTF-8") from None
