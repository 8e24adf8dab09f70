"""Environment variables and handlers that must be set before PyTorch is imported.

Python runs the package's ``__init__`` before any of its modules, and ``__init__`` imports PyTorch. Therefore
``__init__`` imports this module before anything else. The module acts only in a process that was started by the name
of one of the project's scripts, because a library must not change the program that imports it. ``python -m`` does not
count, because it hides the name until the module runs.

Waiting threads of libgomp, PyTorch's OpenMP library on Linux, spin for milliseconds before they sleep. Next to another
busy process they take this time from the thread that they wait for, and the speed falls to a twentieth. So this module
lets them spin for only 0.1 ms, the time between two matrix products, and on a busy machine lets them sleep at once.
Variables that the user has set are kept.

Only how threads wait depends on the load of the machine. The number of threads does not, because it changes the last
bits of a product, and the same command and seed must always give the same text and the same weights.

Until ``run_script`` starts the work, Ctrl-C ends the process at once; an interrupted import would print a traceback.
Garbage collection is off until then: the objects that the import of PyTorch creates are never freed, and examining
them again and again took a fifth of the time.
"""

import gc
import os
import signal
import sys
import time
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SCRIPTS = ("train.py", "generate.py", "evaluate.py", "convert.py", "study.py")  # beside the package, in the repository
COMMANDS = ("ropewalk", "ropewalk.exe")  # if the package is installed
USER_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # if any is set, nothing is changed


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
    except (OSError, ValueError, IndexError, AttributeError):
        return False
    return True


WHEN_QUIET, WHEN_BUSY = {"GOMP_SPINCOUNT": "10000"}, {"OMP_WAIT_POLICY": "PASSIVE"}  # benchmarks/busy.py measures both


def is_project_script(started: str) -> bool:
    """Whether ``started`` (``sys.argv[0]``) is a script of this project."""
    path = Path(started)
    if path.name in SCRIPTS:
        return path.resolve().parent == PACKAGE.parent
    return path.name.lower() in COMMANDS


def choose_waiting() -> bool:
    """Set how waiting threads behave, unless the user has set it. Returns whether the machine is busy."""
    busy = machine_is_busy()
    if not any(name in os.environ for name in USER_SETTINGS):
        os.environ |= WHEN_BUSY if busy else WHEN_QUIET
    return busy


BUSY = False  # whether the machine was busy when the script started
if is_project_script(sys.argv[0]):
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    BUSY = choose_waiting()
