"""Settings that must be made before PyTorch is imported: each program imports this module first.

Waiting threads of libgomp, PyTorch's OpenMP library on Linux, spin for milliseconds before they sleep. Next to another
busy process they take this time from the thread that they wait for, and the speed falls to a tenth. But a sleeping
thread wakes up late, on a virtual machine by 0.1 ms, and the threads wait 80 times during a token. 1,000 spins, about
10 us, are the compromise. A compiled float32 token of the 15M network on two cores, in ms:

    spins                                  100,000    10,000     1,000      none
    Zen 4                                      1.4       1.4       1.6       3.7
    Zen 4, beside one endless loop              50        12       4.8       2.9
    Xeon with AMX                              1.7       1.7       1.9       2.1
    Xeon with AMX, beside one loop              16        17       4.2       2.8

So a machine without other work loses a tenth of its speed; GOMP_SPINCOUNT=100000 gives it back. Variables that the user
has set are kept. Only how threads wait is set here. Their number is not, because it changes the last bits of a product,
and the same command and seed must always give the same text and the same weights.

Until ``run_script`` starts the work, Ctrl-C ends the process at once; an interrupted import would print a traceback.
"""

import os
import signal

if not {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a background job ignores SIGINT
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
