"""Explain RoPE: `python -m study TOPIC` prints a table; most topics also draw a picture with `--plot FILE.png`."""

import startup  # noqa: F401, I001  must come before torch

import argparse
import sys
from pathlib import Path

from model.cli import Parser, add_flags, read_flags, run_script
from model.cli.settings import setting_fields, suggest_name
from .topic import check_plot, save_plot
from .topics import TOPICS, WALK, options_class, run

WITHOUT_PICTURE = ("relative", "forms", "angles", "trace", "exercise", "check", "page", "article", "notebook")
POSITIONAL = ("model", "file", "directory")  # options that may also be given as a positional argument


def overview() -> str:
    width = max(map(len, TOPICS))
    program = "python -m study"
    topics = []
    for step, functions in WALK.items():
        for number, topic in enumerate(functions):
            place = "" if number else step
            topics.append(f"  {place:<11}  {topic.__name__:<{width}}  {(topic.__doc__ or '').splitlines()[0]}")
    return "\n".join(
        [
            f"usage: {program} TOPIC [--zh] [--plot FILE.png] [flags]",
            "",
            "Explain RoPE: `python -m study TOPIC` prints a table; most draw a picture with --plot FILE.png.",
            "With --zh, tables and pictures are in Chinese.",
            "The steps are those of docs/rope.md and docs/rope-models.md.",
            "",
            *topics,
            "",
            f"{program} TOPIC --help lists the flags of a topic.",
        ]
    )


def make_parser(topic: str) -> Parser:
    options = options_class(TOPICS[topic])
    names = setting_fields(options).keys()
    parser = Parser(prog="study", usage=f"python -m study {topic} [flags]")
    for name in names & set(POSITIONAL):
        parser.add_argument(name, metavar=name.upper(), nargs="?", default=argparse.SUPPRESS, help=f"same as --{name}")
    if topic not in WITHOUT_PICTURE:
        parser.add_argument("--plot", metavar="PATH", type=Path, help="draw into this file (needs matplotlib)")
    if "zh" not in names:
        parser.add_argument("--zh", action="store_true", help="print and draw in Chinese, where there is a translation")
    add_flags(parser, options)
    return parser


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(overview())
        return 0
    topic = sys.argv[1]
    if topic not in TOPICS:
        raise ValueError(f"unknown topic {topic!r}{suggest_name(topic, TOPICS)}")
    flags = make_parser(topic).parse_args(sys.argv[2:])
    plot = getattr(flags, "plot", None)
    if plot is not None:
        check_plot(plot, flags.zh)
    report = run(topic, **read_flags(flags, options_class(TOPICS[topic])))
    if getattr(flags, "zh", False):
        report = report.in_chinese()
    print(report)
    if plot is not None:
        sys.stdout.flush()
        save_plot(report, plot)
        print(f"drawn: {plot}", file=sys.stderr)
    return report.code


if __name__ == "__main__":
    run_script(main, "study")
