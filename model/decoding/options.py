"""What generate.py, chat.py and evaluate.py share: the flags that choose a model, and opening it."""

import json
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from ..cli import Parser, Settings, print_note, quantity
from ..cli.files import read_json
from ..cli.machine import DeviceName
from ..ranges import raise_problems, range_problems, setting_fields
from ..transformer import Transformer
from ..weights import Checkpoint, find_network, open_checkpoint
from ..weights.checkpoint import newest_run
from .batches import Speed
from .sampling import Sampling

Compile = Annotated[
    bool, "compile the network: takes half a minute or more once, later launches load it; on a GPU it takes a moment"
]


@dataclass(frozen=True)
class ModelOptions:
    """Model, device and dtype: the base of a program's own options."""

    tokenizer: Annotated[Path | None, "tokenizer file (default: the one beside the model)"] = None
    network: Annotated[str | None, "the model is this subclass of Transformer: MODULE:CLASS"] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        "dtype of weights and cache; auto: as stored if the device multiplies it natively, else float32; "
        "int8: matrices in eight bits",
    ] = "auto"
    device: DeviceName = "auto"

    def __post_init__(self) -> None:
        raise_problems(range_problems(self))


def add_model(parser: Parser) -> None:
    model_help = "run, checkpoint, or id of the Hugging Face Hub, ORG/NAME (default: newest run)"
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL", help=model_help)


def open_model(path: Path | None) -> Checkpoint:
    """Open a checkpoint without reading its weights. Without a path it is the newest run, which is named on stderr."""
    if path is None:
        path = newest_run()
        print_note(f"the model is {path}, the newest run")
    return open_checkpoint(path)


def load_network(
    checkpoint: Checkpoint, options: ModelOptions, device: torch.device, dtype: torch.dtype
) -> Transformer:
    """Read the weights."""
    variant = find_network(options.network) if options.network else None
    return checkpoint.model(device, dtype, variant, int8=options.dtype == "int8")


def read_sampling(directory: Path, given: Settings) -> Sampling:
    """The ``given`` settings. Those left out are from generation_config.json where it has them, with a note.

    Raises ValueError if a value is out of range; the note names the file then.
    """
    file = directory / "generation_config.json"
    config = read_json(file) if file.is_file() else {}
    names = [name for name in setting_fields(Sampling) if name != "seed" and name not in given]
    recommended: dict[str, Any] = {name: config[name] for name in names if config.get(name) is not None}
    if recommended:
        values = ", ".join(f"{name} {value}" for name, value in recommended.items())
        print_note(f"note: {values}, as {file} says; flags override it")
    return Sampling(**recommended | given)


def add_text_flags(parser: Parser) -> None:
    """Flags that may be repeated, and the system message of a chat."""
    stop_help = "stop before this text; may be repeated"
    parser.add_argument("--stop", action="append", default=[], type=stop_string, metavar="TEXT", help=stop_help)
    parser.add_argument("--system", metavar="TEXT", help="system message at the start of a chat")
    parser.add_argument(
        "--template_var",
        action="append",
        default=[],
        type=template_variable,
        metavar="NAME=VALUE",
        help="a variable of the chat template, for example enable_thinking=false; may be repeated",
    )


def stop_string(text: str) -> str:
    if not text:
        raise ArgumentTypeError("a stop string is empty: give text to stop at")
    return text


def template_variable(text: str) -> tuple[str, Any]:
    """The name and the value, which is JSON (true, 3, "a"), else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE: write for example enable_thinking=false")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, {"True": True, "False": False}.get(value, value)  # as text, False would count as true


def print_speed(speed: Speed) -> None:
    if speed.prompt_tokens:
        print_note(f"{speed}; {quantity(torch.get_num_threads(), 'thread')}")
