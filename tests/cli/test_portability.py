"""Other operating systems, locales and working directories, as far as they can be simulated here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in ROOT.rglob("*.py") if not {".venv", "runs", "build"} & {*path.relative_to(ROOT).parts}]
FORCED_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.skipif(sys.platform != "linux", reason="simulates Windows with the help of /proc")
def test_training_resuming_generating_and_converting_work_with_the_restrictions_of_windows(tmp_path):
    folder = tmp_path / "a folder"  # paths on Windows often have spaces
    folder.mkdir()
    code_page = {"PYTHONIOENCODING": "cp1252", "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
    command = [sys.executable, str(ROOT / "tests" / "windows.py")]
    done = subprocess.run(command, cwd=folder, env=os.environ | FORCED_ASCII | code_page, capture_output=True)
    assert done.returncode == 0, done.stderr.decode("cp1252")
    assert b"--- sample at step 2" in done.stdout
    assert b"?" in done.stdout  # in place of characters that the code page lacks
