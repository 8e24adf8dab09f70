"""What the scripts share: settings out of dataclasses, and one way to end on a user's mistake. Imports no torch."""

from .script import Parser, run_script
from .settings import Settings, add_flags, build, read_flags, read_toml, write_toml

__all__ = ["Parser", "Settings", "add_flags", "build", "read_flags", "read_toml", "run_script", "write_toml"]
