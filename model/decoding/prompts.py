"""Prompts from flags, a file or stdin, and whether they fit into the context."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ..cli import print_note, quantity
from ..cli.files import check_is_file
from .endless import never_evicted, without_middle

MAX_PROMPT_BYTES = 100_000_000  # a size limit, so that /dev/zero cannot fill the memory
PROCESS_SUBSTITUTION = ("/dev/fd/", "/proc/self/fd/")  # a shell's <(command), a pipe to which the command writes


@dataclass(frozen=True)
class Prompt:
    text: str
    tokens: list[int]


def read_texts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """Read the prompts: the texts in ``prompts``, where ``-`` is stdin, then the lines of ``file`` that are not blank.

    If neither is given, the only prompt is the empty text. Raises ValueError if a text is not valid UTF-8.
    """
    texts = [read_stdin() if text == "-" else text for text in prompts]
    if file is not None:
        texts += read_prompt_file(file)
    return texts or [""]


def read_prompt_file(file: Path) -> list[str]:
    """The lines of a file, without the blank ones. Prints a note if there are blank ones."""
    if not str(file).startswith(PROCESS_SUBSTITUTION):
        check_is_file(file)
    with file.open("rb") as stream:
        content = decode_utf8(read_limited(stream, str(file), "split it"), str(file))
    content = content.replace("\r\n", "\n").removesuffix("\n")
    lines = content.split("\n")  # not splitlines, which also splits at form feeds and U+2028
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise ValueError(f"{file} contains no prompt: write one per line")
    blank = len(lines) - len(texts)
    if blank:
        print_note(f"note: {file}: {quantity(blank, 'blank line')} skipped, {quantity(len(texts), 'prompt')}")
    return texts


def read_stdin() -> str:
    content = read_limited(sys.stdin.buffer, "stdin", "give a shorter prompt")
    return decode_utf8(content, "stdin").removesuffix("\n")


def read_limited(stream: BinaryIO, source: str, advice: str) -> bytes:
    """Read a stream to its end. Raises ValueError if that is beyond MAX_PROMPT_BYTES."""
    content = stream.read(MAX_PROMPT_BYTES + 1)
    if len(content) > MAX_PROMPT_BYTES:
        raise ValueError(f"{source} is longer than {MAX_PROMPT_BYTES // 10**6} MB: {advice}")
    return content


def decode_utf8(content: bytes, source: str) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises ValueError that names the source and the invalid byte."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 at byte {error.start}: convert it to UTF-8") from None


def check_fit(prompts: Sequence[Prompt], context: int, max_new_tokens: int | None) -> None:
    """Raise ValueError if a prompt and ``max_new_tokens`` (or one token, if that is None) exceed the context."""
    new_tokens = 1 if max_new_tokens is None else max_new_tokens
    for number, prompt in enumerate(prompts, 1):
        length = len(prompt.tokens)
        if length + new_tokens > context:
            lower = ", lower --max_new_tokens" if max_new_tokens else ""
            raise ValueError(
                f"prompt {number} has {quantity(length, 'token')}, and with {quantity(new_tokens, 'new one')} it "
                f"exceeds the model's context of {context}: shorten it{lower}, or add --endless"
            )


def shorten_prompts(prompts: Sequence[Prompt], context: int) -> list[Prompt]:
    """Shorten prompts to the context, for endless texts: middle tokens are left out. Prints a note if some are."""
    shortened = [replace(prompt, tokens=without_middle(prompt.tokens, context)) for prompt in prompts]
    too_long = [number for number, prompt in enumerate(prompts) if len(prompt.tokens) > context]
    if too_long:
        number = too_long[0]
        length = len(prompts[number].tokens)
        left_out = length - len(shortened[number].tokens)
        others = f" ({quantity(len(too_long) - 1, 'other prompt')} too)" if len(too_long) > 1 else ""
        print_note(
            f"note: prompt {number + 1} has {length} tokens and exceeds the context of {context}{others}: "
            f"after its first {never_evicted(context)} tokens, {left_out} are left out"
        )
    return shortened
