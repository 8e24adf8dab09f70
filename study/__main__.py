"""Explain RoPE: `python -m study TOPIC` prints a table; most topics also draw a picture with `--plot FILE.svg`."""

import startup

import sys

from model.cli.settings import suggest_name

from .walk import TOPICS, overview


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(overview())
        return 0
    name, *arguments = sys.argv[1:]
    if name not in TOPICS:
        raise ValueError(f"unknown topic {name!r}{suggest_name(name, TOPICS)}")

    from .topics import run_command  # here, so that the overview does not wait for PyTorch

    return run_command(TOPICS[name], arguments)


if __name__ == "__main__":
    startup.run(main, "study")
