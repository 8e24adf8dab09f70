"""Settings that must be made before PyTorch is imported: each program imports this module first.

Waiting threads of libgomp, PyTorch's OpenMP library on Linux, spin for milliseconds before they sleep. Next to another
busy process they take this time from the thread that they wait for, and the speed falls to a tenth. But a sleeping
thread wakes up late, on a virtual machine by 0.1 ms, and the threads wait 80 times during a token. 1,000 spins, about
10 us, are the compromise. A float32 token of the 15M network on two cores, in ms:

    spins                                  100,000    10,000     3,000     1,000      none
    compiled, Zen 4                            1.4       1.4                 1.6       3.7
    compiled, Zen 4, beside one loop            50        12       8.7       4.8       2.9
    compiled, Xeon with AMX                    1.7       1.7                 1.9       2.1
    compiled, Xeon with AMX, beside one loop    16        17                 4.2       2.8
    eager, Zen 4                               4.4       4.5       4.8       5.9       8.4
    eager, Zen 4, beside one loop               15        12        14       9.1       6.2
    eager, Zen 4, beside two loops              10        11        14        10       8.1

So a machine without other work loses a tenth of its speed, and up to a quarter in eager mode, where Python takes longer
than the spins between two products. GOMP_SPINCOUNT=100000 gives it back. Variables that the user
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
