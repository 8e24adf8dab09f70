"""The topics by name: the class of their options, and the function from the options to a ``Report``."""

from collections.abc import Callable
from typing import Any

from model.cli import explain_out_of_memory

from . import (
    attention_maps,
    check,
    clocks,
    compare,
    decay,
    exercise,
    extrapolate,
    form_table,
    kv_cache,
    mistakes,
    page,
    rotation_examples,
    trace,
    word_order,
)
from .topic import Report

__all__ = ["TOPICS", "run"]

RUN: dict[str, tuple[type, Callable[[Any], Report]]] = {
    "order": (word_order.Order, word_order.run),
    "rotate": (rotation_examples.Rotate, rotation_examples.run_rotate),
    "relative": (rotation_examples.Relative, rotation_examples.run_relative),
    "clocks": (clocks.Clocks, clocks.run),
    "decay": (decay.Decay, decay.run),
    "forms": (form_table.Forms, form_table.run),
    "trace": (trace.Trace, trace.run),
    "cache": (kv_cache.Cache, kv_cache.run),
    "attention": (attention_maps.AttentionMaps, attention_maps.run),
    "extrapolate": (extrapolate.Extrapolate, extrapolate.run_extrapolate),
    "endless": (extrapolate.Endless, extrapolate.run_endless),
    "compare": (compare.Compare, compare.run),
    "exercise": (exercise.Exercise, exercise.run),
    "check": (check.Check, check.run),
    "mistakes": (mistakes.Mistakes, mistakes.run),
    "page": (page.Page, page.run),
}
TOPICS = {name: options for name, (options, _) in RUN.items()}


def run(topic: str, options: Any) -> Report:
    """The report of a topic; ``options`` is an instance of ``TOPICS[topic]``.

    Raises ValueError if an option is invalid or the memory is not enough.
    """
    with explain_out_of_memory(f"give smaller sizes to {topic}"):
        return RUN[topic][1](options)
