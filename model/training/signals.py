"""Ctrl-C and SIGTERM while a run trains: the step ends, the state is saved, and the run can be resumed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .trainer import Trainer


@contextmanager
def stopping_on_signals(trainer: Trainer) -> Iterator[None]:
    """Within it, Ctrl-C and SIGTERM end the run after a step.

    A second Ctrl-C is not caught, for those who cannot wait for the step; but torchrun sends each one twice.
    """
    handlers: dict[int, Any] = {}  # those from before

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
