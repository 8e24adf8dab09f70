"""Where prompts come from: flags, a file, a pipe."""

import os
import stat
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cli import print_note, quantity
from ..cli.files import check_is_file

MAX_PROMPT_BYTES = 100_000_000  # bytes of a prompt: /dev/zero has no end
SUBSTITUTED = ("/dev/fd/", "/proc/self/fd/")  # a shell's <(command), which somebody writes to
PIPE_TIMEOUT = 1.0  # seconds to wait for the first byte of a pipe that no flag names


@dataclass(frozen=True)
class Prompt:
    text: str
    tokens: list[int]


def read_texts(prompts: Sequence[str], file: Path | None) -> list[str]:
    """The prompts' texts: as given, ``-`` being stdin; one for each line of ``file`` that is not blank; or piped in.

    With nothing at all, the empty text: the model then begins one of its own. Raises ValueError for what is no UTF-8.
    """
    texts = [read_stdin() if text == "-" else text for text in prompts]
    if file is not None:
        texts += prompts_in(file)
    if prompts or file is not None:
        return texts
    return [utf8(piped(), "stdin").removesuffix("\n")]


def prompts_in(file: Path) -> list[str]:
    """The lines of a file that are not blank; says how many were."""
    if not str(file).startswith(SUBSTITUTED):
        check_is_file(file)
    lines = utf8(file.read_bytes(), str(file)).splitlines()
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise ValueError(f"{file} holds no prompt: write one a line")
    if blank := len(lines) - len(texts):
        print_note(f"note: {file}: {quantity(blank, 'blank line')} skipped, {quantity(len(texts), 'prompt')}")
    return texts


def read_stdin() -> str:
    return utf8(whole_stdin(), "stdin").removesuffix("\n") if sys.stdin else ""


def whole_stdin() -> bytes:
    text = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(text) > MAX_PROMPT_BYTES:
        raise ValueError(
            f"stdin is longer than {MAX_PROMPT_BYTES // 10**6} MB: that fits no context, give a shorter prompt"
        )
    return text


def piped() -> bytes:
    """What is piped in though no flag asks for it. A pipe may also be open with nobody who writes to it."""
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # closed, before the start or since
        return b""
    if stat.S_ISREG(mode):
        return whole_stdin()
    if not stat.S_ISFIFO(mode):
        return b""
    # A thread waits for the first byte, since `select` knows no pipes on Windows. It ends with the process.
    first: list[bytes] = []
    reader = threading.Thread(target=lambda: first.append(os.read(descriptor, 1)), daemon=True)
    reader.start()
    reader.join(PIPE_TIMEOUT)
    return first[0] + whole_stdin() if first else b""


def utf8(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 at byte {error.start}: convert it to UTF-8") from None


def encode(
    texts: Sequence[str],
    tokens_of: Iterable[list[int]],
    context: int,
    max_new_tokens: int | None,
) -> list[Prompt]:
    """The prompts, each with its tokens, which are asked for in order, and after all texts have been checked.

    Raises ValueError for one that leaves no room in the context for so many new tokens.
    ``max_new_tokens`` is 0 where the text need not fit, and None where any number will do.
    """
    least = 1 if max_new_tokens is None else max_new_tokens
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"prompt {number} is not UTF-8 text: {text!r}") from None
    prompts = [Prompt(text, tokens) for text, tokens in zip(texts, tokens_of)]
    for number, prompt in enumerate(prompts, 1):
        length = len(prompt.tokens)
        if length + least > context:
            passes = f"and with {quantity(least, 'new one')} it passes" if least else "more than"
            lower = " or lower --max_new_tokens, or add --endless" if max_new_tokens else ""
            raise ValueError(
                f"prompt {number} has {quantity(length, 'token')}, {passes} the model's context of {context}: "
                f"shorten it{lower}"
            )
    return prompts
