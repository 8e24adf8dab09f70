"""What the scripts share: settings from dataclasses, one way to end on a user's mistake, the machine, and files."""

from .script import Parser, run_script
from .settings import Settings, add_flags, build, read_flags, read_toml, write_toml

__all__ = ["Parser", "Settings", "add_flags", "build", "read_flags", "read_toml", "run_script", "write_toml"]
