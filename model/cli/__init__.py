"""What the scripts share.

settings.py   settings from dataclasses, TOML files and flags
parser.py     flags: whole names, the nearest name for a mistyped one
script.py     how a script starts, and how it ends on a user's mistake
machine.py    device, dtype, threads and memory
files.py      files written whole or not at all, JSON read with checks
"""

from .parser import Parser
from .script import INSTALLED, print_note, quantity, run_script, script_name, typed_command
from .settings import (
    Settings,
    add_flags,
    from_settings,
    local_path,
    read_flags,
    read_toml,
    typed_flags,
    typed_text,
    write_toml,
)

__all__ = [
    "INSTALLED",
    "Parser",
    "Settings",
    "add_flags",
    "from_settings",
    "local_path",
    "print_note",
    "quantity",
    "read_flags",
    "read_toml",
    "run_script",
    "script_name",
    "typed_command",
    "typed_flags",
    "typed_text",
    "write_toml",
]
