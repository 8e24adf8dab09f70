"""Continue prompts in batches, and stream the text of each row up to its end or a stop string."""

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
    """Stream text up to the first stop string. Characters that may be the beginning of one are held back.

    If several occur, the one that ends first counts, so the result does not depend on how the text is cut into pieces.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        check_stop_strings(strings)
        self._strings = tuple(strings)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Add text, and return the part that certainly precedes any stop string: "" after one was found."""
        if self.stopped:
            return ""
        text = self._held + text
        # (end, start) of each stop string, so that the minimum is the one that ends first
        found = [(text.index(stop) + len(stop), text.index(stop)) for stop in self._strings if stop in text]
        if found:
            self.stopped, self._held = True, ""
            _, start = min(found)
            return text[:start]
        held = max((self._partial_match(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Return the text that was held back. No more text may follow."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _partial_match(text: str, stop: str) -> int:
        """The number of characters at the end of the text that are the beginning of the stop string."""
        lengths = range(min(len(text), len(stop) - 1), 0, -1)
        return next((length for length in lengths if text.endswith(stop[:length])), 0)


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
        # Tokenizers decode the start of a text differently, so the prompt goes through the stream first.
        self._stream = self.tokenizer.stream()
        streamed = sum(len(self._stream.push(token)) for token in self.prompt.tokens)
        prompt_length = len(self.tokenizer.decode(self.prompt.tokens))
        self._prompt_characters_left = prompt_length - streamed  # characters that the stream still holds back
        self._taken_length: int | None = None

    def push(self, token: int | None, logprob: float | None) -> None:
        """Add the row's next token. Ignored after the sample has finished, because its batch may go on."""
        if self.finish is not None or token is None:
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        is_end = token in self.tokenizer.eos_ids
        if not is_end:
            self._extend(self._stream.push(token))
        if self.finish is None and (is_end or len(self.tokens) == self.max_new_tokens):
            self._extend(self._stream.flush())
            self.text += self.stops.flush()
            self.finish = self.finish or ("end" if is_end else "length")

    def _extend(self, text: str) -> None:
        """Add text from the stream, without the rest of the prompt, up to a stop string."""
        from_prompt = min(self._prompt_characters_left, len(text))
        self._prompt_characters_left -= from_prompt
        self.text += self.stops.push(text[from_prompt:])
        if self.stops.stopped:
            self.finish = "stop"

    def take(self, with_prompt: bool = False) -> str:
        """The text since the last call. The first call also gives the prompt before it, if ``with_prompt``."""
        prompt = self.prompt.text if with_prompt and self._taken_length is None else ""
        new_text = self.text[self._taken_length or 0 :]
        self._taken_length = len(self.text)
        return prompt + new_text

    def as_json(self, logprobs: bool) -> dict[str, Any]:
        fields = {"prompt": self.prompt.text, "text": self.text, "tokens": self.tokens, "finish_reason": self.finish}
        return fields | ({"logprobs": self.logprobs} if logprobs else {})


class Speed:
    """Tokens and seconds of prefill and of decoding.

    They are counted separately, because prefill is limited by arithmetic, and decoding by memory bandwidth.
    The caller of the decode loop calls ``start`` before each step and ``stop`` after it, so that its other work is not
    counted. The first step of a batch prefills the prompts and samples one token per row. It counts as prefill.
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
        parts = []
        for name, tokens, seconds in (
            ("prompt", self.prompt_tokens, self.prompt_seconds),
            ("new", self.new_tokens, self.new_seconds),
        ):
            if tokens and seconds:
                rate = f"{tokens / seconds:.0f} tokens/s"
                parts.append(f"{name}: {quantity(tokens, 'token')}, {seconds:.2f} s, {rate}")
        return "; ".join(parts)


@dataclass(frozen=True)
class CompletionSettings:
    """Settings of ``complete``."""

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
    completion: CompletionSettings,
    sampling: Sampling,
    speed: Speed,
) -> Iterator[Sample]:
    """Continue every prompt, ``batch_size`` at a time, with a network from ``for_decoding``.

    After every step it yields the sample that is being streamed: the first one until it has finished, then the second,
    and so on. A sample that finished while it waited is yielded once. Each time a sample is yielded, its ``finish`` is
    None, except the last time.
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
        # Samples that are not finished, or finished but not yielded yet. Only the first one is streamed.
        waiting = list(samples)
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
