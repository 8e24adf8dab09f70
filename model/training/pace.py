"""How long a run will still take, estimated from the steps it has taken."""

import math

from .config import TrainArgs

FEWEST_STEPS = 3  # measured ones, before anything is estimated
RELIABLE_AFTER = 20  # measured steps, or seconds of them, after which the estimate hardly changes any more


class Pace:
    """Steps and seconds since the first step of this session, which may have been slow: it compiles."""

    def __init__(self, args: TrainArgs) -> None:
        self.args = args
        self.first: tuple[int, float] | None = None  # its number, and the run's seconds after it
        self.step = 0
        self.run_seconds = 0.0
        self.steps = 0
        self.seconds = 0.0

    def update(self, step: int, run_seconds: float) -> None:
        """After a step: its number, and how long the run has taken with it."""
        if self.first is None:
            self.first = (step, run_seconds)
        self.step = step
        self.run_seconds = run_seconds
        self.steps = step - self.first[0]
        self.seconds = run_seconds - self.first[1]

    @property
    def is_reliable(self) -> bool:
        return self.steps >= FEWEST_STEPS and (self.steps >= RELIABLE_AFTER or self.seconds >= RELIABLE_AFTER)

    @property
    def seconds_left(self) -> float:
        """Until the steps or the minutes are used up; infinity where it is not known yet."""
        limit = self.args.step_limit
        left = math.inf
        if self.steps >= FEWEST_STEPS and limit < math.inf:
            left = max(limit - self.step, 0) * self.seconds / self.steps
        if self.args.minutes is None:
            return left
        if limit < math.inf and left == math.inf:
            return math.inf  # the steps may end it long before the minutes do
        return min(left, max(60 * self.args.minutes - self.run_seconds, 0))

    @property
    def total_steps(self) -> float:
        """How many steps the run will have taken at its end."""
        left = self.seconds_left * self.steps / max(self.seconds, 1e-9)
        return min(self.args.step_limit, self.step + left)
