"""The walk holds what it says: outputs, quoted lines, pictures, links, and each number in the text between.

``python tests/test_docs_rope.py`` puts what the commands print now into the pages.
"""

import contextlib
import difflib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO))
PAGES = [REPO / "docs" / name for name in ("rope.md", "rope.zh.md")]
RECORDED = {"attention": REPO / "benchmarks/attention.txt", "extrapolate": REPO / "benchmarks/extrapolate.txt"}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.^])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w^])")
# Digits that are part of a name, a symbol or a reference, and so claim nothing.
NAMES = re.compile(
    r"arXiv:\S+|ChatGLM\d?-\d+\w*|ChatGLM\d|Llama \d|section [\d.]+|[Ss]tep \d+|step \d+ |第 ?[\d.]+ ?[节步]"
    r"|[xqk]\d|2-D|10000\^\(.*?\)|float\d+|complex\d+|T5|GPT-2|\(#\S*?\)|\(images/\S*?\)|-?2i/D"
)


def blocks(page: Path, kind: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == kind]


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command of the page with the lines it shows below it."""
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
    """What a command prints: run here, or recorded where a model must be trained first."""
    import study

    script, topic, *words = shlex.split(command)[1:]
    assert script == "study.py"
    if topic in RECORDED:
        first, *rest = RECORDED[topic].read_text(encoding="utf-8").splitlines()
        assert first == f"$ {command}"
        return rest
    argv, sys.argv = sys.argv, [script, topic, *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            study.main()
    finally:
        sys.argv = argv
    return text.getvalue().splitlines()


def same(shown: str, printed: str, loose: bool) -> bool:
    """Equal words, and numbers equal but for the last digit, rounding noise, and (``loose``) times."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed)):
        x, y = (float(text.replace("−", "-")) for text in (a, b))
        digits = len(a.partition(".")[2]) if "e" not in a else 0
        noise = "e-0" in a and 0.1 < x / (y or 1) < 10
        time = loose and re.fullmatch(r"\d+\.\d\d", a)
        if not (noise or time or abs(x - y) <= 1.5 * 10.0**-digits * (digits > 0)):
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_the_page_shows(page):
    ran = 0
    for command, shown in commands(page):
        if not shown:
            continue
        ran += 1
        rest = iter(output(command))
        for line in shown:
            if line != "...":
                assert any(same(line, printed, " forms" in command) for printed in rest), f"{command}: {line}"
    assert ran >= 9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_without_output_can_be_typed(page):
    import study
    from model.cli import read_flags
    from model.study import TOPICS

    for command, shown in commands(page):
        words = shlex.split(command)
        if not shown and "study.py" in words and "--help" not in words:
            topic = words[2]
            read_flags(study.parser(topic).parse_args(words[3:]), TOPICS[topic])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_lines_are_in_the_code(page):
    quotes = blocks(page, "python")
    assert len(quotes) >= 6
    for quote in quotes:
        first, *lines = quote.splitlines()
        source = iter((REPO / first.removeprefix("# ")).read_text(encoding="utf-8").splitlines())
        for line in lines:
            assert line in source, f"{first}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_in_the_text_is_in_an_output_or_a_quoted_line(page):
    text = page.read_text(encoding="utf-8")
    prose = FENCE.sub("", text)
    prose = re.sub(r"^#+ .*$|^ {4}.*$|^\d+\. \[", "", prose, flags=re.MULTILINE)  # headings, formulas, contents
    proof = {float(n.replace("−", "-")) for _, block in FENCE.findall(text) for n in NUMBER.findall(block)}
    proof |= {100 * value for value in proof}
    for number in NUMBER.findall(NAMES.sub("", prose).replace("%", "")):
        value = float(number.replace("−", "-"))
        known = any(abs(value - other) < 1e-9 for other in proof)
        assert known, f"{page.name} says {number}, no output on the page does"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_and_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#][^)]*)\)", text):
        file = page.parent / target
        assert file.is_file(), target
        assert file.suffix != ".png" or file.stat().st_size < 100_000
    slugs = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for anchor in re.findall(r"\]\(#([^)]*)\)", text):
        assert anchor in slugs, anchor


def test_both_pages_show_the_same():
    english, chinese = ([(c, s) for c, s in commands(page)] for page in PAGES)
    assert english == chinese
    code, code_zh = (blocks(page, "python") for page in PAGES)
    assert code == code_zh
    images, images_zh = (re.findall(r"images/\w+\.png", page.read_text(encoding="utf-8")) for page in PAGES)
    assert images == images_zh


def refresh(page: Path) -> None:
    """Replace what is shown by the present output; of a part, each line by the one that is most like it."""
    text = page.read_text(encoding="utf-8")
    for command, shown in commands(page):
        if shown:
            printed = output(command)
            new = printed
            if len(shown) != len(printed):
                new = [
                    line if line == "..." else (difflib.get_close_matches(line, printed, 1, 0.3) or [line])[0]
                    for line in shown
                ]
            before, after = ("\n".join([f"$ {command}", *lines]) for lines in (shown, new))
            text = text.replace(before, after)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for path in PAGES:
        refresh(path)
