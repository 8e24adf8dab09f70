"""What must be set before PyTorch is loaded: scripts that compute import this first.

Threads of libgomp (PyTorch's OpenMP on Linux) that wait for each other spin for milliseconds before they sleep. Beside
another busy process that time is taken from the very thread they wait for, and speed falls to a twentieth. Spinning for
about a tenth of a millisecond bridges the gap between two products and no more; where the machine is busy already, the
threads sleep at once. The user's own settings win.

Until the script's work begins (``run_script``), Ctrl-C ends the process at once: no traceback from within an import.
"""

import os
import signal
import sys
from pathlib import Path

is_script = Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent  # and not a test that imports one
if is_script and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup
    signal.signal(signal.SIGINT, signal.SIG_DFL)

USER_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # any of them: the user has decided


def machine_is_busy() -> bool:
    """Whether, beside this process, as many want to run as there are cores. False where the system does not tell."""
    try:
        running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
        return int(running) - 1 >= len(os.sched_getaffinity(0))
    except (OSError, ValueError, IndexError, AttributeError):
        return False


BUSY = machine_is_busy()

if not any(name in os.environ for name in USER_SETTINGS):
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE"} if BUSY else {"GOMP_SPINCOUNT": "10000"}  # benchmarks/busy.py compares
