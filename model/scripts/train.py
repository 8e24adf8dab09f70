"""Train a language model: settings become a plan, and the plan a run."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from ..cli import Parser, Settings, add_flags, local_path, read_flags, run_script, script_name
from ..cli.machine import keep_freed_memory
from ..text.sources import DEFAULT
from ..training.choice import show_plan
from ..training.config import CLASSES, CONFIG_FILE
from ..training.distributed import torchrun_ranks
from ..training.prepared_text import prepare_text
from ..training.resolve import resolve
from ..training.run import run
from ..weights.checkpoint import CONFIGURATIONS, is_missing

PACKAGE = Path(__file__).parent.parent
CONFIGS = PACKAGE / "configs"  # where the package is installed
if not CONFIGS.is_dir():
    CONFIGS = PACKAGE.parent / "configs"  # in the repository


def main() -> int:
    description = "Train a language model on your own text. Settings come from the defaults, the TOML file, then flags."
    parser = Parser(text_flag="--data", prog=script_name("train"), description=description)
    files = f"a TOML file, or one of {shipped()} (default: demo.toml); text, as with --data; with --resume a run"
    parser.add_argument("named", nargs="*", metavar="CONFIG.toml|TEXT|RUN", help=files)
    parser.add_argument("--resume", action="store_true", help="go on with RUN or --out_dir (default: the newest)")
    parser.add_argument("--plan", action="store_true", help="print what the run would take and come to, and stop")
    add_flags(parser, *CLASSES)
    flags = parser.parse_args()

    if flags.plan and flags.resume:
        raise ValueError("--plan is for a new run: leave --resume out")
    config, settings = sort_named(flags.named, read_flags(flags, *CLASSES), flags.resume)
    keep_freed_memory()
    ranks = torchrun_ranks(os.environ)
    plan = resolve(config, CONFIGS / "demo.toml", settings, flags.resume, ranks)
    # Under torchrun the first process prepares the text, and the others read what it has written.
    text = prepare_text(plan) if ranks.is_first else None
    if flags.plan:
        return show_plan(plan, text) if text else 0
    return run(plan, text)


def shipped() -> str:
    return ", ".join(path.name for path in sorted(CONFIGS.glob("*.toml")))


def sort_named(named: Sequence[str], settings: Settings, resume: bool) -> tuple[Path | None, Settings]:
    """The configuration among the arguments without a flag, and the settings with the text or the run among them.

    A file is a configuration if it ends in ``.toml``, and text otherwise. Raises ValueError for what is neither, and
    for what is named twice.
    """
    configs, texts = [], []
    for name in named:
        if resume and local_path(name).is_dir():
            settings = put(settings, "out_dir", local_path(name), name)
        elif config := find_config(name):
            configs.append(config)
        else:
            check_text(name)
            texts.append(name)
    if len(configs) > 1:
        raise ValueError(f"{configs[0]} and {configs[1]} are two configurations: give one")
    if texts:
        settings = put(settings, "data", tuple(texts), texts[0])
    return next(iter(configs), None), settings


def put(settings: Settings, name: str, value: object, argument: str) -> Settings:
    if name in settings:
        raise ValueError(f"{name} is given twice, as {argument} and with --{name}: give all of it with --{name}")
    return settings | {name: value}


def find_config(name: str) -> Path | None:
    """The TOML file, or the shipped config that is called ``demo.toml``, ``demo`` or ``configs/demo.toml``; or None.

    Raises ValueError if it ends in ``.toml`` and is neither.
    """
    path = local_path(name)
    if path.suffix == ".toml" and path.exists():
        return path
    shipped_file = CONFIGS / f"{path.name.removesuffix('.toml')}.toml"
    if not path.exists() and path.parent in (Path(), Path("configs")) and shipped_file.is_file():
        return shipped_file
    if path.suffix == ".toml":
        raise ValueError(f"{name} does not exist: give a TOML file, or one of {shipped()} from {CONFIGS}")
    return None


def check_text(name: str) -> None:
    """Raise ValueError for a model, whose files are no text to train on, and for what does not exist."""
    path = local_path(os.path.expanduser(name))
    if any((path / file).is_file() for file in (CONFIG_FILE, *CONFIGURATIONS)):
        raise ValueError(
            f"{name} is a model: --resume {name} goes on with its run, --init_from {name} fine-tunes it, and --data "
            f"{name} takes the files in it as text"
        )
    is_path = name not in (DEFAULT, "-") and "://" not in name and not glob.has_magic(name)
    if is_path and is_missing(path):
        raise ValueError(f"{name} does not exist: give text (--help says which kinds), or one of {shipped()}")


if __name__ == "__main__":
    run_script(main, script_name("train"))
