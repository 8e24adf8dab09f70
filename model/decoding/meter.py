"""How fast it went, for prompts and for new tokens: the two have different limits, arithmetic and memory."""

import time
from collections.abc import Callable, Iterator
from typing import Any


class Meter:
    """Times the decode loop by itself, without what its caller does between steps.

    A first step reads the prompts and gives a token each; it counts for the prompts.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.prompt_tokens = self.new_tokens = 0
        self.prompt_seconds = self.new_seconds = 0.0

    def timed(self, decode: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def loop(prompts: list[list[int]], *args: Any, **kwargs: Any) -> Iterator[Any]:
            steps = decode(prompts, *args, **kwargs)
            reading = True
            while True:
                started = self.clock()
                step = next(steps, None)
                seconds = self.clock() - started
                if step is None:
                    return
                if reading:
                    self.prompt_tokens += sum(map(len, prompts))
                    self.prompt_seconds += seconds
                else:
                    self.new_tokens += sum(token is not None for token in step.tokens)
                    self.new_seconds += seconds
                reading = False
                yield step

        return loop

    def __str__(self) -> str:
        parts = [("prompt", self.prompt_tokens, self.prompt_seconds), ("new", self.new_tokens, self.new_seconds)]
        return "; ".join(f"{name}: {n} tokens, {s:.2f} s, {n / s:.0f} tokens/s" for name, n, s in parts if n and s)
