"""The topics of study.py: one file each, with its options and a function from the options to a ``Report``.

topic.py               shared by all topics: tables, pictures, option checks, opening a trained model and its text
word_order.py          order: attention without positions ignores word order
rotation_examples.py   rotate and relative: five vectors rotated; one score at many positions
arrows.py              pairs drawn as arrows and arcs
clocks.py              the frequencies of a head as clocks
decay.py               scores over distance
form_table.py          the ways to write RoPE, side by side
trace.py               one attention call, line by line
kv_cache.py            cache: the slots that each forward call writes and reads
attention_maps.py      the attention weights of a trained model, with and without rotation
extrapolate.py         a trained model past its trained length: scaled, in windows, with a cache that evicts old tokens
compare.py             position encodings trained side by side (scheme_training.py trains one of them)
mistakes.py            common mistakes about RoPE, each with a measurement
exercise.py            files with docstrings and no bodies, for the reader to complete; check/ judges them
page/                  one HTML file that runs the reader's model
"""

from collections.abc import Callable
from typing import Any

from ..cli import explain_out_of_memory
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
