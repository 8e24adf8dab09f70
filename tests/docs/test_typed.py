"""What a page tells the reader to type is typed: each line of its shell blocks, and each `python ...` in its text.

Every page begins in its own copy of the repository in which `make demo` has been typed. Its lines are typed in their
order, those in the text after the blocks of their section, because a sentence often announces what a block prepares.
Python blocks are run between them, or saved if the sentence before says "in a file `name.py`". A block without a
language is one of the shell, too; outputs are marked as ```text. Of a page in Chinese the lines are typed that its
English page does not have. The reader's own files are made when a line names them, and models of the Hub are found in
its cache. shorter.py makes minutes and steps short.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from hub import put_into_cache, save_published

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.name == "nt", reason="the lines are those of a POSIX shell"),
    pytest.mark.skipif(not all(map(shutil.which, ("git", "make"))), reason="needs git and make"),
]

REPO = Path(__file__).parents[2]
PAGES = sorted([*REPO.glob("README*.md"), *REPO.glob("docs/*.md")])
LANGUAGES = [list(group) for _, group in groupby(PAGES, lambda page: page.name.partition(".")[0])]  # English first
SHELL = {"", "sh", "bash", "shell", "console"}
SHORTER = Path(__file__).with_name("shorter.py")
SECONDS = 300  # for one line

# The beginnings of lines that are not typed, each with the reason
NOT_TYPED = {
    "git clone": "each page begins in a copy",
    "make demo": "it is typed before each page",
    "make test": "it would run these tests",
    "make lint": ".ci/run runs it",
    "python3 -m venv": "the packages would have to be installed again",
    "pip install": "it needs a network",
    "python convert_hf_to_gguf.py": "a program of llama.cpp",
}


class Line(NamedTuple):
    number: int
    kind: str  # "shell", "python", or the name of a file in which the reader saves a block
    text: str

    def words(self) -> tuple[str, ...]:
        """What is equal if the same is typed: a command without its comment."""
        return self.kind, *((self.kind == "shell" and words_of(self.text)) or [self.text])


def lines_to_type(page: str) -> list[Line]:
    """What a page tells the reader to type, in order."""
    found: list[Line] = []
    for section in re.finditer(r"(?:\A|^## ).*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        first = page.count("\n", 0, section.start()) + 1
        found += [line._replace(number=first + line.number) for line in lines_of_section(section[0])]
    return found


def lines_of_section(text: str) -> Iterator[Line]:
    """The lines of one section, numbered from 0: those of its blocks, then those in its text."""
    prose = text
    for block in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        number = text.count("\n", 0, block.start()) + 1
        language, content = block[2], textwrap.dedent(block[3])
        if language in SHELL:
            yield from shell_lines(number, content, prompt=language == "console")
        elif language == "python" and not content.startswith("# model/"):
            before = text[: block.start()].rstrip().rpartition("\n\n")[2]
            file = re.search(r"in\s+a\s+file\s+`(\w+\.py)`", before)
            yield Line(number, file[1] if file else "python", content)
        prose = prose.replace(block[0], "\n" * block[0].count("\n"))
    for span in re.finditer(r"`((?:python|make) [^`]+)`", prose):
        yield Line(prose.count("\n", 0, span.start()), "shell", " ".join(span[1].split()))


def shell_lines(number: int, content: str, prompt: bool) -> Iterator[Line]:
    """The commands of a block; a backslash or an open quote goes on in the next line. In a console "$ " begins one."""
    command, began = "", number
    for place, line in enumerate(content.splitlines(), number):
        if not command:
            if prompt and not line.startswith("$ "):
                continue
            began = place
        command += line.removeprefix("> " if command else "$ ") if prompt else line
        if command.endswith("\\") or words_of(command) is None:
            command += "\n"
            continue
        if words_of(command):
            yield Line(began, "shell", command)
        command = ""
    if command:  # reported as wrong by the shell
        yield Line(began, "shell", command)


def words_of(command: str) -> list[str] | None:
    """The words of a command without its comment; None if a quote is open."""
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return None


def sentences(count: int) -> list[str]:
    """Different sentences, more of them than a few seconds of training see ten times."""
    strands, places = ("hemp", "sisal", "cotton", "wire"), ("lane", "yard", "loft", "shed", "harbour")
    return [
        f"Rope {n} has {n % 7} strands of {strands[n * n % 4]}; it lies in the {places[n // 3 % 5]} for {n * n} days."
        for n in range(count)
    ]


def conversation(n: int, sentence: str) -> str:
    """A row whose length differs from that of the others."""
    question = {"role": "user", "content": f"What is rope {n}?"}
    return json.dumps({"messages": [question, {"role": "assistant", "content": " ".join([sentence] * (n % 5 + 1))}]})


def make_reader_file(path: Path) -> None:
    """Make a text of the reader's, in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.suffix:
        make_reader_file(path / "one.txt")
        make_reader_file(path / "two.txt")
        return
    rows = sentences(2500)
    if ".jsonl" in path.suffixes and "chat" in path.name:
        rows = [conversation(n, sentence) for n, sentence in enumerate(rows[:200])]
    elif ".jsonl" in path.suffixes:
        rows = [json.dumps({"text": sentence}) for sentence in rows]
    elif path.suffix == ".csv":
        rows = ["text", *(f'"{sentence}"' for sentence in rows)]
    content = ("\n".join(rows) + "\n").encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


SETTINGS = """\
data = ["my.txt"]
dim = 32
n_layers = 1
n_heads = 2
max_seq_len = 32
max_steps = 20
"""


class Desk(NamedTuple):
    """Where a page is typed: a copy of the repository, and what the shell has in its environment."""

    directory: Path
    environment: dict[str, str]
    published: Path  # the files of a model as the Hub has them

    def prepare(self, command: str) -> None:
        """Make what the reader has and the command names: texts, a checkpoint, settings, a model of the Hub."""
        words = words_of(command) or []
        for place, word in enumerate(words):
            path = self.directory / word
            if path.exists() or word.startswith("runs/"):
                continue
            if place and words[place - 1] in ("--data", "--prompt_file"):
                make_reader_file(path)
            elif word == "my.toml":
                path.write_text(SETTINGS, encoding="utf-8")
                make_reader_file(self.directory / "my.txt")
            elif word in ("path/to/checkpoint", "SRC"):
                shutil.copytree(self.published, path)
            elif re.fullmatch(r"[\w-]*[A-Z][\w-]*/[\w.-]+", word):  # paths of this project are in lower case
                put_into_cache(Path(self.environment["HF_HOME"]), word, self.published)

    def type(self, line: Line) -> str | None:
        """Type a line; returns what went wrong."""
        if line.kind != "shell":
            file = self.directory / (line.kind if line.kind.endswith(".py") else "block.py")
            file.write_text(line.text, encoding="utf-8")
        if line.kind.endswith(".py"):
            return None
        command = "python block.py" if line.kind == "python" else line.text
        self.prepare(command)
        try:
            done = subprocess.run(
                command, shell=True, cwd=self.directory, env=self.environment, input=b"What is rope 3?\n",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return f"took more than {SECONDS} seconds:\n{last_lines(error.stdout)}"
        # a check of functions that are not right ends with 1
        if done.returncode == (1 if "-m study check" in command else 0):
            return None
        return f"ended with {done.returncode}:\n{last_lines(done.stdout)}"


def last_lines(output: bytes | None) -> str:
    return "\n".join(f"    {line}" for line in (output or b"").decode(errors="replace").splitlines()[-12:])


@pytest.fixture(scope="module")
def new_desk(tmp_path_factory) -> Callable[[], Desk]:
    """``new_desk()`` is a copy of the repository, with the files that git knows or would know, after `make demo`."""
    home = tmp_path_factory.mktemp("typed")
    clone, programs, published = home / "clone", home / "bin", home / "published"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=REPO, capture_output=True
    )
    if listed.returncode:
        pytest.skip("needs a clone made by git")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (REPO / name).is_file():  # not if it has been removed since the last commit
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, clone / name)
    save_published(published)

    shorter = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -SE {shlex.quote(str(SHORTER))} "$@"\n'
    programs.mkdir()
    (clone / ".venv" / "bin").mkdir(parents=True)
    for file in (programs / "python", programs / "python3", clone / ".venv" / "bin" / "python"):
        file.write_text(shorter, encoding="utf-8")
        file.chmod(0o755)
    for name in ("pyvenv.cfg", "run", "test"):  # so that make installs nothing
        (clone / ".venv" / name).touch()
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HF_HOME": str(home / "hf"),
        "PIP_NO_INDEX": "1",
        "OMP_NUM_THREADS": "1",
    }
    for name in ("PYTHONPATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        environment.pop(name, None)
    wrong = Desk(clone, environment, published).type(Line(0, "shell", "make demo"))
    assert wrong is None, f"make demo {wrong}"

    def copy(runs: Path | None = None) -> Desk:
        directory = Path(tempfile.mkdtemp(dir=home)) / "page"
        shutil.copytree(clone, directory)
        if runs:
            shutil.rmtree(directory / "runs")
            shutil.move(runs, directory / "runs")
        return Desk(directory, environment, published)

    return copy


@pytest.mark.parametrize("pages", LANGUAGES, ids=lambda pages: pages[0].name)
def test_each_line_of_a_page_works(pages, new_desk):
    desk, typed, failed = new_desk(), set(), []
    for page in pages:
        if typed:  # another reader, who has the models
            desk = new_desk(runs=desk.directory / "runs")
        for line in lines_to_type(page.read_text(encoding="utf-8")):
            if line.text.startswith(tuple(NOT_TYPED)) or line.words() in typed:
                continue
            typed.add(line.words())  # what pages tell twice is typed once
            wrong = desk.type(line)
            if wrong:
                failed.append(f"{page.relative_to(REPO)}:{line.number}: {line.text.strip()}\n  {wrong}")
    assert not failed, "\n" + "\n".join(failed)


def test_every_line_that_is_not_typed_is_on_a_page():
    typed = [line.text for page in PAGES for line in lines_to_type(page.read_text(encoding="utf-8"))]
    assert [beginning for beginning in NOT_TYPED if not any(text.startswith(beginning) for text in typed)] == []
