"""Tokens to texts: prompts in batches through the decode loop, each row with its own text and its own end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..text.tokenizer import Tokenizer
from .prompts import Prompt
from .stop import StopStrings


@dataclass(eq=False)
class Sample:
    """One continuation. ``finish`` is None while it runs, then ``end`` (an end token), ``stop`` or ``length``."""

    prompt: Prompt
    tokenizer: Tokenizer
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

    def push(self, token: int, logprob: float | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.tokenizer.eos_ids:
            self.end("end")
        else:
            self._extend(self._stream.push(token))

    def end(self, finish: str) -> None:
        """No more tokens come: what was held back was text after all."""
        self._extend(self._stream.flush())
        self.text += self.stops.flush()
        self.finish = self.finish or finish

    def _extend(self, text: str) -> None:
        of_prompt = min(self._prompt_left, len(text))
        self._prompt_left -= of_prompt
        self.text += self.stops.push(text[of_prompt:])
        if self.stops.stopped:
            self.finish = "stop"

    def as_json(self, logprobs: bool) -> dict[str, Any]:
        found = {"prompt": self.prompt.text, "text": self.text, "tokens": self.tokens, "finish_reason": self.finish}
        return found | ({"logprobs": self.logprobs} if logprobs else {})


Decode = Callable[..., Iterator[Any]]


def complete(
    decode: Decode,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    stop: Sequence[str],
    batch: int,
) -> Iterator[Sample]:
    """Continue every prompt, ``batch`` of them at a time; yields a sample whenever its text or ``finish`` may be new.

    ``decode`` is the decode loop, with everything settled but prompts and rows.
    """
    for first in range(0, len(prompts), batch):
        samples = [Sample(prompt, tokenizer, StopStrings(stop)) for prompt in prompts[first : first + batch]]
        ended: set[int] = set()
        rows = [sample.prompt.tokens for sample in samples]
        for step in decode(rows, max_new_tokens, first_row=first, ended=ended):
            for row, (sample, token, logprob) in enumerate(zip(samples, step.tokens, step.logprobs)):
                if token is not None:
                    sample.push(token, logprob)
                    if sample.finish:
                        ended.add(row)
                    yield sample
        for sample in samples:
            if sample.finish is None:
                sample.end("length")
                yield sample


def in_order(samples: Iterable[Sample]) -> Iterator[tuple[Sample, str]]:
    """(sample, text to print), one sample after the other; those that run at the same time wait for their turn.

    A sample's first text is its prompt. It is complete when its ``finish`` is set.
    """
    queue: list[Sample] = []
    printed = 0
    for sample in samples:
        if sample not in queue:
            queue.append(sample)
        while queue:
            head = queue[0]
            text = head.prompt.text + head.text
            yield head, text[printed:]
            printed = len(text)
            if head.finish is None:
                break
            queue.pop(0)
            printed = 0
