"""Estimate the remaining time of a run from the steps it has taken."""

import math

from .config import TrainArgs

MIN_MEASURED_STEPS = 3  # steps before anything is estimated
# The estimate hardly changes after this many measured steps or seconds, whichever is reached first.
RELIABLE_STEPS = 20
RELIABLE_SECONDS = 20.0


class Pace:
    """Counts steps and seconds after the first call of ``update`` in this session.

    Usually the first call follows the first step, which may compile and is therefore not counted. If a fine-tuning run
    is validated before its first step, the first call follows that validation, and all steps are counted.
    """

    def __init__(self, args: TrainArgs) -> None:
        self.args = args
        self.first: tuple[int, float] | None = None  # the first reported step, and the seconds taken until then
        self.step = 0
        self.run_seconds = 0.0
        self.measured_steps = 0
        self.measured_seconds = 0.0

    def update(self, step: int, run_seconds: float) -> None:
        """Record a step: its number, and the seconds that the run has taken so far."""
        if self.first is None:
            self.first = (step, run_seconds)
        self.step = step
        self.run_seconds = run_seconds
        self.measured_steps = step - self.first[0]
        self.measured_seconds = run_seconds - self.first[1]

    @property
    def is_reliable(self) -> bool:
        if self.measured_steps < MIN_MEASURED_STEPS:
            return False
        return self.measured_steps >= RELIABLE_STEPS or self.measured_seconds >= RELIABLE_SECONDS

    @property
    def seconds_left(self) -> float:
        """Seconds until the steps or the minutes are used up; infinity if it is too early to tell."""
        max_steps = self.args.step_limit
        by_steps = math.inf
        if self.measured_steps >= MIN_MEASURED_STEPS and max_steps < math.inf:
            by_steps = max(max_steps - self.step, 0) * self.measured_seconds / self.measured_steps
        if self.args.minutes is None:
            return by_steps
        if max_steps < math.inf and by_steps == math.inf:
            return math.inf  # the steps may be used up long before the minutes are
        return min(by_steps, max(60 * self.args.minutes - self.run_seconds, 0))

    @property
    def total_steps(self) -> float:
        """Estimated number of steps at the end of the run."""
        steps_left = self.seconds_left * self.measured_steps / max(self.measured_seconds, 1e-9)
        return min(self.args.step_limit, self.step + steps_left)
