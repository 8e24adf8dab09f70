"""The page holds what it says: outputs, quoted lines, pictures, links, and each number in the text between.

``python tests/test_docs_rope.py`` puts what the commands print now, and what the code says now, into both pages, and
with ``--pictures`` draws the pictures of commands that need no trained model. A block that shows only "..." is filled;
a quote keeps its ends, and "..." in it stands for lines that are left out.
"""

import contextlib
import difflib
import importlib.util
import io
import itertools
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
RECORDED = {topic: REPO / "benchmarks" / f"{topic}.txt" for topic in ("attention", "extrapolate", "endless")}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.^])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w^])")
# Digits that are part of a name, a symbol or a reference, and so claim nothing.
NAMES = re.compile(
    r"arXiv:\S+|ChatGLM\d?-\d+\w*|ChatGLM\d|Llama \d|section [\d.]+|[Ss]tep \d+|step \d+ |第 ?[\d.]+ ?[节步]"
    r"|[xqk]\d|2-D|10000\^\(.*?\)|float\d+|complex\d+|T5|GPT-2|\(#\S*?\)|\(images/\S*?\)|-?[24]i/D"
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
    from model.scripts import study

    words = shlex.split(command)[1:]
    assert words[0] == "study.py"
    if words[1] in RECORDED:
        first, *rest = RECORDED[words[1]].read_text(encoding="utf-8").splitlines()
        assert first == f"$ {command}"
        return rest
    argv, sys.argv = sys.argv, words
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
        assert shown != ["..."], f"{command}: run python tests/test_docs_rope.py to fill the block"
        rest = iter(output(command))
        for line in shown:
            if line != "...":
                assert any(same(line, printed, " forms" in command) for printed in rest), f"{command}: {line}"
    assert ran >= 9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_without_output_can_be_typed(page):
    from model.cli import read_flags
    from model.scripts import study
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
        source = (REPO / first.removeprefix("# ")).read_text(encoding="utf-8").splitlines()
        done = 0
        for gap, group in itertools.groupby(lines, lambda line: line.strip() == "..."):
            part = list(group)
            if gap:
                continue
            places = [i for i in range(done, len(source)) if source[i : i + len(part)] == part]
            assert places, f"{first} has no such lines after line {done}:\n" + "\n".join(part)
            done = places[0] + len(part)


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
        assert file.suffix != ".png" or file.stat().st_size < 250_000
    slugs = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for anchor in re.findall(r"\]\(#([^)]*)\)", text):
        assert anchor in slugs, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_walk_types_every_command_of_the_page(page):
    spec = importlib.util.spec_from_file_location("walk", REPO / "benchmarks" / "walk.py")
    walk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(walk)
    assert [*walk.commands(page.read_text(encoding="utf-8"))] == [command for command, _ in commands(page)]


def test_both_pages_show_the_same():
    english, chinese = ([(c, s) for c, s in commands(page)] for page in PAGES)
    assert english == chinese
    code, code_zh = (blocks(page, "python") for page in PAGES)
    assert code == code_zh
    images, images_zh = (re.findall(r"images/\w+\.png", page.read_text(encoding="utf-8")) for page in PAGES)
    assert images == images_zh


def test_refreshing_follows_changed_lines_and_leaves_out_what_was_left_out():
    printed = ["head", "a.py:3  x.float()  +1.0", "a.py:4  x.sum()  +2.0", "b.py:9  y  +3.0", "b.py:9  y  +3.0", "end"]
    shown = ["head", "...", "a.py:7  x.double().sum()  +2.5", "b.py:1  y  +3.0", "c.py:1  gone"]
    assert present(shown, printed) == ["head", "...", "a.py:4  x.sum()  +2.0", "b.py:9  y  +3.0"]
    assert present(["..."], printed) == present(["head", "old"], printed) == printed


def test_refreshing_a_quote_follows_the_code():
    now = "# model/rope.py\n    if dim % 2:\n    ...\n    length = 1.0\n    if scaling is not None:\n"
    old = now.replace("dim % 2", "dim % 2 != 0").replace("length = 1.0", "length = 1")
    assert quoted_now(old) == quoted_now(now) == now
    with pytest.raises(ValueError, match="no lines like 'nothing of the kind'"):
        quoted_now("# model/rope.py\nnothing of the kind\n")


def refresh(page: Path, pictures: bool) -> None:
    """Put the present output and the present code into a page; what cannot be had is left and said on stderr.

    A picture is drawn by the same run as its table. ``benchmarks/walk.py --record`` draws those of trained models.
    """
    text = page.read_text(encoding="utf-8")
    for command, shown in commands(page):
        if not shown:
            continue
        try:
            topic = shlex.split(command)[2]
            drawn = pictures and topic not in RECORDED and f"(images/{topic}.png)" in text
            plot = f" --plot {shlex.quote(str(page.parent / 'images' / f'{topic}.png'))}" if drawn else ""
            new = present(shown, output(command + plot))
        except ValueError as error:
            print(f"{page.name}: {command}: {error}; left as it is", file=sys.stderr)
            continue
        before, after = ("\n".join([f"$ {command}", *lines]) + "\n" for lines in (shown, new))
        text = text.replace(before, after)
    for quote in blocks(page, "python"):
        try:
            text = text.replace(quote, quoted_now(quote))
        except ValueError as error:
            print(f"{page.name}: {error}; left as it is", file=sys.stderr)
    page.write_text(text, encoding="utf-8")


def present(shown: list[str], printed: list[str]) -> list[str]:
    """What to show of ``printed``: all of it, or, where ``shown`` leaves lines out, those like the ones it has."""
    if "..." not in shown or shown == ["..."]:
        return printed
    kept = alike([line for line in shown if line != "..."], printed)
    new: list[str] = []
    for place, following in zip(kept, [*kept[1:], None]):
        new.append(printed[place])
        left_out = following is not None and following > place + 1
        new += ["..."] * (left_out or (following is None and shown[-1] == "..."))
    return new


def alike(wanted: list[str], lines: list[str]) -> list[int]:
    """For each wanted line the index of the one most like it, in order, none used twice; without one alike, none."""
    best: list[list[tuple[float, list[int]]]] = [[(0.0, [])] * (len(lines) + 1) for _ in range(len(wanted) + 1)]
    for i, want in enumerate(wanted):
        for j, line in enumerate(lines):
            ratio = difflib.SequenceMatcher(None, want, line, autojunk=False).ratio()
            total, taken = best[i][j]
            taking = (total + ratio, [*taken, j]) if ratio > 0.6 else (0.0, [])
            best[i + 1][j + 1] = max(best[i][j + 1], best[i + 1][j], taking, key=lambda found: found[0])
    return best[-1][-1][1]


def quoted_now(quote: str) -> str:
    """The quote as the code has it now: each run of lines from the line like its first to the line like its last."""
    first, *lines = quote.splitlines()
    source = (REPO / first.removeprefix("# ")).read_text(encoding="utf-8").splitlines()
    new, done = [first], 0
    for gap, group in itertools.groupby(lines, lambda line: line.strip() == "..."):
        part = list(group)
        if gap:
            new += part
            continue
        ends = alike([part[0], part[-1]] if len(part) > 1 else part, source[done:])
        if len(ends) != min(len(part), 2):
            raise ValueError(f"{first} has no lines like {part[0].strip()!r} .. {part[-1].strip()!r}")
        new += source[done + ends[0] : done + ends[-1] + 1]
        done += ends[-1] + 1
    return "\n".join(new) + "\n"


if __name__ == "__main__":
    for path in PAGES:
        refresh(path, pictures="--pictures" in sys.argv[1:])
