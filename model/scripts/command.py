"""The installed command: ``ropewalk train ...`` is ``python train.py ...`` of the repository, and so on."""

import importlib
import sys

from ..cli import run_script, script_name
from ..cli.settings import suggest_name

DOES = {
    "train": "train a language model on your own text",
    "generate": "continue a text with a trained model or a published Llama checkpoint",
    "evaluate": "how well a model predicts a text",
    "convert": "rewrite a model in another program's format",
    "study": "take RoPE apart",
}
USAGE = "\n".join([
    "usage: ropewalk SCRIPT [flags]",
    "",
    *(f"  {name:<10}{does}" for name, does in DOES.items()),
    "",
    "ropewalk SCRIPT --help shows the flags of a script.",
])  # fmt: skip


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in DOES:
        del sys.argv[1]
        script = importlib.import_module(f".{name}", __package__)  # the others would take a tenth of the start
        run_script(script.main, script_name(name))
    run_script(lambda: overview(name), "ropewalk")


def overview(name: str) -> None:
    if name not in ("-h", "--help"):
        raise ValueError(f"unknown script {name!r}{suggest_name(name, DOES)}")
    print(USAGE)


if __name__ == "__main__":
    main()
