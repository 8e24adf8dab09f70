"""Where ``train.py`` puts its runs, and which one is meant when none is named."""

from pathlib import Path

RUNS = Path("runs")


def newest_run(holding: str = "model.safetensors") -> Path:
    """The run below ``runs/`` whose file ``holding`` was written last. Raises ValueError when there is none."""
    found = sorted(RUNS.glob(f"*/{holding}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(f"there is no run in {RUNS}/ yet: start one with `python train.py`, or name a directory")
    return found[-1].parent
