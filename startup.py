"""What must happen before PyTorch is imported: each program imports this module first, and ends with ``run``.

libgomp, PyTorch's OpenMP library on Linux, waits by spinning. By default its threads spin for milliseconds, which
beside another busy process makes a token ten times slower. But threads that sleep wake up late. So they spin SPINS
times, a fifth of a millisecond, which lasts from one token to the next (benchmarks/README.md). Variables that the user
has set are kept.

Until ``run`` starts the work, Ctrl-C kills the process, because an interrupted import would print a traceback.
"""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

SPINS = "20000"

if not {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = SPINS
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(main: Callable[[], int | None], script: str) -> NoReturn:
    """Run ``main`` and exit with its code, or with a user's mistake in one line (``model.cli.run_script``)."""
    from model.cli import run_script  # not above, where Ctrl-C would still print a traceback

    run_script(main, script)
