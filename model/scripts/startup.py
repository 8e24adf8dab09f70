"""What must be set before PyTorch is loaded. The package's ``__init__`` imports this first.

Python runs a package's ``__init__``, which loads PyTorch, before any other module of the package, so nothing in a
script itself could come earlier. This module acts only in a process that runs one of the project's own scripts. In any
other it does nothing, because a library must not decide for the program that imports it.

Threads of libgomp (PyTorch's OpenMP on Linux) that wait for each other spin for milliseconds before they sleep. Beside
another busy process that time is taken from the very thread they wait for, and speed falls to a twentieth. Spinning for
about a tenth of a millisecond bridges the gap between two products and no more; where the machine is busy already, the
threads sleep at once. The user's own settings win.

Only this is chosen by what else runs. The number of threads is not: with it the sums of a product change in their last
bits, and the same command and seed must give the same text and the same weights whatever the machine does meanwhile.

Until the script's work begins (``run_script``), Ctrl-C ends the process at once: no traceback from within an import.
Nor is garbage collected until then: what PyTorch creates as it is imported stays, and looking through all of it again
and again took a fifth of the time.
"""

import gc
import os
import signal
import sys
import time
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SCRIPTS = ("train.py", "generate.py", "evaluate.py", "convert.py", "study.py")  # beside the package, in the repository
COMMANDS = ("ropewalk", "ropewalk.exe")  # where it is installed
USER_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # any of them: the user has decided


def machine_is_busy(readings: int = 5) -> bool:
    """Whether, beside this process, as many want to run as there are cores; several times, for a moment's work is none.

    False where the system does not tell.
    """
    try:
        for reading in range(readings):
            time.sleep(0.01 if reading else 0)
            running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
            if int(running) - 1 < len(os.sched_getaffinity(0)):
                return False
    except (OSError, ValueError, IndexError, AttributeError):
        return False
    return True


WHEN_QUIET, WHEN_BUSY = {"GOMP_SPINCOUNT": "10000"}, {"OMP_WAIT_POLICY": "PASSIVE"}  # benchmarks/busy.py compares


def is_own_script(started: str) -> bool:
    """Whether ``started``, the program that this process runs (``sys.argv[0]``), is a script of this project."""
    path = Path(started)
    if path.name in SCRIPTS:
        return path.resolve().parent == PACKAGE.parent
    return path.name.lower() in COMMANDS


def choose_waiting() -> bool:
    """Set how threads wait for each other, unless the user has. Returns whether the machine is busy."""
    busy = machine_is_busy()
    if not any(name in os.environ for name in USER_SETTINGS):
        os.environ |= WHEN_BUSY if busy else WHEN_QUIET
    return busy


BUSY = False  # whether the machine was, when a script started
if is_own_script(sys.argv[0]):
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    BUSY = choose_waiting()
