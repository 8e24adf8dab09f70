"""Take RoPE apart: each topic prints a table, and most of them draw a picture."""

import argparse
import sys
from pathlib import Path

from ..cli import Parser, add_flags, from_settings, read_flags, run_script, script_command, script_name
from ..cli.settings import setting_fields, suggest_name
from ..study import TOPICS, run
from ..study.topic import check_plot, save_plot

PLAIN = ("exercise", "check", "page")  # topics without a picture
POSITIONAL = ("model", "file", "directory")  # options that are also given without their flag

TEXTS = ("prompt", "data")  # options that hold text, the one that was probably meant first


def overview() -> str:
    width = max(map(len, TOPICS))
    name, typed = script_name("study"), script_command("study")
    lines = [f"  {topic.ljust(width)}  {(options.__doc__ or '').splitlines()[0]}" for topic, options in TOPICS.items()]
    does = f"Take RoPE apart: `{typed} TOPIC` prints a table, and `--plot FILE.png` draws the picture."
    return "\n".join([f"usage: {name} TOPIC [--plot FILE.png] [flags]", "", does, "", *lines, "",
                      f"{name} TOPIC --help shows the flags of a topic."])  # fmt: skip


def parser(topic: str) -> Parser:
    options = TOPICS[topic]
    names = setting_fields(options).keys()
    text_flag = next((f"--{name}" for name in TEXTS if name in names), None)
    flags = Parser(text_flag, prog=script_name("study"), usage=f"{script_name('study')} {topic} [flags]")
    for name in names & set(POSITIONAL):
        flags.add_argument(name.upper(), nargs="?", help=f"the same as --{name}")
    plot_help = argparse.SUPPRESS if topic in PLAIN else "draw the picture into this file (extra `plot`)"
    flags.add_argument("--plot", metavar="PATH", type=Path, help=plot_help)
    add_flags(flags, options)
    return flags


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(overview())
        return 0
    topic = sys.argv[1]
    if topic not in TOPICS:
        raise ValueError(f"unknown topic {topic!r}{suggest_name(topic, TOPICS)}")
    flags = parser(topic).parse_args(sys.argv[2:])
    for name in POSITIONAL:
        if getattr(flags, name.upper(), None) is not None:
            setattr(flags, name, getattr(flags, name.upper()))
    if flags.plot is not None:
        if topic in PLAIN:
            raise ValueError(f"{topic} has no picture: leave out --plot {flags.plot}")
        check_plot(flags.plot)
    report = run(topic, from_settings(TOPICS[topic], read_flags(flags, TOPICS[topic])))
    print(report)
    if flags.plot is not None and report.draw is not None:
        sys.stdout.flush()
        save_plot(report.draw, flags.plot, description=str(report))
        print(f"drawn: {flags.plot}", file=sys.stderr)
    return report.code


if __name__ == "__main__":
    run_script(main, script_name("study"))
