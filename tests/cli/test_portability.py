"""Windows, as far as it can be simulated here."""

import os
import sys

import pytest
from script_helpers import ROOT, run_python


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="simulates Windows with the help of /proc")
def test_training_resuming_generating_and_converting_work_with_the_restrictions_of_windows(tmp_path):
    folder = tmp_path / "a folder"  # paths on Windows often have spaces
    folder.mkdir()
    code_page = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "cp1252"}
    places = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
    done = run_python(ROOT / "tests" / "windows.py", cwd=folder, env=os.environ | code_page | places, errors="replace")
    assert done.returncode == 0, done.stderr
    assert "--- sample at step 2" in done.stdout
    assert "?" in done.stdout  # in place of characters that the code page lacks
