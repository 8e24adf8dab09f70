#!/usr/bin/env python3
"""Train a language model on your own text: python train.py [CONFIG.toml] --data my.txt

Flags override the TOML file (without one: configs/demo.toml, 2.5 minutes), which overrides the defaults.
"""

from model.cli import run_script
from model.scripts.train import main

if __name__ == "__main__":
    run_script(main, "train.py")
