"""Settings that must be made before PyTorch is imported: each program imports this module first.

Waiting threads of libgomp, PyTorch's OpenMP library on Linux, spin for milliseconds before they sleep. Next to another
busy process they take this time from the thread that they wait for, and the speed falls to a twentieth. But a sleeping
thread wakes up late, on a virtual machine by 0.1 ms, and the threads wait 80 times during a token. So the programs let
threads spin for about a millisecond, longer than any wait in a token, and on a busy machine let them sleep at once.
On two cores of an Ice Lake Xeon, a compiled token of the 15M network takes 4.9 ms, and 8.2 with 10,000 spins.
Variables that the user has set are kept. benchmarks/busy.py measures both.

Only how threads wait depends on the load of the machine. The number of threads does not, because it changes the last
bits of a product, and the same command and seed must always give the same text and the same weights.

Until ``run_script`` starts the work, Ctrl-C ends the process at once; an interrupted import would print a traceback.
"""

import os
import signal
import time
from pathlib import Path

USER_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # if any is set, nothing is changed
WHEN_QUIET, WHEN_BUSY = {"GOMP_SPINCOUNT": "100000"}, {"OMP_WAIT_POLICY": "PASSIVE"}


def machine_is_busy(readings: int = 5) -> bool:
    """Whether other threads occupy all cores of the machine, in several readings, so that short bursts do not count.

    False if the system does not report the load.
    """
    try:
        for reading in range(readings):
            time.sleep(0.01 if reading else 0)
            running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
            if int(running) - 1 < (os.cpu_count() or 1):
                return False
    except OSError:
        return False
    return True


def choose_waiting() -> None:
    """Set how waiting threads behave, unless the user has set it."""
    if not any(name in os.environ for name in USER_SETTINGS):
        os.environ |= WHEN_BUSY if machine_is_busy() else WHEN_QUIET


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
choose_waiting()
