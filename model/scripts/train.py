"""Train a language model: settings become a plan, and the plan a run."""

import os
from pathlib import Path

from ..cli import Parser, add_flags, read_flags, script_name
from ..cli.machine import keep_freed_memory
from ..training.choice import show_plan
from ..training.config import CLASSES
from ..training.distributed import torchrun_ranks
from ..training.prepared_text import prepare_text
from ..training.resolve import resolve
from ..training.run import run

PACKAGE = Path(__file__).parent.parent
CONFIGS = PACKAGE / "configs"  # where the package is installed
if not CONFIGS.is_dir():
    CONFIGS = PACKAGE.parent / "configs"  # in the repository


def main() -> int:
    description = "Train a language model on your own text. Settings come from the defaults, the TOML file, then flags."
    parser = Parser(prog=script_name("train"), description=description)
    files = f"a file, or one of {shipped()} (default: demo.toml)"
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help=files)
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out_dir (default: the newest)")
    parser.add_argument("--plan", action="store_true", help="print what the run would take and come to, and stop")
    add_flags(parser, *CLASSES)
    flags = parser.parse_args()

    if flags.plan and flags.resume:
        raise ValueError("--plan is for a new run: leave --resume out")
    keep_freed_memory()
    ranks = torchrun_ranks(os.environ)
    plan = resolve(find_config(flags.config), CONFIGS / "demo.toml", read_flags(flags, *CLASSES), flags.resume, ranks)
    # Under torchrun the first process prepares the text, and the others read what it has written.
    text = prepare_text(plan) if ranks.is_first else None
    if flags.plan:
        return show_plan(plan, text) if text else 0
    return run(plan, text)


def shipped() -> str:
    return ", ".join(path.name for path in sorted(CONFIGS.glob("*.toml")))


def find_config(named: Path | None) -> Path | None:
    """The file, or else the shipped config that is called ``demo.toml`` or ``configs/demo.toml``.

    Raises ValueError if there is neither.
    """
    if named is None or named.exists():
        return named
    found = CONFIGS / named.name
    if named.parent in (Path(), Path("configs")) and found.is_file():
        return found
    raise ValueError(f"{named} does not exist: give a TOML file, or one of {shipped()} from {CONFIGS}")
