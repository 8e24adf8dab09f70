"""Taking RoPE apart: one small file a topic, each with ``run(options) -> Report``, on the library's own functions.

Read ``report.py`` for what a topic gives back and ``options.py`` for what it lets one choose; study.py prints both.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .options import TOPICS

if TYPE_CHECKING:
    from .report import Report

__all__ = ["TOPICS", "run"]


def run(topic: str, options: Any) -> "Report":
    """The report of a topic for an instance of ``TOPICS[topic]``. Raises ValueError for what cannot be shown."""
    return importlib.import_module(f".{topic}", __name__).run(options)
