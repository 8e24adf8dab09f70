"""What must happen before PyTorch is imported: each program imports this module first, and ends with ``run``.

libgomp, PyTorch's OpenMP library on Linux, waits by spinning, which beside another busy process makes a token ten times
slower. But threads that sleep wake up late. So they spin 20,000 times, which lasts from one token to the next, and
beside busy processes 300 times (benchmarks/README.md). The results are the same, and variables that the user has set
are kept.

Until ``run`` starts the work, Ctrl-C kills the process, because an interrupted import would print a traceback.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def spins(stat: str, cores: int) -> int:
    """How often a waiting thread spins: fewer times if Linux's ``/proc/stat`` shows a busy process for every two cores.

    ``procs_running`` counts the processes that have a core or wait for one, and this is one of them. Some containers
    leave it out.
    """
    counts = stat.partition("procs_running ")[2].split()
    running = int(counts[0]) if counts else 1
    return 300 if 2 * (running - 1) >= cores else 20_000


if not {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    with suppress(OSError), open("/proc/stat", encoding="ascii") as file:  # only Linux has it
        os.environ["GOMP_SPINCOUNT"] = str(spins(file.read(), os.cpu_count() or 1))
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(main: Callable[[], int | None], script: str) -> NoReturn:
    """Run ``main`` and exit with its code, or with a user's mistake in one line (``model.cli.run_script``)."""
    from model.cli import run_script  # not above, where Ctrl-C would still print a traceback

    run_script(main, script)
