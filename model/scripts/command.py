"""The installed command: ``ropewalk train ...`` is ``python train.py ...`` of the repository, and so on."""

import sys

from ..cli import run_script, script_name
from ..cli.settings import nearest
from . import convert, evaluate, generate, study, train

MAIN = {
    "train": (train.main, "train a language model on your own text"),
    "generate": (generate.main, "continue a text with a trained model or a published Llama checkpoint"),
    "evaluate": (evaluate.main, "how well a model predicts a text"),
    "convert": (convert.main, "rewrite a model in another program's format"),
    "study": (study.main, "take RoPE apart"),
}
USAGE = "\n".join([
    "usage: ropewalk SCRIPT [flags]",
    "",
    *(f"  {name:<10}{does}" for name, (_, does) in MAIN.items()),
    "",
    "ropewalk SCRIPT --help shows the flags of a script.",
])  # fmt: skip


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in MAIN:
        del sys.argv[1]
        run_script(MAIN[name][0], script_name(name))
    run_script(lambda: overview(name), "ropewalk")


def overview(name: str) -> None:
    if name not in ("-h", "--help"):
        raise ValueError(f"unknown script {name!r}{nearest(name, MAIN)}")
    print(USAGE)
