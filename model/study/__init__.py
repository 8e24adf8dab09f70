"""Taking RoPE apart: one file a topic, each with ``run(options) -> Report``, on the library's own functions.

Read ``report.py`` for what a topic gives back and ``options.py`` for what it lets one choose; study.py prints both.
"""

from collections.abc import Callable
from typing import Any

from . import (
    attention_maps,
    compare,
    decay,
    endless,
    extrapolate,
    form_table,
    kv_cache,
    mistakes,
    rotation,
    trace,
)
from .options import TOPICS
from .report import Report

__all__ = ["TOPICS", "run"]

RUN: dict[str, Callable[[Any], Report]] = {
    "rotate": rotation.run_rotate,
    "trace": trace.run,
    "forms": form_table.run,
    "relative": rotation.run_relative,
    "decay": decay.run,
    "cache": kv_cache.run,
    "attention": attention_maps.run,
    "extrapolate": extrapolate.run,
    "endless": endless.run,
    "compare": compare.run,
    "mistakes": mistakes.run,
}


def run(topic: str, options: Any) -> Report:
    """The report of a topic for an instance of ``TOPICS[topic]``. Raises ValueError for what cannot be shown."""
    try:
        return RUN[topic](options)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise ValueError(f"{topic} with these settings needs more memory than is free: give smaller sizes") from None
