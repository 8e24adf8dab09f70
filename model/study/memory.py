"""Ask before allocating: a length that does not fit ends in one line, not in a killed process."""

import os
from pathlib import Path


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
