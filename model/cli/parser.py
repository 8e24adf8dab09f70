"""argparse without abbreviated flags, with suggestions for mistyped ones and one-line errors."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Flags of nanoGPT and of Hugging Face's Trainer, whose names are too far from ours to be found by their letters
OTHER_NAMES = {
    "block_size": "max_seq_len",
    "epochs": "max_steps",
    "learning_rate": "lr",
    "max_iters": "max_steps",
    "n_embd": "dim",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "num_train_epochs": "max_steps",
}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that was probably meant."""
    close = difflib.get_close_matches(OTHER_NAMES.get(name, name), names, n=1, cutoff=0.6)
    return close[0] if close else None


HUB_PAGE = re.compile(r"https://(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+).*")


def user_path(text: str) -> Path:
    """The path that a user has written; of the address of a model's page on the Hugging Face Hub, the model's id.

    A shell expands the ``~`` in ``--out_dir ~/x``, but not in ``--out_dir=~/x``.
    """
    return Path(os.path.expanduser(HUB_PAGE.sub(r"\1", text)))


def format_flag(flag: str, text: str) -> str:
    """The flag and its value, in double quotes if it has a space; a long text is truncated."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f'{flag} "{text}"' if " " in text else f"{flag} {text}"


class Parser(argparse.ArgumentParser):
    """argparse that raises ValueError, which ``run_script`` prints in one line, and suggests the nearest flag.

    ``text_flag`` is suggested for text without a flag; ``--prompt`` in generate.py.
    """

    def __init__(self, text_flag: str | None = None, **options: Any) -> None:
        self.text_flag = text_flag
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        args = sys.argv[1:] if args is None else args
        for each in args:
            try:
                each.encode()
            except UnicodeEncodeError:  # settings are written to files in UTF-8
                self.error(f"{each!r} is not UTF-8: write it in UTF-8, or rename the file")
            if each.startswith("--") and each.endswith("=--"):  # argparse would give it the value []
                self.error(f"{each}: a value cannot be --")
        parsed, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return parsed
        name = unknown[0].split("=")[0]
        if self.text_flag and not name.startswith("-"):
            self.error(f"unknown argument {name!r}: did you mean {format_flag(self.text_flag, ' '.join(unknown))}?")
        flags = {flag.strip("-"): flag for flag in self._option_string_actions}  # dashes are alike in all of them
        meant = nearest(name.strip("-").replace("-", "_"), flags)
        self.error(f"unknown argument {name!r}: {f'did you mean {flags[meant]!r}?' if meant else 'try --help'}")

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
