"""Explain RoPE: `python -m study TOPIC` prints a table; most topics also draw a picture with `--plot FILE.png`."""

import startup  # noqa: F401, I001  must come before torch

import sys

from .topics import overview

if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
    print(overview())
else:
    from .program import start  # not above, because it imports PyTorch, which takes seconds

    start()
