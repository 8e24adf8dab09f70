"""Continue prompts in batches: ``generate`` gives token ids, ``continue_samples`` the text of each row as it grows.

Both give prompts to ``decode_prompts``, which calls the decode loop.
"""

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..cli import print_note, quantity
from ..config import ModelArgs
from ..fast.step import compile_seconds, could_compile, for_decoding
from ..generation import decode
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .endless import EndlessCache, aligned_slots, is_shift_invariant
from .options import Sampling
from .sampling import Sampler, read_tokens

Prompts = Sequence[Sequence[int]]
WORTH_COMPILING = 60.0  # seconds of decoding: compiling takes half of this, and saves up to half
GPU_SLOTS = 256  # a cache on a GPU has a multiple of these, or the whole context


def generate(
    model: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    eos_ids: Collection[int] = (),
    compile: bool = False,
    endless: bool = False,
    logprobs: list[list[float]] | None = None,
    **sampling: Any,
) -> Iterator[list[int | None]]:
    """Continue every prompt. Each step yields one id per row, and None after a row has ended with one of ``eos_ids``.

    ``prompts`` are lists of token ids, of equal length if they are ``endless`` or the network has absolute positions.
    Except for rounding, a row's logits do not depend on the rest of the batch. At temperature 0, the default, a row's
    text is the same as if its prompt were given alone; otherwise row i draws from random stream i.
    ``sampling`` are the fields of ``Sampling``: temperature, top_k, top_p, min_p, repetition_penalty, seed. With
    ``endless`` a text may be longer than ``max_seq_len``, and its oldest part is evicted from the cache. To a list
    given as ``logprobs``, each step appends the log-probabilities that the network gave to the tokens of the rows.

    The network is in eval mode, and ``model`` is left as it is. Raises ValueError for invalid prompts or settings, but
    does not check that tokens and counts are integers.
    """
    settings = Sampling(**{"temperature": 0.0, **sampling})
    check_prompts(model.args, prompts, max_new_tokens, endless=endless)
    network = for_decoding(model, compile)
    cache = cache_for(network, prompts, max_new_tokens, endless)
    steps = decode_prompts(network, prompts, max_new_tokens, settings, cache, logprobs=logprobs)
    return ids_of(steps, eos_ids)


def ids_of(steps: Iterator[Tensor], eos_ids: Collection[int]) -> Iterator[list[int | None]]:
    """The token of each row, (B, 1), as a list, and None for a row that has ended. Stops when all rows have."""
    ended: set[int] = set()
    for tokens in steps:
        ids = [token for (token,) in tokens.tolist()]
        yield [None if row in ended else token for row, token in enumerate(ids)]
        ended |= {row for row, token in enumerate(ids) if token in eos_ids}
        if len(ended) == len(ids):
            return


def decode_prompts(
    network: Transformer,
    prompts: Prompts,
    max_new_tokens: int,
    sampling: Sampling,
    cache: KVCache,
    first_row: int = 0,
    *,
    logprobs: list[list[float]] | None = None,
) -> Iterator[Tensor]:
    """The decode loop on prompts that pass ``check_prompts``, with a cache of ``cache_for``: yields tokens (B, 1).

    Row i draws from random stream ``first_row`` + i. Raises ValueError for prompts of unequal length if they cannot be
    padded: padding shifts a text, and the first slots of an endless one are never evicted.
    """
    device = network.norm.weight.device
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    if any(pads) and (isinstance(cache, EndlessCache) or not is_shift_invariant(network)):
        raise ValueError(
            f"prompts of unequal length, {longest - max(pads)} to {longest} tokens, cannot share a batch if they are "
            "endless, or if the network's scores depend on absolute positions: give them one by one (--batch_size 1)"
        )
    tokens = torch.tensor([[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts)], device=device)
    padding = torch.tensor(pads, device=device) if any(pads) else None  # (B,)
    sampler = Sampler(sampling, prompts, first_row, logprobs)
    return read_tokens(decode(network, tokens, max_new_tokens, sampler, cache, padding=padding), sampler)


def cache_for(
    network: Transformer, prompts: Prompts, max_new_tokens: int, endless: bool, last: KVCache | None = None
) -> KVCache:
    """A cache for these prompts: the ``last`` one if its size is right, because it may have a recording.

    The last new token is never written to the cache, so one slot stays unused. This is intended: compiled code never
    has to treat a slice ``[:end]`` that is the whole buffer, which on a GPU would recompile.
    """
    if endless:
        return EndlessCache(network, len(prompts))
    slots, device = max(map(len, prompts)) + max_new_tokens, network.norm.weight.device
    if device.type != "cpu":  # compiled code for a GPU is for one number of slots
        slots = gpu_slots(slots, network.args)
    if last is not None and (last.batch_size, last.max_seq_len) == (len(prompts), slots):
        return last
    cache = KVCache(network.args, len(prompts), slots)
    for layer in cache.layers:
        layer.slots = aligned_slots(slots, device)
    return cache


def gpu_slots(slots: int, args: ModelArgs) -> int:
    return min(math.ceil(slots / GPU_SLOTS) * GPU_SLOTS, args.max_seq_len)


def check_prompts(args: ModelArgs, prompts: Prompts, max_new_tokens: int, *, endless: bool = False) -> None:
    """Raise ValueError unless the prompts are non-empty lists of ids in the vocabulary that fit into the context."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: give at least 1")
    if not all(isinstance(prompt, Sequence) and not isinstance(prompt, str) for prompt in prompts):
        raise ValueError(
            f"prompts are {prompts!r:.60}: give a list of token ids for each text, for example [tokenizer.encode(text)]"
        )
    if not prompts or not all(prompts):
        raise ValueError("prompts or one of them are empty: give at least one token, for example [[tokenizer.bos_id]]")
    limit = args.max_seq_len
    for number, prompt in enumerate(prompts, 1):
        if not endless and len(prompt) + max_new_tokens > limit:
            raise ValueError(
                f"prompt {number} has {quantity(len(prompt), 'token')}, and with {quantity(max_new_tokens, 'new one')} "
                f"it exceeds the context of {limit} (max_seq_len): shorten it, lower max_new_tokens, or let it be "
                "endless (--endless)"
            )
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < args.vocab_size:
                raise ValueError(
                    f"prompt {number} has token {token}: the network's vocabulary is 0 to {args.vocab_size - 1}; check "
                    "the tokenizer"
                )


@dataclass(frozen=True)
class Prompt:
    text: str
    tokens: list[int]
    fields: Mapping[str, Any] = field(default_factory=dict)  # the others of its row


def text_before_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The part of a text that certainly precedes any stop string, and whether it has one.

    Characters at its end that may be the beginning of a stop string do not count. If the text has several stop strings,
    the one that ends first counts, so the result does not depend on how the text is cut into pieces.
    """
    found = [(text.index(each) + len(each), text.index(each)) for each in stop if each in text]  # (end, start)
    if found:
        return text[: min(found)[1]], True
    partial = [length for each in stop for length in range(1, len(each)) if text.endswith(each[:length])]
    return text[: len(text) - max(partial, default=0)], False


@dataclass(eq=False)
class Sample:
    """One continuation. ``finish`` is None while it runs, then ``end`` (one of ``eos_ids``), ``stop`` or ``length``."""

    prompt: Prompt
    tokenizer: Tokenizer
    max_new_tokens: int
    stop: Sequence[str] = ()
    eos_ids: Collection[int] = ()
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the tokens, if they are recorded
    finish: str | None = None

    def __post_init__(self) -> None:
        self._stream = self.tokenizer.stream(self.prompt.tokens)  # tokenizers decode the start of a text differently
        self._held = ""  # the end of the text that may be the beginning of a stop string

    def push(self, token: int) -> None:
        """Add the row's next token. Ignored after the sample has finished, because its batch may go on."""
        if self.finish is not None:
            return
        self.tokens.append(token)
        if token in self.eos_ids:
            self.finish = "end"
        elif len(self.tokens) == self.max_new_tokens:
            self.finish = "length"
        text = self._held
        if self.finish != "end":
            text += self._stream.push(token)
        if self.finish:
            text += self._stream.flush()
        certain, stopped = text_before_stop(text, self.stop)
        if stopped:
            self.finish = "stop"
        elif self.finish:
            certain = text
        self.text += certain
        self._held = text[len(certain) :]


@dataclass
class Speed:
    """Tokens and seconds of prefill and of decoding.

    They are counted separately, because prefill is limited by arithmetic, and decoding by memory bandwidth. The first
    step of a batch prefills the prompts and samples one token per row. It counts as prefill.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0
    compile_seconds: float = 0.0

    def print(self, network: Transformer) -> None:
        """Print the speeds on stderr, with PyTorch's number of threads. Nothing if there are no tokens.

        A note says if compiling might have been worth its time. It is never done unasked, because compiled code rounds
        differently, and the same command must give the same text.
        """
        parts = [
            ("prompt", self.prompt_tokens, self.prompt_seconds),
            ("new, after the first", self.new_tokens, self.new_seconds),
        ]
        texts = [
            f"{name}: {quantity(tokens, 'token')}, {seconds:.2f} s, {tokens / max(seconds, 1e-9):.0f} tokens/s"
            for name, tokens, seconds in parts
            if tokens
        ]
        if self.compile_seconds:
            texts.insert(0, f"compiled in {self.compile_seconds:.0f} s")
        if texts:
            print_note("; ".join([*texts, quantity(torch.get_num_threads(), "thread")]))
        if self.new_seconds >= WORTH_COMPILING and could_compile(network):
            print_note(
                "note: --compile takes half a minute once, and then less time for each token; its texts may differ, "
                "because it rounds differently"
            )


def push_tokens(
    network: Transformer,
    samples: Sequence[Sample],
    steps: Iterable[Tensor],
    speed: Speed,
    logprobs: Sequence[Sequence[float]] | None = None,
) -> Iterator[None]:
    """Give each sample its token of every step of the network, (B, 1), until all have finished. Yields after each step.

    After a step, ``logprobs`` ends with those of its tokens, if they are recorded. The time of the steps is added to
    ``speed``, but not the time that the caller takes between them.
    """
    started, compiled = time.perf_counter(), compile_seconds(network)
    for step, tokens in enumerate(steps):
        compiling = compile_seconds(network) - compiled
        speed.compile_seconds += compiling
        seconds = time.perf_counter() - started - compiling
        if step == 0:
            speed.prompt_seconds += seconds
            speed.prompt_tokens += sum(len(sample.prompt.tokens) for sample in samples)
        else:
            speed.new_seconds += seconds
            speed.new_tokens += sum(sample.finish is None for sample in samples)
        for row, (sample, (token,)) in enumerate(zip(samples, tokens.tolist())):
            if logprobs and sample.finish is None:
                sample.logprobs.append(logprobs[-1][row])
            sample.push(token)
        yield
        if all(sample.finish for sample in samples):
            return
        started, compiled = time.perf_counter(), compile_seconds(network)


def continue_samples(
    network: Transformer,
    samples: Iterable[Sample],
    sampling: Sampling,
    speed: Speed,
    *,
    batch_size: int = 16,
    endless: bool = False,
    with_logprobs: bool = False,
) -> Iterator[Sample]:
    """Continue the samples, ``batch_size`` at a time, with a network from ``for_decoding``.

    After every step it yields the sample that is being streamed: the first one until it has finished, then the second,
    and so on. A sample that finished while it waited is yielded once. Each time a sample is yielded, its ``finish`` is
    None, except the last time. Raises ValueError if the prompts of a batch cannot share one (``decode_prompts``).
    """
    remaining, done = iter(samples), 0
    cache: KVCache | None = None
    while batch := list(islice(remaining, batch_size)):
        prompts = [sample.prompt.tokens for sample in batch]
        longest = max(sample.max_new_tokens for sample in batch)
        waiting = list(batch)  # not finished, or finished but not yielded yet; only the first one is streamed
        found: list[list[float]] | None = [] if with_logprobs else None
        cache = cache_for(network, prompts, longest, endless, cache)
        # No name for the steps: it would keep this batch's cache alive while the next one's is allocated.
        for _ in push_tokens(
            network,
            batch,
            decode_prompts(network, prompts, longest, sampling, cache, done, logprobs=found),
            speed,
            found,
        ):
            while waiting:
                yield waiting[0]
                if waiting[0].finish is None:
                    break
                waiting.pop(0)
        done += len(batch)
