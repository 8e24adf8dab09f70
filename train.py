#!/usr/bin/env python3
"""Train a language model on your own text.

python train.py my.txt --minutes 10            choose a model for the text and this machine
python train.py my.txt --minutes 10 --plan     only say what it would choose
python train.py --resume                       continue the newest run

Flags override the TOML file, which overrides the defaults. If none of a config,
a text, --minutes and --init_from is given, train the demo, configs/demo.toml.
With a text and no config, train for 2.5 minutes, or for --minutes, and choose
the model that suits the text and the machine.
"""

import startup

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from model.cli import Parser, Settings, add_flags, format_flags, print_rows, read_flags, user_path
from model.training.config import CONFIG_FILE, SETTINGS_CLASSES, chosen_defaults

# Everything that imports PyTorch is imported by the functions that use it, so that --help does not wait for it.
if TYPE_CHECKING:
    from model.training.distributed import Ranks
    from model.training.run import Run

CONFIG_DIR = Path(__file__).parent / "configs"
COMMON = ("data", "minutes", "out_dir", "init_from", "tokenizer", "dim", "n_layers", "compile", "seed")  # shown first
MODEL_CONFIGS = ("config.json", "params.json")  # of Hugging Face and Meta; a directory with one of them is a model


def main() -> int:
    flags = parse_flags()

    from model.cli.machine import available_cores, keep_freed_memory
    from model.training.distributed import processes

    keep_freed_memory()  # reusing it in the next step is faster
    with available_cores(), processes() as ranks:  # one, unless torchrun started more
        return train(flags, ranks)


def train(flags: Namespace, ranks: "Ranks") -> int:
    """Train, or only show the plan; returns the exit status. Every process calls it."""
    import torch

    from model.training.console import Console, announcement
    from model.training.run_directory import begin
    from model.training.run_text import open_text
    from model.training.trainer import Trainer, initial_model

    with ExitStack() as stack:
        # The first process prepares the run, and the others wait for it, for hours if need be. Then all do the same.
        run, speed = ranks.on_first_process(lambda: prepare(flags, ranks, stack))
        machine = run.machine(ranks)
        text = open_text(run)
        rows = announcement(run, text, machine, speed)
        if flags.plan:
            if ranks.is_first:
                decided = {name: value for name, value in run.values().items() if name in run.decided}
                print_rows(rows | {"command": f"python train.py {format_flags(decided)}"})
            return 0

        if ranks.is_first:
            begin(run)  # writes config.toml: from now on, the run can be resumed
            print_rows(rows | {"directory": str(run.directory)}, sys.stderr)
        torch.manual_seed(run.train.seed)
        model = initial_model(run, machine, ranks)
        # To resume, loads weights, optimizer state and step from the directory, if a state has been saved.
        trainer = Trainer(model, text.dataset, run.train, run.directory, ranks, resume=run.resume)
        console = Console(trainer, text)
        with console.running():  # shows the progress bar; Ctrl-C sets trainer.stop_signal, which ends the loop
            for measured in trainer.steps():
                console.show(measured)
        return console.finish()  # prints the summary, or how to resume; returns the exit status


def prepare(flags: Namespace, ranks: "Ranks", stack: ExitStack) -> "tuple[Run, float | None]":
    """The run with all of its settings, and the tokens per second to expect if steps were timed."""
    from model.text.dataset import load_dataset
    from model.training.choice import choose
    from model.training.run import resolve
    from model.training.run_directory import run_directory
    from model.training.run_text import prepare_text

    # The settings of the run: defaults < TOML file < flags. With --resume, those of the run instead of the defaults.
    run = resolve(flags.config, flags.settings, bool(flags.resume), ranks)
    run = stack.enter_context(run_directory(run))  # makes its directory if it is new, and locks it
    # Writes tokens.bin and the tokenizer into the directory, and adds the settings that follow from the text, such as
    # vocab_size. To resume, they are there.
    run = prepare_text(run)
    # With ``minutes``: times models on this machine, and chooses the settings that were left out, to suit the time.
    return choose(run, load_dataset(run.directory), run.machine(ranks), with_speed=flags.plan)


def parse_flags() -> Namespace:
    """The flags ``resume`` and ``plan``, the file ``config`` or None, and all else as ``settings``."""
    parser = Parser("--data", COMMON, chosen_defaults(), prog="train.py", description=__doc__)
    files = (
        f"config: a TOML file, or one of {config_names()} (default without a text: demo.toml); text: the same as --data"
    )
    parser.add_argument("arguments", nargs="*", metavar="CONFIG.toml|TEXT", help=files)
    resume_help = "continue RUN or --out_dir (default: the newest run)"
    parser.add_argument(
        "--resume", nargs="?", type=user_path, const=True, default=False, metavar="RUN", help=resume_help
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the size, memory, steps and time to expect, without training"
    )
    add_flags(parser, *SETTINGS_CLASSES)
    flags = parser.parse_args()
    if flags.plan and flags.resume:
        raise ValueError("--plan is for a new run: leave --resume out")
    flags.config, flags.settings = sort_arguments(flags.arguments, read_flags(flags, *SETTINGS_CLASSES))
    if isinstance(flags.resume, Path):
        out_dir = flags.settings.setdefault("out_dir", flags.resume)
        if out_dir.resolve() != flags.resume.resolve():
            raise ValueError(f"--resume {flags.resume} and --out_dir {out_dir} are two runs: give one")
    says_what_to_train = flags.config or not flags.settings.keys().isdisjoint({"data", "minutes", "init_from"})
    if not (says_what_to_train or flags.resume):
        flags.config = CONFIG_DIR / "demo.toml"
    return flags


def config_names() -> str:
    return ", ".join(path.name for path in sorted(CONFIG_DIR.glob("*.toml")))


def sort_arguments(arguments: Sequence[str], settings: Settings) -> tuple[Path | None, Settings]:
    """Sort the positional arguments into a config file, which ends in ``.toml``, and texts, which become settings.

    Raises ValueError for a config that does not exist, for two configs, and for a model, which is probably meant to be
    continued.
    """
    config: Path | None = None
    for argument in arguments:
        path = Path(argument)
        if path.suffix == ".toml":
            if config:
                raise ValueError(f"{config} and {argument} are two configs: give one")
            is_bare_name = path.name == argument
            config = CONFIG_DIR / path if is_bare_name and not path.exists() else path
            if not config.exists():
                raise ValueError(f"{argument} does not exist: give a TOML file, or one of {config_names()}")
        elif any((path / file).is_file() for file in (CONFIG_FILE, *MODEL_CONFIGS)):
            raise ValueError(
                f"{argument} is a model: --resume {argument} continues its run, --init_from {argument} fine-tunes it, "
                f"--data {argument} trains on its files as text"
            )
        else:
            settings["data"] = (*settings.get("data", ()), argument)
    return config, settings


if __name__ == "__main__":
    startup.run(main, "train.py")
