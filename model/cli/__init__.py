"""What the scripts share.

settings.py   settings from dataclasses, TOML files and flags
script.py     how a script starts, and how it ends on a user's mistake
machine.py    device, dtype, threads and memory
files.py      files written whole or not at all, JSON read with checks
"""

from .script import Parser, run_script
from .settings import Settings, add_flags, build, read_flags, read_toml, typed_text, write_toml

__all__ = [
    "Parser",
    "Settings",
    "add_flags",
    "build",
    "read_flags",
    "read_toml",
    "run_script",
    "typed_text",
    "write_toml",
]
