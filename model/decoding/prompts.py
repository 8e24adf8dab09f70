"""Where prompts come from, checked before the network is loaded. Imports no torch."""

import os
import select
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..text.tokenizer import Tokenizer

PATIENCE = 1.0  # seconds to wait for a pipe nobody said to read


@dataclass(frozen=True)
class Prompt:
    text: str
    tokens: list[int]


def read_texts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """The prompts' texts: as given, ``-`` being stdin; one for each line of ``file`` that is not blank; or piped in.

    With nothing at all, the empty text: the model then begins one of its own.
    """
    texts = [read_stdin() if text == "-" else text for text in prompts]
    if file is not None:
        lines = utf8(file.read_bytes(), str(file)).splitlines()
        texts += (found := [line for line in lines if line.strip()])
        if not found:
            raise ValueError(f"{file} holds no prompt: write one a line")
    if prompts or file is not None:
        return texts
    return [read_stdin() if stdin_has_text() else ""]


def read_stdin() -> str:
    return utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n") if sys.stdin else ""


def stdin_has_text() -> bool:
    """Whether somebody pipes a prompt in. A pipe may also be left open by whoever started us and never say a word."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISREG(mode):
        return True
    return stat.S_ISFIFO(mode) and bool(select.select([sys.stdin], [], [], PATIENCE)[0])


def utf8(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 at byte {error.start}: convert it to UTF-8") from None


def encode(texts: Sequence[str], tokenizer: Tokenizer, context: int, max_new_tokens: int | None) -> list[Prompt]:
    """The prompts' tokens. Raises ValueError for one that leaves no room in the context."""
    prompts = []
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"prompt {number} is not UTF-8 text: {text!r}") from None
        prompts.append(Prompt(text, tokenizer.encode(text)))
        length = len(prompts[-1].tokens)
        if length + (max_new_tokens or 1) > context:
            raise ValueError(
                f"prompt {number} has {length} tokens, and with {max_new_tokens or 1} new ones it passes the model's "
                f"context of {context}: shorten it" + (" or lower --max_new_tokens" if max_new_tokens else "")
            )
    return prompts
