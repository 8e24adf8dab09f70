#!/usr/bin/env python3
"""Explain RoPE: `python study.py TOPIC` prints a table; most topics also draw a picture with `--plot FILE.png`."""

from model.cli import run_script
from model.scripts.study import main

if __name__ == "__main__":
    run_script(main, "study.py")
