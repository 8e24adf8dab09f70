"""Taking RoPE apart: one file a topic, each with ``run(options) -> Report``, on the library's own functions.

report.py              what a topic gives back: tables, and a picture
options.py             what it lets one choose; study.py prints both
rotation_examples.py   rotate and relative: five vectors rotated; one score at many places
decay.py               scores over distance
form_table.py          every form in which RoPE is written, side by side
trace.py               one attention call, line by line
kv_cache.py            what each forward call writes and reads
inputs.py              the models and texts of the topics below
attention_maps.py      what a trained model attends to, with and without rotation
extrapolate.py         a trained model past its trained length
compare.py             position encodings trained side by side (scheme_training.py: one of these trainings)
mistakes.py            common mistakes about RoPE, each with its number
exercise.py            files to write RoPE into; check/ judges them
page/                  one HTML file that runs the reader's own model
"""

from collections.abc import Callable
from typing import Any

from . import (
    attention_maps,
    check,
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
)
from .options import TOPICS
from .report import Report

__all__ = ["TOPICS", "run"]

RUN: dict[str, Callable[[Any], Any]] = {
    "rotate": rotation_examples.run_rotate,
    "trace": trace.run,
    "forms": form_table.run,
    "relative": rotation_examples.run_relative,
    "decay": decay.run,
    "cache": kv_cache.run,
    "attention": attention_maps.run,
    "extrapolate": extrapolate.run,
    "compare": compare.run,
    "mistakes": mistakes.run,
    "exercise": exercise.run,
    "check": check.run,
    "page": page.run,
}


def run(topic: str, options: Any) -> Report:
    """The report of a topic for an instance of ``TOPICS[topic]``. Raises ValueError for what cannot be shown."""
    try:
        return RUN[topic](options)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise ValueError(f"{topic} with these settings needs more memory than is free: give smaller sizes") from None
