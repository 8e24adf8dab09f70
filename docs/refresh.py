"""Write the present outputs of the commands of the walk into its pages, English and Chinese.

``python docs/refresh.py`` updates the blocks that leave nothing out ("..." stands for lines left out), and fills a
block that shows only "..."; with ``--pictures`` it also draws the pictures of commands that need no trained model. What
needs a trained model is recorded in benchmarks/ by hand, in English, and translated for a Chinese page.
"""

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO))
from study.__main__ import main as study
from study.topic import Report, Table

IN_CHINESE = " --zh"  # the end of the commands on Chinese pages
ENGLISH = [REPO / "docs" / f"{name}.md" for name in ("rope", "rope-models", "encodings")]
PAGES = [*ENGLISH, *(page.with_suffix(".zh.md") for page in ENGLISH)]
RECORDED = {
    topic: REPO / "benchmarks" / f"{topic}.txt" for topic in ("angles", "whatif", "attention", "extrapolate", "endless")
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of one kind, for example "console"."""
    return [text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == kind]


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command of the page with the output lines shown below it."""
    for block in blocks(page, "console"):
        shown: list[str] = []
        command = ""
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, shown
                command, shown = line[2:], []
            else:
                shown.append(line)
        yield command, shown


@cache
def output(command: str) -> list[str]:
    """Run a command and return its output lines; for a command that needs a trained model, return the recorded ones."""
    python, m, *words = shlex.split(command)
    assert (python, m, words[0]) == ("python", "-m", "study")
    if words[1] in RECORDED:
        first, *rest = RECORDED[words[1]].read_text(encoding="utf-8").splitlines()
        assert first == f"$ {command.removesuffix(IN_CHINESE)}"
        if not command.endswith(IN_CHINESE):
            return rest
        tables = "\n".join(rest).split("\n\n")  # an empty line is between two
        return str(Report([read_table(table.splitlines()) for table in tables]).in_chinese()).splitlines()
    argv, sys.argv = sys.argv, words
    try:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            study()
    finally:
        sys.argv = argv
    return text.getvalue().splitlines()


def read_table(lines: list[str]) -> Table:
    """The table with these lines: two spaces or more are between the cells of a row, and none are in a note."""
    title, *rest = lines
    columns, *rows = [re.split(r" {2,}", line.strip()) for line in rest if "  " in line]
    return Table(title, columns, rows, [line for line in rest if "  " not in line])


def picture_of(page: Path, topic: str) -> Path:
    """The picture of a topic, in Chinese for a Chinese page."""
    language = ".zh" if page.name.endswith(".zh.md") else ""
    return page.parent / "images" / f"{topic}{language}.svg"


def first_of_each_topic(page: Path) -> Iterator[tuple[str, list[str]]]:
    """For each topic, the first command with what is shown of its output, which the picture of the topic shows."""
    seen = set()
    for command, shown in commands(page):
        topic = shlex.split(command)[3] if "-m study" in command else ""
        if topic and topic not in seen:
            seen.add(topic)
            yield command, shown


def refresh(page: Path, pictures: bool) -> None:
    """Write the present outputs into the blocks of a page that leave nothing out, and draw its pictures.

    The same run prints a table and draws its picture.
    """
    text = page.read_text(encoding="utf-8")
    first = [command for command, _ in first_of_each_topic(page)]
    for command, shown in commands(page):
        if "-m study" not in command:
            continue
        topic = shlex.split(command)[3]
        picture = picture_of(page, topic)
        drawn = pictures and topic not in RECORDED and command in first and f"(images/{picture.name})" in text
        if not shown and not drawn:
            continue
        plot = f" --plot {shlex.quote(str(picture))}" if drawn else ""
        printed = output(command + plot)
        if shown == ["..."] or (shown and "..." not in shown):
            before, after = ("\n".join([f"$ {command}", *lines]) + "\n" for lines in (shown, printed))
            text = text.replace(before, after)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pictures", action="store_true", help="also redraw the pictures")
    flags = parser.parse_args()
    for path in PAGES:
        refresh(path, flags.pictures)
