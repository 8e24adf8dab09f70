"""Settings that must be made before PyTorch is imported: each program imports this module first.

libgomp, PyTorch's OpenMP library on Linux, waits by spinning, which beside another busy process makes a token ten times
slower. 3,000 spins are the compromise between this and threads that wake up late (benchmarks/README.md).
Variables that the user has set are kept.

Until ``run_script`` starts the work, Ctrl-C kills the process, because an interrupted import would print a traceback.
"""

import os
import signal

if not {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "3000"
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)
