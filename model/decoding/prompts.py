"""Where prompts come from: flags, a file, a pipe."""

import os
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..cli import print_note, quantity
from ..cli.files import check_is_file
from .endless import never_evicted, without_middle

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


def check_fit(prompts: Sequence[Prompt], context: int, max_new_tokens: int | None) -> None:
    """Raise ValueError for a prompt that leaves no room in the context for so many new tokens; None is for any."""
    least = 1 if max_new_tokens is None else max_new_tokens
    for number, prompt in enumerate(prompts, 1):
        length = len(prompt.tokens)
        if length + least > context:
            lower = ", lower --max_new_tokens" if max_new_tokens else ""
            raise ValueError(
                f"prompt {number} has {quantity(length, 'token')}, and with {quantity(least, 'new one')} it passes "
                f"the model's context of {context}: shorten it{lower}, or add --endless"
            )


def fit_endless(prompts: Sequence[Prompt], context: int) -> list[Prompt]:
    """The prompts with the tokens that an endless text of this context begins with; says what is left out."""
    fitting = [replace(prompt, tokens=without_middle(prompt.tokens, context)) for prompt in prompts]
    cut = [number for number, (a, b) in enumerate(zip(prompts, fitting)) if len(a.tokens) > len(b.tokens)]
    if cut:
        first, before, after = never_evicted(context), *(len(of[cut[0]].tokens) for of in (prompts, fitting))
        others = f" (so do {len(cut) - 1} others)" if len(cut) > 1 else ""
        print_note(
            f"note: prompt {cut[0] + 1} has {before} tokens and passes the context of {context}{others}: "
            f"{before - after} are left out after the first {first}"
        )
    return fitting
