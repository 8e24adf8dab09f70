"""Tokens to texts: prompts in batches through the decode loop, each row with its own text and its own end."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cli import quantity
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .batches import decode_batch, new_cache
from .prompts import Prompt
from .sampling import Sampler, Sampling


def check_stop_strings(strings: Sequence[str]) -> None:
    if not all(strings):
        raise ValueError("a stop string is empty: give text to stop at")


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may still become one.

    Of several, the one complete first counts, so the result does not depend on how the text is cut into pieces.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        check_stop_strings(strings)
        self._strings = tuple(strings)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What is certain to come before any stop string; nothing more once one has come."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        begun = max((self._begun(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """How many characters at the end of the text may begin the stop string."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(eq=False)
class Sample:
    """One continuation. ``finish`` is None while it runs, then ``end`` (an end token), ``stop`` or ``length``."""

    prompt: Prompt
    tokenizer: Tokenizer
    max_new_tokens: int
    stops: StopStrings
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish: str | None = None

    def __post_init__(self) -> None:
        # Decoders treat the start of a text specially, so the continuation is decoded as what follows the prompt.
        self._stream = self.tokenizer.stream()
        shown = sum(len(self._stream.push(token)) for token in self.prompt.tokens)
        self._prompt_left = len(self.tokenizer.decode(self.prompt.tokens)) - shown  # characters the stream still holds
        self._taken: int | None = None

    def push(self, token: int | None, logprob: float | None) -> None:
        """The row's next token. Nothing once the sample has finished, though its row may run on."""
        if self.finish is not None or token is None:
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        ends = token in self.tokenizer.eos_ids
        if not ends:
            self._extend(self._stream.push(token))
        if self.finish is None and (ends or len(self.tokens) == self.max_new_tokens):
            self._extend(self._stream.flush())  # no more tokens come: what was held back was text after all
            self.text += self.stops.flush()
            self.finish = self.finish or ("end" if ends else "length")

    def _extend(self, text: str) -> None:
        of_prompt = min(self._prompt_left, len(text))
        self._prompt_left -= of_prompt
        self.text += self.stops.push(text[of_prompt:])
        if self.stops.stopped:
            self.finish = "stop"

    def take(self, with_prompt: bool = False) -> str:
        """The text since the last call; on the first one the prompt's before it, if wanted."""
        begin = self.prompt.text if with_prompt and self._taken is None else ""
        new, self._taken = self.text[self._taken or 0 :], len(self.text)
        return begin + new

    def as_json(self, logprobs: bool) -> dict[str, Any]:
        found = {"prompt": self.prompt.text, "text": self.text, "tokens": self.tokens, "finish_reason": self.finish}
        return found | ({"logprobs": self.logprobs} if logprobs else {})


class Speed:
    """Tokens and seconds of prompts and of new tokens: the two have different limits, arithmetic and memory.

    The caller of the decode loop calls ``start`` before each of its steps and ``stop`` after, so its own work between
    them is not counted. A first step prefills the prompts and gives a token each; it counts for the prompts.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.started = 0.0
        self.prompt_tokens = self.new_tokens = 0
        self.prompt_seconds = self.new_seconds = 0.0

    def start(self) -> None:
        self.started = self.clock()

    def stop(self, prompt_tokens: int = 0, new_tokens: int = 0) -> None:
        seconds = self.clock() - self.started
        if prompt_tokens:
            self.prompt_tokens += prompt_tokens
            self.prompt_seconds += seconds
        else:
            self.new_tokens += new_tokens
            self.new_seconds += seconds

    def __str__(self) -> str:
        parts = [("prompt", self.prompt_tokens, self.prompt_seconds), ("new", self.new_tokens, self.new_seconds)]
        return "; ".join(
            f"{name}: {quantity(n, 'token')}, {s:.2f} s, {n / s:.0f} tokens/s" for name, n, s in parts if n and s
        )


@dataclass(frozen=True)
class Completion:
    """How prompts are continued."""

    max_new_tokens: int
    stop: Sequence[str] = ()
    batch_size: int = 16
    logprobs: bool = False
    use_cache: bool = True
    endless: bool = False


def complete(
    network: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    completion: Completion,
    sampling: Sampling,
    speed: Speed,
) -> Iterator[Sample]:
    """Continue every prompt, ``batch_size`` of them at a time, with the ``network`` that ``for_decoding`` built.

    Yields samples in the order of their prompts, each whenever it may have more text, the last time with ``finish``.
    """
    max_new_tokens, batch_size = completion.max_new_tokens, completion.batch_size
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        samples = [Sample(prompt, tokenizer, max_new_tokens, StopStrings(completion.stop)) for prompt in batch]
        rows = [prompt.tokens for prompt in batch]
        cache = new_cache(network, rows, max_new_tokens, completion.endless) if completion.use_cache else None
        vocab_size, device = network.args.vocab_size, network.norm.weight.device
        sampler = Sampler(sampling, rows, vocab_size, first, device, completion.logprobs)
        steps = decode_batch(network, rows, max_new_tokens, sampler, cache, tokenizer.eos_ids)
        prompt_tokens = sum(map(len, rows))
        waiting = list(samples)  # for those before them in the batch to finish
        speed.start()
        for tokens in steps:
            speed.stop(prompt_tokens, sum(sample.finish is None for sample in samples))
            prompt_tokens = 0
            for row, (sample, token) in enumerate(zip(samples, tokens)):
                sample.push(token, sampler.logprobs[row] if sampler.logprobs else None)
            while waiting:
                yield waiting[0]
                if waiting[0].finish is None:
                    break
                waiting.pop(0)
            if not waiting:
                break
            speed.start()
