"""Stop a run on Ctrl-C or SIGTERM: it finishes the current step and saves its state, so that it can be resumed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .trainer import Trainer


@contextmanager
def stopping_on_signals(trainer: Trainer) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the run after the current step.

    In a single process, the same signal a second time interrupts even the step. If there are several processes, it has
    no effect, because all must stop after the same step.
    """
    handlers: dict[int, Any] = {}  # the previous handlers

    def stop_after_step(number: int, frame: FrameType | None) -> None:
        trainer.stop_signal = number
        if trainer.ranks.world_size == 1:
            signal.signal(number, handlers[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, stop_after_step)
    try:
        yield
    finally:
        for caught, handler in handlers.items():
            signal.signal(caught, handler)
