"""Outputs, quoted code, pictures, links and numbers of the walk through RoPE, in English and Chinese.

The outputs of commands are compared word by word and number by number; those of commands that need a trained model are
compared with a record in benchmarks/, which is translated for a Chinese page. A number in the text must occur in an
output, quoted line or example of its step, or of a step that its paragraph links to. The sentence around it is not
checked.

docs/refresh.py reads the pages, runs their commands, and updates their outputs. In a block, "..." stands for lines left
out.
"""

import doctest
import itertools
import re
import shlex
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from docs.refresh import (
    ENGLISH,
    FENCE,
    IN_CHINESE,
    PAGES,
    REPO,
    blocks,
    commands,
    first_of_each_topic,
    output,
    picture_of,
)  # fmt: skip

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
NUMBER = re.compile(r"(?<![\w.^])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w^])")
SMALL = {0.0, 1.0, 2.0, -1.0}  # numbers of formulas in a sentence, for example 2i + 1
# Digits that are part of a name, a symbol or a reference, and so need no evidence.
NAMES = re.compile(
    r"https://[^\s)]+|arXiv:[\d.]+|\([\w.-]*#\S*?\)|\(images/\S*?\)|\[\d+\]|[a-z]+ \d+\]"
    r"|ChatGLM\d?-\d+\w*|ChatGLM\d|Llama \d(?:\.\d)?(?: \dB)?|GPT-\d|Qwen\d|T5|float\d+|complex\d+"
    r"|section [\d.]+|[Ss]teps?\s\d+(?: (?:and|to) \d+)?|[Vv]iew \d+|[Mm]istakes? \d+"
    r"|第 ?[\d.]+ ?[至、]? ?\d* ?[节步]|视图 ?\d+|错误 ?\d+"
    r"|^\d+\. |^\| \d+\. |[xqk]\d|\d x \d|\d × \d|D/4|-?[24]i/D",
    re.MULTILINE,
)


def lines_match(shown: str, printed: str) -> bool:
    """Whether words are equal, and numbers too, except the last digit and rounding errors."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed)):
        x, y = (float(text.replace("−", "-")) for text in (a, b))
        digits = len(a.partition(".")[2]) if "e" not in a else 0
        rounding_error = "e-0" in a and 0.1 < x / (y or 1) < 10
        tolerance = 1.5 * 10.0**-digits if digits else 0.0
        if not rounding_error and abs(x - y) > tolerance:
            return False
    return True


@each_page
def test_commands_print_what_the_page_shows(page):
    assert any(shown for _, shown in commands(page))
    for command, shown in commands(page):
        if not shown:
            continue
        assert shown != ["..."], f"{command}: run python docs/refresh.py to fill the block"
        rest = iter(output(command))
        for line in shown:
            if line != "...":
                assert any(lines_match(line, printed) for printed in rest), f"{command}: {line}"


@each_page
def test_quoted_lines_are_in_the_code(page):
    for quote in blocks(page, "python"):
        first, *lines = quote.splitlines()
        source = (REPO / first.removeprefix("# ")).read_text(encoding="utf-8").splitlines()
        searched = 0  # lines of the file before this one are already quoted
        for omitted, group in itertools.groupby(lines, lambda line: line.strip() == "..."):
            part = list(group)
            if omitted:
                continue
            places = [i for i in range(searched, len(source)) if source[i : i + len(part)] == part]
            assert places, f"{first} has no such lines after line {searched}:\n" + "\n".join(part)
            searched = places[0] + len(part)


@each_page
def test_every_number_in_the_text_occurs_in_an_output_of_its_step_or_of_a_linked_step(page):
    for name, text in steps(page).items():
        prose = FENCE.sub("\n\n", text)
        prose = re.sub(r"^#+ .*$|^ {4}.*$", "", prose, flags=re.MULTILINE)  # headings, formulas
        for paragraph in re.split(r"\n\n|\n(?=\* )", prose):
            linked = re.findall(r"\]\(([\w.-]*)#([^)]*)\)", paragraph)
            sources = [(page, name), *((page.parent / (file or page.name), anchor) for file, anchor in linked)]
            allowed = SMALL.union(*(numbers_of_section(*source) for source in sources))
            for number in NUMBER.findall(NAMES.sub("", paragraph).replace("%", "")):
                value = float(number.replace("−", "-"))
                found = any(abs(value - other) < 1e-9 for other in allowed)
                assert found, f"{page.name}, {name}: {number} is in no output of this step or a linked one: {paragraph}"


def steps(page: Path) -> dict[str, str]:
    """The text of each section, by the anchor of its heading."""
    before, *sections = re.split(r"^## (?=.)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": before} | {slug(text.partition("\n")[0]): text for text in sections}


def headings(page: Path) -> set[str]:
    """The anchors of all headings of a page."""
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def numbers_of_section(page: Path, anchor: str) -> set[float]:
    """All numbers in the fenced blocks of a section, also as percentages."""
    text = steps(page).get(anchor, "")
    found = {float(n.replace("−", "-")) for _, block in FENCE.findall(text) for n in NUMBER.findall(block)}
    return found | {100 * value for value in found}


@each_page
def test_examples_print_what_the_page_shows(page):
    text = "\n".join(blocks(page, "pycon"))
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, None, None)
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples).failed == 0


@each_page
def test_pictures_are_drawn_from_the_tables_beside_them(page):
    compared = set()
    for command, shown in first_of_each_topic(page):
        file = picture_of(page, shlex.split(command)[3])
        if f"(images/{file.name})" not in page.read_text(encoding="utf-8"):
            continue
        compared.add(file.name)
        drawn = iter(description(file).splitlines())
        for line in shown:
            if line != "...":
                assert any(lines_match(line, other) for other in drawn), line
    drawn_by_hand = {"network.svg", "network.zh.svg"}
    assert compared == set(re.findall(r"images/([\w.]+)", page.read_text(encoding="utf-8"))) - drawn_by_hand


def description(picture: Path) -> str:
    """The printed report that is stored in a picture."""
    text = picture.read_text(encoding="utf-8")
    return unescape(re.search(r"<dc:description>(.*?)</dc:description>", text, re.DOTALL)[1])


@pytest.mark.parametrize(
    "page", [*REPO.glob("*.md"), *REPO.glob("[bd]*/*.md")], ids=lambda page: str(page.relative_to(REPO))
)
def test_links_and_pictures_exist(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#?([^)]*)\)", text):
        file = page.parent / (target or page.name)
        assert file.exists(), target
        assert "images" not in target or file.stat().st_size < 350_000
        assert not anchor or anchor in headings(file), anchor


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_both_languages_have_the_same_commands_quotes_and_pictures(page):
    chinese = page.with_suffix(".zh.md")
    for (command, shown), (command_zh, shown_zh) in zip(commands(page), commands(chinese), strict=True):
        assert command == command_zh.removesuffix(IN_CHINESE)
        assert [line == "..." for line in shown] == [line == "..." for line in shown_zh], command
    assert blocks(page, "python") == blocks(chinese, "python")
    assert len(blocks(page, "pycon")) == len(blocks(chinese, "pycon"))
    images, images_zh = (re.findall(r"images/(\w+)", each.read_text(encoding="utf-8")) for each in (page, chinese))
    assert images == images_zh
