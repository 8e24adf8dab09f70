"""What must be set before PyTorch is loaded: scripts that compute import this first.

Threads of libgomp (PyTorch's OpenMP on Linux) that wait for each other spin for milliseconds before they sleep. Beside
another busy process that time is taken from the very thread they wait for, and speed falls to a twentieth. Spinning for
about a tenth of a millisecond bridges the gaps between two products, and no more. The user's own settings win.
"""

import os

USER_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # any of them: the user has decided

if not any(name in os.environ for name in USER_SETTINGS):
    os.environ["GOMP_SPINCOUNT"] = "10000"  # benchmarks/busy.py compares
