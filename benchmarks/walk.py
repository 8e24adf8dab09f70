#!/usr/bin/env python3
"""Type every command of the documentation, page by page, in the order in which it stands there, in a fresh clone.

    python benchmarks/walk.py [PAGE ...] [--train_seconds 200] [--text FILE] [--packages DIR] [--record]

Each page gets a fresh clone, an empty home directory and only the environment that its commands set up. Where a page
expects its reader to have a text or a checkpoint, the walk supplies Python's language reference or the newest run.
Training that takes longer than --train_seconds is stopped with Ctrl-C. The walk fails if any command fails.

--packages takes the packages from an existing environment instead of downloading them. --record writes the output and
the pictures of the topics attention, extrapolate and endless to benchmarks/ and docs/images/, because these topics need
the model that the page trains.
"""

import argparse
import gzip
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WALK = tuple(
    f"docs/{name}{language}.md" for name in ("rope", "rope-models", "endless", "encodings") for language in ("", ".zh")
)
PAGES = ("README.md", *WALK)
PROGRAMS = {"make", "python", "python3", "pip", "ropewalk", "torchrun"}
RECORDED = ("angles", "whatif", "attention", "extrapolate", "endless")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HOUR = 3600.0


class Outcome(NamedTuple):
    state: str  # "ok", "stopped", "mistakes" or the reason of the failure
    seconds: float
    output: str
    errors: str

    @property
    def failed(self) -> bool:
        return self.state not in ("ok", "stopped", "mistakes")


def commands(page: str) -> Iterator[str]:
    """The commands of a page: lines after a ``$``, or in blocks without one, lines that begin with a program's name."""
    for kind, block in FENCE.findall(page):
        lines = block.replace("\\\n", " ").splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        if prompted:
            yield from prompted
        elif kind in ("", "sh", "bash", "console"):
            yield from (line for line in lines if is_command(line))


def is_command(line: str) -> bool:
    first = line.split(" ", 1)[0]
    return first in PROGRAMS or first.startswith(".venv/bin/")


def supply(command: str, clone: Path, text: str) -> None:
    """Write the files that the reader is expected to have: the data, prompts and model that a command names."""
    words = shlex.split(command, comments=True)
    suffix = Path(words[words.index("--glob") + 1]).suffix if "--glob" in words else ".txt"
    for before, word in itertools.pairwise(words):
        target = clone / word
        if before == "--prompt_file":
            target.write_text("The rope\nOnce upon a time\n", encoding="utf-8")
        elif before == "--data" and not target.exists() and ":" not in word:
            write_data(target, text, suffix if word.endswith("/") else None)
        elif word.startswith("path/to/") and not target.exists():  # stands for the reader's checkpoint
            runs = sorted((clone / "runs").glob("*/model.safetensors"), key=lambda file: file.stat().st_mtime)
            if runs:
                shutil.copytree(runs[-1].parent, target)


def write_data(target: Path, text: str, suffix: str | None) -> None:
    """The text as one file in the format of its name, or as a folder of files with this suffix."""
    third = len(text) // 3
    if suffix:
        target.mkdir(parents=True)
        for i in range(3):
            (target / f"{i}{suffix}").write_text(text[i * third : (i + 1) * third], encoding="utf-8")
    elif target.name.endswith((".jsonl", ".jsonl.gz")):
        lines = "".join(json.dumps({"text": part}) + "\n" for part in text.split("\n\n"))
        data = lines.encode()
        target.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)
    elif target.suffix == ".txt":
        target.write_text(text, encoding="utf-8")


def is_training(command: str) -> bool:
    return "train.py" in command or "ropewalk train" in command


def enter(command: str, clone: Path, environment: dict[str, str], train_seconds: float) -> Outcome:
    """Type one command. Training is stopped with Ctrl-C after ``train_seconds``; other commands may take an hour."""
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=clone, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    state = "ok"
    try:
        # The input that a reader types in chat.py; no other command reads it.
        output, errors = process.communicate("The rope\n", train_seconds if is_training(command) else HOUR)
    except subprocess.TimeoutExpired:
        state = "stopped" if is_training(command) else "not done in an hour"
        os.killpg(process.pid, signal.SIGINT)
        try:
            output, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            state = "Ctrl-C did not end it in two minutes"
    if state == "ok" and process.returncode == 1 and "study check " in command:
        state = "mistakes"  # in the reader's files, as the page shows
    elif state == "ok" and process.returncode:
        state = f"exit code {process.returncode}"
    elif "Traceback" in errors and not command.startswith("torchrun"):  # torchrun prints one on Ctrl-C
        state = "traceback"
    return Outcome(state, time.monotonic() - start, output, errors)


def reader_environment(clone: Path, home: Path) -> dict[str, str]:
    """An environment without this process's Python, in which the clone's .venv comes first on the path."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "XDG_"))}
    path = f"{clone / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    return clean | {"HOME": str(home), "PATH": path, "PIP_CACHE_DIR": str(Path.home() / ".cache/pip")}


def share_packages(clone: Path, packages: Path) -> None:
    """Make a .venv in the clone that uses the packages and scripts of another environment."""
    subprocess.run([packages / "bin/python", "-m", "venv", clone / ".venv"], check=True)
    (site_packages,) = clone.glob(".venv/lib/python*/site-packages")
    (shared,) = packages.resolve().glob("lib/python*/site-packages")
    (site_packages / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")
    for script in (packages / "bin").iterdir():
        if not (clone / ".venv/bin" / script.name).exists() and not script.name.startswith(("python", "activate")):
            (clone / ".venv/bin" / script.name).symlink_to(script.resolve())


def error_lines(output: str) -> list[str]:
    """Up to three different error lines of a failed command, or its last lines if there are none."""
    lines = output.splitlines()
    return list(dict.fromkeys(line for line in lines if ": error: " in line))[:3] or lines[-8:]


def record(command: str, output: str) -> None:
    topic = shlex.split(command)[3]
    (ROOT / "benchmarks" / f"{topic}.txt").write_text(f"$ {command}\n{output}", encoding="utf-8")


def walk(page: str, text: str, options: argparse.Namespace) -> int:
    """Type all commands of one page in a fresh clone. Returns how many failed."""
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        clone, home = Path(scratch) / "ropewalk", Path(scratch) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        if options.packages is not None:
            share_packages(clone, options.packages)
        environment = reader_environment(clone, home)
        print(f"{page}, in a fresh clone")
        for command in commands((clone / page).read_text(encoding="utf-8")):
            recorded = options.record and any(f"study {topic} " in command for topic in RECORDED)
            supply(command, clone, text)
            drawn = f" --plot {ROOT}/docs/images/{shlex.split(command)[3]}.png" if recorded else ""
            done = enter(command + drawn, clone, environment, options.train_seconds)
            print(f"{done.state:8} {done.seconds:6.0f} s   {command}", flush=True)
            if done.failed:
                failures += 1
                print("\n".join(f"    {line}" for line in error_lines(done.output + done.errors)), flush=True)
            elif recorded:
                record(command, done.output)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=PAGES, metavar="PAGE")
    parser.add_argument("--train_seconds", type=float, default=200.0, help="training beyond this is stopped (Ctrl-C)")
    parser.add_argument("--text", type=Path, help="what stands in for the reader's own text")
    parser.add_argument("--packages", type=Path, help="a virtual environment whose packages are used")
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the outputs and pictures of attention, extrapolate and endless to benchmarks/ and docs/images/",
    )
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8") if options.text else "\n\n".join(topics.values())
    failures = sum(walk(page, text, options) for page in options.pages)
    sys.exit(f"{failures} commands failed" if failures else 0)


if __name__ == "__main__":
    main()
