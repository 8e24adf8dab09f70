"""Other operating systems, locales and working directories, as far as they can be simulated here."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in ROOT.rglob("*.py") if not {".venv", "runs", "build"} & {*path.relative_to(ROOT).parts}]
# Runs several commands in one process, because each start of PyTorch takes seconds: [script, arguments ..., ";"] ...
RUN_SCRIPTS = """
import importlib, sys
root, *words = sys.argv[1:]
sys.path.insert(0, root)
from model.cli import run_script
while words:
    end = words.index(";")
    sys.argv = words[:end]
    words = words[end + 1 :]
    script = importlib.import_module("" + sys.argv[0].removesuffix(".py"))
    try:
        run_script(script.main, sys.argv[0])
    except SystemExit as ended:
        if ended.code:
            raise
"""
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


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems file names are UTF-8 in every locale")
def test_files_whose_names_the_locale_cannot_represent_are_found_and_written(tmp_path):
    folder = tmp_path / "Übung 日本"
    folder.mkdir()
    (folder / "naïve.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 40, encoding="utf-8")
    size = "--tokenizer char --dim 16 --n_layers 1 --n_heads 2 --max_seq_len 16 --max_steps 2 --batch_size 2"
    run, tuned, copy = folder / "rün", folder / "später", folder / "kopië"
    commands = (
        ["train.py", "--data", folder / "na*.txt", *size.split(), "--out_dir", run],
        ["train.py", "--resume", "--out_dir", run, "--max_steps", "3"],
        ["train.py", "--init_from", run, "--data", folder, "--glob", "naï*", "--out_dir", tuned, "--max_steps", "1"],
        ["generate.py", run, "--prompt", "The", "--max_new_tokens", "3", "--tokenizer", run / "tokenizer.model"],
        ["train.py", "--data", folder / "naïve.txt", *size.split()],
        ["convert.py", run, copy, "--to", "meta"],
        ["evaluate.py", copy, "--data", folder / "naïve.txt"],
    )
    words = [word for command in commands for word in (*command, ";")]
    done = subprocess.run(
        [sys.executable, "-c", RUN_SCRIPTS, ROOT, *words], cwd=folder, capture_output=True,
        env=os.environ | FORCED_ASCII | {"XDG_CACHE_HOME": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert (folder / "runs" / "naïve" / "model.safetensors").exists()
    assert (run / "config.toml").read_text(encoding="utf-8").count("Übung 日本/rün") == 1
