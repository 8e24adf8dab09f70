#!/usr/bin/env python3
"""Train a language model on your own text: python train.py [CONFIG.toml] --data my.txt

Flags override the TOML file, which overrides the defaults. Without a text, train the demo, configs/demo.toml. With a
text and no config, train for 2.5 minutes, or for --minutes, and choose the model that suits the text and the machine.
"""

import startup  # noqa: F401, I001  must come before torch

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from model.cli import Parser, Settings, add_flags, note_if_slow, quantity, read_flags, run_script
from model.cli.machine import keep_freed_memory
from model.text.sources import PYTHON_DOCS
from model.training.choice import choose, plan_text
from model.training.config import CONFIG_FILE, SETTINGS_CLASSES
from model.training.console import Console
from model.training.distributed import local_device, processes
from model.training.prepared_text import prepare_text
from model.training.run_directory import run_directory
from model.training.settings import changes, resolve
from model.training.trainer import Trainer, initial_model
from model.weights.checkpoint import MODEL_CONFIGS, is_missing

CONFIG_DIR = Path(__file__).parent / "configs"


def main() -> int:
    flags = parse_flags()
    keep_freed_memory()
    with processes(os.environ) as ranks:  # one, unless torchrun started more
        # The first process does what ``first`` is given, and all get the result.
        run = ranks.first(lambda: resolve(flags.config, CONFIG_DIR / "demo.toml", flags.settings, flags.resume, ranks))
        text = prepare_text(run, ranks)
        choice = ranks.first(lambda: choose(run, text, ranks, with_forecast=flags.plan))
        run = choice.run
        if flags.plan:
            if ranks.is_first:
                print(plan_text(choice, text, ranks))
            return 0

        with run_directory(run, text, ranks) as directory:
            device = local_device(run.train.device, ranks)
            torch.manual_seed(run.train.seed)
            with note_if_slow(f"building       {quantity(run.model.n_layers, 'layer')} of width {run.model.dim}"):
                model = initial_model(run, directory).to(device)
            trainer = Trainer(model, text.dataset, run.train, directory, ranks, resume=flags.resume)
            console = Console(trainer, text.tokenizer, run.data.start_text or "")
            console.announce(changes(run), choice.forecast)
            with console.running():
                for measured in trainer.steps():
                    console.show(measured)
            return console.finish()


class Flags(NamedTuple):
    config: Path | None
    settings: Settings
    resume: bool
    plan: bool


def parse_flags() -> Flags:
    description = "Train a language model on your own text. Flags override the TOML file, which overrides the defaults."
    parser = Parser(text_flag="--data", prog="train.py", description=description)
    files = (
        f"config: a TOML file, or one of {config_names()} (default without a text: demo.toml); text: the same as "
        "--data; with --resume: the run directory"
    )
    parser.add_argument("arguments", nargs="*", metavar="CONFIG.toml|TEXT|RUN", help=files)
    parser.add_argument("--resume", action="store_true", help="continue RUN or --out_dir (default: the newest run)")
    parser.add_argument(
        "--plan", action="store_true", help="print the size, memory, steps and loss to expect, without training"
    )
    add_flags(parser, *SETTINGS_CLASSES)
    flags = parser.parse_args()
    if flags.plan and flags.resume:
        raise ValueError("--plan is for a new run: leave --resume out")
    config, settings = sort_arguments(flags.arguments, read_flags(flags, *SETTINGS_CLASSES), flags.resume)
    return Flags(config, settings, flags.resume, flags.plan)


def config_names() -> str:
    return ", ".join(path.name for path in sorted(CONFIG_DIR.glob("*.toml")))


def sort_arguments(arguments: Sequence[str], settings: Settings, resume: bool) -> tuple[Path | None, Settings]:
    """Sort the positional arguments. Returns the config file, and the settings with texts and the run added.

    Configs are files that end in ``.toml``, and the names of the configs that come with Ropewalk. With ``resume`` a
    directory is the run. Anything else is text. Raises ValueError for files that do not exist, for two configs, and for
    a setting that is given twice.
    """
    configs: list[Path] = []
    texts: list[str] = []
    for argument in arguments:
        if resume and Path(argument).is_dir():
            settings = add_setting(settings, "out_dir", Path(argument), argument)
            continue
        config = find_config(argument)
        if config:
            configs.append(config)
        else:
            check_text(argument)
            texts.append(argument)
    if len(configs) > 1:
        raise ValueError(f"{configs[0]} and {configs[1]} are two configs: give one")
    if texts:
        settings = add_setting(settings, "data", tuple(texts), texts[0])
    return configs[0] if configs else None, settings


def add_setting(settings: Settings, name: str, value: object, argument: str) -> Settings:
    if name in settings:
        raise ValueError(f"{name} is given twice (once as {argument}): leave {argument} out, or --{name}")
    return settings | {name: value}


def find_config(name: str) -> Path | None:
    """The TOML file ``name``, or a config that comes with Ropewalk.

    The latter can be named ``demo``, ``demo.toml`` or ``configs/demo.toml``. If there is neither, raises ValueError for
    a name that ends in ``.toml``, and returns None for any other.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.exists():
        return path
    shipped = CONFIG_DIR / f"{path.name.removesuffix('.toml')}.toml"
    if not path.exists() and path.parent in (Path(), Path("configs")) and shipped.is_file():
        return shipped
    if path.suffix == ".toml":
        raise ValueError(f"{name} does not exist: give a TOML file, or one of {config_names()} from {CONFIG_DIR}")
    return None


def check_text(name: str) -> None:
    """Raise ValueError for a path that does not exist, and for a model, which is probably meant to be continued."""
    path = Path(os.path.expanduser(name))
    if any((path / file).is_file() for file in (CONFIG_FILE, *MODEL_CONFIGS)):
        raise ValueError(
            f"{name} is a model: --resume {name} continues its run, --init_from {name} fine-tunes it, --data {name} "
            "trains on its files as text"
        )
    is_path = name not in (PYTHON_DOCS, "-") and "://" not in name and not glob.has_magic(name)
    if is_path and is_missing(path):
        raise ValueError(f"{name} does not exist: give text (see --data in --help), or one of {config_names()}")


if __name__ == "__main__":
    run_script(main, "train.py")
