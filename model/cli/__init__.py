"""Shared by all scripts.

settings.py   settings from dataclasses, TOML files and flags
parser.py     the command line parser: no abbreviations, suggestions for mistyped flags
script.py     start of a script, exit codes, one-line errors
machine.py    device, dtype, threads and memory
files.py      atomic writes, JSON files

Only machine.py imports PyTorch, so that ``--help`` does not wait for it.
"""

from .parser import Parser, user_path
from .script import enumerated, explain_out_of_memory, print_note, print_rows, quantity, run_script
from .settings import (
    POSITIONAL,
    REPEATED,
    Settings,
    add_flags,
    format_flags,
    instances,
    parse,
    read_flags,
    read_toml,
    toml_text,
)
