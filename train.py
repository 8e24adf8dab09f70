#!/usr/bin/env python3
"""Train a language model on your own text: python train.py [CONFIG.toml] --data my.txt

Settings come from the defaults, then the TOML file, then flags.
"""

import os
from pathlib import Path

from model.cli import Parser, add_flags, read_flags, run_script
from model.training.config import CLASSES

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "demo.toml"


def main() -> int:
    parser = Parser(prog="train.py", description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="(default: configs/demo.toml)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out_dir (default: the newest)")
    add_flags(parser, *CLASSES)
    said = parser.parse_args()
    flags = read_flags(said, *CLASSES)

    # Only now: the text room takes half a second to import, and PyTorch more than two.
    from model.training.setup import resolve
    from model.training.text import prepare_text

    plan = resolve(said.config, DEFAULT_CONFIG, flags, said.resume)
    # Under torchrun the first process prepares the text, and the others read what it has written.
    text = prepare_text(plan) if os.environ.get("RANK", "0") == "0" else None

    from model.training.run import run

    return run(plan, text)


if __name__ == "__main__":
    run_script(main, "train.py")
