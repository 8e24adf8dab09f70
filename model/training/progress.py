"""How far a run is, and who is told."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loop import Trainer


@dataclass
class Progress:
    """The state of a run that is neither weights nor optimizer. Batches and dropout follow from seed and step."""

    step: int = 0
    tokens: int = 0
    train_seconds: float = 0.0  # in training steps alone
    wall_seconds: float = 0.0  # with validation, samples and checkpoints
    val_loss: float | None = None
    best_val_loss: float | None = None
    best_step: int = 0


class Watcher:
    """Who is told how a run goes, and may end it. This one is silent; the terminal's is in console.py."""

    def after_step(self, trainer: "Trainer", figures: dict[str, float]) -> None:
        """Called in every process, after what the step leaves on disk is there."""

    def signal(self) -> int:
        """The number of the signal that asks for the end, or 0."""
        return 0
