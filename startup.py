"""Settings that must be made before PyTorch is imported: each program imports this module first.

Waiting threads of libgomp, PyTorch's OpenMP library on Linux, spin for milliseconds before they sleep. Next to another
busy process they take this time from the thread that they wait for, and the speed falls to a twentieth. But a sleeping
thread wakes up late, on a virtual machine by 0.1 ms, and the threads wait 80 times during a token. So the programs let
threads spin for about a millisecond, longer than any wait in a token, for 10 us while some cores are busy, and not at
all while all are. A compiled token of the 15M network on two cores, in ms, with an asterisk at the choice:

    spins                             100,000    10,000     1,000      none
    Ice Lake Xeon                       4.9*       8.2
    Zen 4                               1.4*       1.4       1.6       3.7
    Zen 4, beside one endless loop       50         12       4.8*      2.9
    Zen 4, beside two                                                  2.9*

Beside one loop threads that sleep would be faster, but when the loop ends, they would be more than twice as slow.
Variables that the user has set are kept.

Only how threads wait depends on the load of the machine. The number of threads does not, because it changes the last
bits of a product, and the same command and seed must always give the same text and the same weights.

Until ``run_script`` starts the work, Ctrl-C ends the process at once; an interrupted import would print a traceback.
"""

import os
import signal
import sys
import time
from pathlib import Path

USER_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # if any is set, nothing is changed
WHEN_QUIET, WHEN_SHARED = {"GOMP_SPINCOUNT": "100000"}, {"GOMP_SPINCOUNT": "1000"}
WHEN_BUSY = {"OMP_WAIT_POLICY": "PASSIVE"}


def count_running(readings: int = 5) -> int:
    """The number of other threads that run: the smallest of several readings, so that short bursts do not count.

    0 if the system does not report it.
    """
    smallest = sys.maxsize
    try:
        for reading in range(readings):
            time.sleep(0.01 if reading else 0)
            running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
            smallest = min(smallest, int(running) - 1)
            if smallest <= 0:
                break
    except OSError:
        return 0
    return smallest


def waiting(running: int) -> dict[str, str]:
    """The variables that set how threads wait while so many other threads run."""
    if running == 0:
        return WHEN_QUIET
    return WHEN_SHARED if running < (os.cpu_count() or 1) else WHEN_BUSY


def choose_waiting() -> None:
    """Set how waiting threads behave, unless the user has set it."""
    if not any(name in os.environ for name in USER_SETTINGS):
        os.environ |= waiting(count_running())


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
choose_waiting()
