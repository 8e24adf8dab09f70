"""The program `python -m study TOPIC`: its options are the parameters of the topic's function."""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from model.cli import Parser, add_flags, explain_out_of_memory, read_flags
from model.cli.machine import available_cores
from model.cli.settings import setting_fields
from model.config import check_settings

from .topic import Report, check_plot, save_plot
from .walk import TOPICS, Topic

WITHOUT_PICTURE = ("relative", "forms", "angles", "trace", "exercise", "check", "page", "article", "notebook")
POSITIONAL = ("model", "file", "directory")  # options that may also be given as a positional argument


def function_of(topic: Topic) -> Callable[..., Report]:
    """The function of a topic. Only its own module is imported."""
    function: Callable[..., Report] = getattr(importlib.import_module(f".{topic.module}", __package__), topic.name)
    return function


def options_class(topic: Topic) -> type:
    """A dataclass with a field for each parameter of the topic; its instances raise ValueError out of their ranges."""
    function = function_of(topic)
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    fields = [(name, hints[name], parameter.default) for name, parameter in parameters.items()]
    namespace = {"__doc__": function.__doc__, "__post_init__": lambda self: check_settings(self)}
    return make_dataclass(topic.name, fields, frozen=True, namespace=namespace)


def run(name: str, **options: Any) -> Report:
    """The report of a topic. Raises ValueError if an option is out of its range, or the memory is not enough."""
    topic = TOPICS[name]
    checked = vars(options_class(topic)(**options))
    with available_cores(), explain_out_of_memory(f"give {name} a smaller model"):
        return function_of(topic)(**checked)


def make_parser(topic: Topic) -> Parser:
    options = options_class(topic)
    names = setting_fields(options).keys()
    parser = Parser(prog="study", usage=f"python -m study {topic.name} [flags]")
    for name in names & set(POSITIONAL):
        parser.add_argument(name, metavar=name.upper(), nargs="?", default=argparse.SUPPRESS, help=f"same as --{name}")
    help_of_plot = argparse.SUPPRESS if topic.name in WITHOUT_PICTURE else "draw into this file (needs matplotlib)"
    parser.add_argument("--plot", metavar="PATH", type=Path, help=help_of_plot)
    if "zh" not in names:
        parser.add_argument("--zh", action="store_true", help="print and draw in Chinese, where there is a translation")
    add_flags(parser, options)
    return parser


def run_command(topic: Topic, arguments: Sequence[str]) -> int:
    """Print the report of a topic, and draw its picture; returns the exit status."""
    flags = make_parser(topic).parse_args(arguments)
    plot = flags.plot
    if plot is not None and topic.name in WITHOUT_PICTURE:
        raise ValueError(f"{topic.name} has no picture: leave --plot out")
    if plot is not None:
        check_plot(plot, flags.zh)
    report = run(topic.name, **read_flags(flags, options_class(topic)))
    if getattr(flags, "zh", False):
        report = report.in_chinese()
    print(report)
    if plot is not None:
        sys.stdout.flush()
        save_plot(report, plot)
        print(f"drawn: {plot}", file=sys.stderr)
    return report.code
