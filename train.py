#!/usr/bin/env python3
"""Train a language model on your own text: python train.py [CONFIG.toml] --data my.txt

Flags override the TOML file, which overrides the defaults. The TOML file is configs/demo.toml if none is given: it sets
a text, which --data replaces, and 2.5 minutes of training.
"""

from model.cli import run_script
from model.scripts.train import main

if __name__ == "__main__":
    run_script(main, "train.py")
