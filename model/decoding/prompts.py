"""Where prompts come from: flags, a file, a pipe; and those of unequal length as one batch, with its cache."""

import os
import stat
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cache import EndlessCache, KVCache
from ..cli.files import check_is_file
from ..config import ModelArgs
from ..transformer import Transformer
from .network import CompiledNetwork

LONGEST = 100_000_000  # bytes of a prompt: /dev/zero has no end
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
        note(f"note: {file}: {blank} blank line{'s' if blank > 1 else ''} skipped, {len(texts)} prompts")
    return texts


def read_stdin() -> str:
    return utf8(whole_stdin(), "stdin").removesuffix("\n") if sys.stdin else ""


def whole_stdin() -> bytes:
    text = sys.stdin.buffer.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise ValueError(f"stdin is longer than {LONGEST // 10**6} MB: that fits no context, give a shorter prompt")
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


def note(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


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
            passes = f"and with {least} new ones it passes" if least else "more than"
            lower = " or lower --max_new_tokens, or add --endless" if max_new_tokens else ""
            raise ValueError(
                f"prompt {number} has {length} tokens, {passes} the model's context of {context}: shorten it{lower}"
            )
    return prompts


Prompts = Sequence[Sequence[int]]


def left_padded(prompts: Prompts) -> Tensor:
    """The prompts as one (B, T), T the longest one's length, all ending in the last column."""
    longest = max(map(len, prompts))
    return torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])  # (B, T)


class PaddedCache(KVCache):
    """A cache whose rows begin late: ``padding`` (B,) counts the slots before each row's first token."""

    def __init__(self, args: ModelArgs, padding: Tensor, *rest: Any) -> None:
        super().__init__(args, len(padding), *rest)
        self.padding = padding.to(self.keys.device)

    def restrict(self, mask: Tensor | None, start_pos: int, T: int) -> Tensor:
        """The mask, (T, S) or None, without the padding of each row: (B, 1, T, S).

        A slot that is itself padding sees itself: a softmax over nothing would be NaN.
        """
        slots = torch.arange(start_pos + T, device=self.padding.device)
        own = slots[start_pos:, None]  # (T, 1)
        filled = slots >= self.padding[:, None, None, None]  # (B, 1, 1, S)
        visible = (slots <= own) & filled | (slots == own)  # (B, 1, T, S)
        if mask is None or mask.dtype == torch.bool:
            return visible if mask is None else visible & mask  # (B, 1, T, S)
        return mask.masked_fill(~visible, float("-inf"))  # (B, 1 or H, T, S)


def new_cache(
    network: Transformer | CompiledNetwork, prompts: Prompts, max_new_tokens: int, endless: bool = False
) -> KVCache:
    """Room for exactly these prompts and their continuations, in the dtype and on the device of the weights.

    ``endless``: no more than the context; when it is full the oldest tokens are dropped.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    weight, args = network.norm.weight, network.args
    room = int(lengths.max()) + max_new_tokens
    if endless:
        check_endless(network, prompts)
        room = min(room, args.max_seq_len)
        return EndlessCache(args, network.freqs_cis, len(prompts), room, weight.dtype, weight.device)
    if lengths.min() == lengths.max():
        return KVCache(args, len(prompts), room, weight.dtype, weight.device)
    if not network.shift_invariant:
        raise ValueError(
            "prompts of unequal length cannot share a batch where scores depend on absolute positions: "
            "give them one by one, or use_cache=False"
        )
    return PaddedCache(args, lengths.max() - lengths, room, weight.dtype, weight.device)


def check_endless(network: Transformer | CompiledNetwork | type[Transformer], prompts: Prompts) -> None:
    """Raises ValueError where dropping tokens would change scores, or rows would drop different numbers of tokens."""
    if not network.shift_invariant:
        raise ValueError(
            "an endless text moves tokens to other positions, on which this network's scores depend: leave endless out"
        )
    lengths = [*map(len, prompts)]
    if len({*lengths}) > 1:
        raise ValueError(
            f"endless is for prompts of equal length, and these have {min(lengths)} to {max(lengths)} tokens: "
            "give them one by one (batch_size 1)"
        )


def check_prompts(args: ModelArgs, prompts: Prompts, max_new_tokens: int, endless: bool = False) -> None:
    """Raises ValueError for an empty prompt, a token outside the vocabulary, and a text longer than the context."""
    if not prompts or not all(prompts):
        raise ValueError("a prompt is empty: give each row at least one token, such as the tokenizer's bos_id")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: give at least 1")
    longest, limit, V = max(map(len, prompts)), args.max_seq_len, args.vocab_size
    if endless and longest > limit:
        raise ValueError(f"a prompt of {longest} tokens is longer than the context of {limit}: shorten it")
    if not endless and longest + max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones pass the {limit} positions of the "
            "network (max_seq_len): shorten the prompt, lower max_new_tokens, or let it be endless"
        )
    for token in {min(map(min, prompts)), max(map(max, prompts))}:
        if not 0 <= token < V:
            raise ValueError(
                f"a prompt holds token {token}: the network's vocabulary is 0 to {V - 1}; check the tokenizer"
            )


def memory_needed(args: ModelArgs, rows: int, length: int, dtype: torch.dtype) -> int:
    """Bytes that decoding ``rows`` texts of ``length`` tokens takes beside the weights: cache and logits."""
    cache = 2 * args.n_layers * args.n_kv_heads * args.head_dim * length * dtype.itemsize
    return rows * (cache + args.vocab_size * torch.float32.itemsize)
