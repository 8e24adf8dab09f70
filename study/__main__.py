"""Explain RoPE: `python -m study TOPIC` prints a table; most topics also draw a picture with `--plot FILE.svg`."""

import startup

import os
import sys

from .walk import overview


def asks_for_list() -> bool:
    return len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help")


def main() -> int:
    if asks_for_list():
        print(overview())
        return 0
    from .topics import run_command

    return run_command(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    if asks_for_list():
        try:
            main()
            sys.stdout.flush()
        except BrokenPipeError:  # the reader (`| head`) has closed the pipe, which is not an error
            os._exit(0)
    else:
        startup.run(main, "study")
