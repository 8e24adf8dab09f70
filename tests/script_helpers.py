"""Run a script in this process, which saves the seconds of importing PyTorch."""

import sys
from collections.abc import Callable

import pytest

from model.cli import run_script


def run_in_process(main: Callable[[], int | None], script: str, *arguments: object) -> int:
    """Run ``main`` as the command ``python SCRIPT ARGUMENTS...`` does; returns the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_script(main, script)
    return ended.value.code
