"""What topics are given, checked before anything is computed: numbers, memory, the trained model and its text."""

import math
import os
from pathlib import Path
from typing import Any

from ..positions import NOTE, load_study, read_note
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from ..weights import load_model, load_tokenizer
from ..weights.checkpoint import newest_run


def check_at_least(least: int, options: Any, *names: str) -> None:
    """Raises ValueError for the first of these options that is below ``least``."""
    for name in names:
        if getattr(options, name) < least:
            raise ValueError(f"{name} is {getattr(options, name)}: give at least {least}")


def check_even(options: Any, name: str) -> None:
    if getattr(options, name) < 2 or getattr(options, name) % 2:
        raise ValueError(f"{name} is {getattr(options, name)}: give an even number above 0, because RoPE rotates pairs")


def check_theta(theta: float) -> None:
    """The base of the frequencies: Raises ValueError for one whose angles would be NaN or meaningless."""
    if not (math.isfinite(theta) and 1 <= theta <= 1e30):
        raise ValueError(f"theta is {theta:g}: give a number from 1 to 1e30, such as 10000")


def available_bytes() -> int | None:
    """Memory that can be had without swapping, None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def check_memory(needed: int, what: str) -> None:
    """Raises ValueError when ``needed`` bytes are more than there are."""
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(f"{what} needs about {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are free: give less")


def open_model(path: Path | None) -> tuple[Transformer, Tokenizer, str]:
    """The model, its tokenizer, and its scheme. Raises ValueError for what is no model."""
    path = path or newest_run()
    if (path / NOTE).exists():
        return load_study(path).eval(), load_tokenizer(path), read_note(path)["scheme"]
    return load_model(path).float().eval(), load_tokenizer(path), "rope"
