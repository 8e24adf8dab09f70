"""The benchmark that types a page's commands: which lines it takes, what it puts in place, when it says failed."""

import gzip
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("walk", Path(__file__).parents[1] / "benchmarks" / "walk.py")
walk = importlib.util.module_from_spec(spec)
spec.loader.exec_module(walk)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the walk types into bash")

PAGE = """
```console
$ python study.py rotate
make no mistake: this is output
```
```
python train.py --data my.txt \\
  --minutes 3   # a comment
parameters  734,080
.venv/bin/python -m pytest
```
```python
python = "code"
```
"""


def test_commands_are_what_follows_a_prompt_or_begins_with_a_program():
    assert [*walk.commands(PAGE)] == [
        "python study.py rotate",
        "python train.py --data my.txt    --minutes 3   # a comment",
        ".venv/bin/python -m pytest",
    ]


def test_what_a_command_expects_is_put_in_place(tmp_path):
    text = "one\n\ntwo\n\nthree"
    for command in (
        "python train.py --data my.txt",
        "python train.py --data books/ --minutes 3",
        "python train.py --data src/ --glob '*.py'",
        "torchrun train.py --data big.jsonl.gz",
        "python generate.py --prompt_file prompts.txt",
        "python train.py --data https://example.org/x.txt",
    ):
        walk.supply(command, tmp_path, text)
    assert (tmp_path / "my.txt").read_text(encoding="utf-8") == text
    assert "".join(path.read_text(encoding="utf-8") for path in sorted((tmp_path / "books").iterdir())) == text
    lines = gzip.decompress((tmp_path / "big.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "two", "three"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.jsonl.gz", "books", "my.txt", "prompts.txt", "src"]
    assert {path.suffix for path in (tmp_path / "src").iterdir()} == {".py"}

    run = tmp_path / "runs" / "newest"
    run.mkdir(parents=True)
    (run / "model.safetensors").write_bytes(b"weights")
    walk.supply("python generate.py path/to/Llama --prompt x", tmp_path, text)
    assert (tmp_path / "path/to/Llama/model.safetensors").read_bytes() == b"weights"


def test_a_command_that_fails_is_said_to_fail_and_why(tmp_path):
    done = walk.enter("echo 'x.py: error: give a number' >&2; exit 2", tmp_path, dict(os.environ), 1)
    assert (done.state, done.failed) == ("exit code 2", True)
    assert walk.reasons(done.output + done.errors) == ["x.py: error: give a number"]
    done = walk.enter("exit 1 # python study.py check mine.py", tmp_path, dict(os.environ), 1)
    assert (done.state, done.failed) == ("mistakes", False)
    assert walk.enter("echo fine", tmp_path, dict(os.environ), 1)[::2] == ("ok", "fine\n")


def test_training_beyond_its_time_is_stopped_and_must_take_it_well(tmp_path):
    for script, state in (("trap 'exit 130' INT", "stopped"), ("trap 'echo Traceback >&2; exit 1' INT", "traceback")):
        (tmp_path / "train.py").write_text(f"{script}\nwhile true; do sleep 0.05; done\n", encoding="utf-8")
        assert walk.enter("bash train.py", tmp_path, dict(os.environ), 2).state == state
