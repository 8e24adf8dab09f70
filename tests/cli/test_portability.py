"""Other operating systems, locales and working directories, as far as they can be simulated here."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in ROOT.rglob("*.py") if not {".venv", "runs", "build"} & {*path.relative_to(ROOT).parts}]
FORCED_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text without naming the encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = getattr(getattr(call.func, "value", None), "id", "")
    keywords = {keyword.arg for keyword in call.keywords}
    modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if "encoding" in keywords or owner in ("os", "gzip", "files", "Image"):
        return False
    if name in ("run", "Popen", "check_output"):
        return "text" in keywords
    if name in ("read_text", "write_text"):
        return isinstance(call.func, ast.Attribute)
    return name in ("open", "fdopen", "TextIOWrapper") and not any("b" in mode for mode in modes)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_text_is_never_read_or_written_in_the_encoding_of_the_locale(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    assert [f"line {call.lineno}: {ast.unparse(call)}" for call in calls if opens_text(call)] == []


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
