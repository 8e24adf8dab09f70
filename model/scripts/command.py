"""The installed command: ``ropewalk train ...`` runs the same script as ``python train.py ...`` in the repository."""

import importlib
import sys

from ..cli import run_script, script_name
from ..cli.settings import suggest_name

SCRIPTS = {
    "train": "train a language model on your own text",
    "generate": "continue a text with a trained model or a published Llama checkpoint",
    "evaluate": "measure how well a model predicts a text",
    "convert": "convert a model to another format",
    "study": "print tables and plots that explain RoPE",
}
USAGE = "\n".join([
    "usage: ropewalk SCRIPT [flags]",
    "",
    *(f"  {name:<10}{description}" for name, description in SCRIPTS.items()),
    "",
    "ropewalk SCRIPT --help lists the flags of a script.",
])  # fmt: skip


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in SCRIPTS:
        del sys.argv[1]
        script = importlib.import_module(f".{name}", __package__)  # importing all scripts takes 10% longer
        run_script(script.main, script_name(name))
    else:
        run_script(lambda: print_usage(name), "ropewalk")


def print_usage(name: str) -> None:
    if name not in ("-h", "--help"):
        raise ValueError(f"unknown script {name!r}{suggest_name(name, SCRIPTS)}")
    print(USAGE)


if __name__ == "__main__":
    main()
