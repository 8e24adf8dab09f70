#!/usr/bin/env python3
"""Train a language model on your own text: python train.py [CONFIG.toml] --data my.txt

Settings come from the defaults, then the TOML file, then flags.
"""

import os
from pathlib import Path

import startup  # noqa: F401  before torch is loaded
from model.cli import Parser, add_flags, read_flags, run_script
from model.cli.machine import keep_freed_memory
from model.training.config import CLASSES
from model.training.distributed import torchrun_ranks
from model.training.prepared_text import prepare_text
from model.training.resolve import resolve
from model.training.run import run, show_plan

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "demo.toml"


def main() -> int:
    parser = Parser(prog="train.py", description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="(default: configs/demo.toml)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out_dir (default: the newest)")
    parser.add_argument("--plan", action="store_true", help="print what the run would take and come to, and stop")
    add_flags(parser, *CLASSES)
    flags = parser.parse_args()

    if flags.plan and flags.resume:
        raise ValueError("--plan is for a new run: leave --resume out")
    keep_freed_memory()
    ranks = torchrun_ranks(os.environ)
    plan = resolve(flags.config, DEFAULT_CONFIG, read_flags(flags, *CLASSES), flags.resume, ranks)
    # Under torchrun the first process prepares the text, and the others read what it has written.
    text = prepare_text(plan) if ranks.is_first else None
    if flags.plan:
        return show_plan(plan, text) if text else 0
    return run(plan, text)


if __name__ == "__main__":
    run_script(main, "train.py")
