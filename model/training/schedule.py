"""How the learning rate goes over a run."""

import math

from .config import TrainArgs


def rate(args: TrainArgs, progress: float) -> float:
    """The share of the peak rate at ``progress`` (0 to 1): up over ``warmup``, flat until ``hold``, then down.

    The first step already moves, and the floor ``min_lr`` is reached at the end of the run.
    """
    if progress < args.warmup:
        return max(progress / args.warmup, 0.05)
    start = max(args.hold, args.warmup)
    left = 1 - min(max(progress - start, 0) / (1 - start), 1)
    if args.schedule == "cosine":
        left = 0.5 * (1 - math.cos(math.pi * left))
    return args.min_lr + (1 - args.min_lr) * left
