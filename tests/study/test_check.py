"""study check: right functions are right in every style, and mistakes are found and named."""

import re
import shlex
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from study import check, chinese
from study.__main__ import main
from study.check import judge_all
from study.check.compare import Finding, Mistake
from study.check.judge import EXERCISES, Verdict, name_and_reason
from study.check.reader import Reader
from study.chinese import in_chinese
from study.exercise import exercise

REPO = Path(__file__).parents[2]
SOLUTIONS = REPO / "tests/solutions"
STYLES = {name: (SOLUTIONS / f"{name}.py").read_text(encoding="utf-8") for name in ("complex", "real", "halves")}
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support is experimental")

TABLE, RESHAPE, ROTATE, TO_NEIGHBOURS, TO_HALVES, MASK, CACHE, ATTEND = EXERCISES


def changes(name: str) -> list[tuple[str, str, str, str, str]]:
    """(title, function, style, old, new) of each change to a right solution in a file of tests/solutions.

    A change begins with ``@@ title | function style``; its ``-`` lines are replaced by its ``+`` lines.
    """
    parsed = []
    for block in (SOLUTIONS / name).read_text(encoding="utf-8").split("@@ ")[1:]:
        head, *lines = block.splitlines()
        title, _, rest = head.rpartition(" | ")
        function, style = rest.split()
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        parsed.append((title, function, style, old, new))
    return parsed


def changed(style: str, old: str, new: str) -> str:
    text = STYLES[style]
    for before, after in zip(old.split("\n...\n"), new.split("\n...\n"), strict=True):
        assert before in text, f"{style} has no {before!r}"
        text = text.replace(before, after)
    return text


def judged(tmp_path: Path, text: str) -> dict[str, Verdict]:
    """The verdicts on a file of this text, judged in this process."""
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    files = Reader([path])
    assert not files.problems
    return judge_all(files).verdicts


def names(verdict: Verdict) -> str:
    return ", and ".join(name_and_reason(mistake, str)[0] for mistake in verdict.mistakes) or "-"


@pytest.mark.parametrize("style", STYLES)
def test_a_right_solution_is_right_in_every_style(tmp_path, style):
    found = judged(tmp_path, STYLES[style])
    layout = "halves" if style == "halves" else "right"
    written = [name for name in EXERCISES if f" {name}(" in STYLES[style] or f" {name}:" in STYLES[style]]
    expected = dict.fromkeys(written, "right") | {ROTATE: layout, ATTEND: layout}
    assert {name: verdict.outcome for name, verdict in found.items()} == expected
    assert not any(verdict.finding or verdict.problem for verdict in found.values())


@pytest.mark.parametrize(("title", "function", "style", "old", "new"), changes("right.diff"))
def test_a_right_function_may_be_written_in_other_ways(tmp_path, title, function, style, old, new):
    found = judged(tmp_path, changed(style, old, new))
    assert function in found
    assert all(verdict.is_good for verdict in found.values()), (title, found)


def blocks(name: str) -> list[tuple[str, str]]:
    """(title, text) of each block of a file of tests/solutions."""
    texts = (SOLUTIONS / name).read_text(encoding="utf-8").split("\n@@ ")[1:]
    return [tuple(text.split("\n", 1)) for text in texts]


@pytest.mark.parametrize(("name", "text"), blocks("published.txt"))
def test_the_forms_of_published_codebases_are_right(tmp_path, name, text):
    found = judged(tmp_path, f"import torch\n\n{text}")
    assert len(found) >= 2
    assert all(verdict.is_good for verdict in found.values()), (name, found)


def mistaken(text: str) -> list[tuple[str, str]]:
    """(names of the mistakes, text) of a block of mistakes.txt, the right function first."""
    right, lines = text.split("\n---\n")
    found = [("", f"{right}\n")]
    for line in filter(str.strip, lines.splitlines()):
        expected, change = line.split(" | ", 1)
        wrong = f"{right}\n"
        for part in change.split(" && "):
            old, new = (each.strip(" ").replace("\\n", "\n") for each in f"{part} ".split(" =>", 1))
            assert old in wrong, line
            wrong = wrong.replace(old, new)
        found.append((expected, wrong))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("function", "text"), blocks("mistakes.txt"))
def test_a_mistake_is_found_and_named_by_what_the_function_does(tmp_path, function, text):
    for expected, source in mistaken(text):
        verdict = judged(tmp_path, f"import math\nimport torch\n\n\n{source}")[function]
        assert verdict.is_good == (not expected), (expected, verdict)
        if expected:
            assert names(verdict) == expected, (verdict.mistakes, source)
            assert verdict.finding, source
            assert next(verdict.lines(hint_only=True)) == f"{function}: wrong", "a hint names no mistake"


CHINESE = re.compile("[\u4e00-\u9fff]")
IN_CHINESE = partial(in_chinese, section="check")


def test_first_mistakes_are_named_and_in_chinese_no_sentence_is_left_in_english(tmp_path):
    for function, text in blocks("mistakes.txt"):
        for expected, source in mistaken(text)[1:4]:
            verdict = judged(tmp_path, f"import math\nimport torch\n\n\n{source}")[function]
            first, *others = verdict.lines(False, IN_CHINESE)
            assert first.startswith(f"{function}：有错"), first
            explained = [line for line in others if not line.startswith("    ")]
            assert all(CHINESE.search(line) for line in explained[1:]), others
            assert names(verdict) == expected


def test_a_mistake_without_chinese_is_named_in_english_in_a_chinese_verdict():
    mistakes = [Mistake("all x: 2 x, off", part="q"), Mistake("the mask is not used")]
    finding = Finding("the first of two caches, keys", (("slot", 1),), "no exception, ValueError", "changed")
    verdict = Verdict(MASK, "wrong", finding=finding, mistakes=mistakes)
    assert list(verdict.lines(False, IN_CHINESE)) == [
        f"{MASK}：有错：all x（只在 q）；没有用 mask",
        "  两个缓存中的第一个, keys: 槽位 1：",
        "    你的是 没有异常, ValueError；应为 改变了。",
        "  All x（只在 q）：2 x, off。见 docs/rope.zh.md 第 8 节。",
        "  没有用 mask。见 docs/rope.zh.md 第 8 节。",
    ]


def test_each_chinese_phrase_is_that_of_an_english_one_in_the_code():
    code = "".join(path.read_text(encoding="utf-8") for path in Path(check.__file__).parent.glob("*.py"))
    phrases = tomllib.loads(chinese.FILE.read_text(encoding="utf-8"))["check"]
    assert [english for english in phrases if not all(part.strip(", ") in code for part in english.split("{}"))] == []


def test_a_verdict_shows_the_first_number_that_differs_and_its_place_in_words(tmp_path):
    right = STYLES["complex"]
    verdict = judged(tmp_path, right.replace("torch.outer(t, freqs))", "-torch.outer(t, freqs))"))[TABLE]
    lines = list(verdict.lines(hint_only=True))
    assert lines[:2] == [f"{TABLE}: wrong", "  dim 8, end 7, theta 3: position 1, pair 0:"]
    assert lines[2] == "    yours 0.540302-0.841471j; expected 0.540302+0.841471j."
    verdict = judged(tmp_path, right.replace("diagonal=start_pos", "diagonal=0"))[MASK]
    assert list(verdict.lines(hint_only=True))[1:] == [
        "  start_pos 1, T 2: token 0, key 1:",
        "    yours False; expected True.",
    ]


def test_the_files_of_this_project_are_right():
    report = check.check(REPO / "model")
    lines = str(report).splitlines()
    assert report.code == 0
    absent = (TO_NEIGHBOURS, TO_HALVES, MASK)
    assert lines == [*(f"{name}: right" for name in EXERCISES if name not in absent), f"not found: {', '.join(absent)}"]


@pytest.mark.parametrize("function", [TABLE, ROTATE, TO_HALVES, MASK])
def test_a_result_of_an_unexpected_type_or_shape_is_wrong_and_raises_nothing(tmp_path, function):
    results = [
        "None", "'x'", "(None, None)", "torch.zeros(())", "torch.zeros(2, 5, 4, 8) / 0", "args",
        "torch.zeros(2, 3).to_sparse()", "torch.zeros(2, 3, device='meta')",
    ]  # fmt: skip
    for result in results:
        verdict = judged(tmp_path, f"import torch\ndef {function}(*args):\n    return {result}\n")[function]
        assert verdict.outcome in ("wrong", "raised"), (result, verdict)
        assert verdict.finding or verdict.problem, (result, verdict)
        assert "different numbers" not in names(verdict), (result, verdict)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit", "line 2: SystemExit"),
        ("return causal_mask(start_pos, T)", "line 2: RecursionError: "),
    ],
)
def test_an_exception_is_one_line_with_its_line_number_and_the_arguments(tmp_path, body, message):
    verdict = judged(tmp_path, f"def causal_mask(start_pos, T):\n    {body}\n")[MASK]
    assert verdict.outcome == "raised"
    assert message in verdict.problem
    assert "called with start_pos 1, T 2" in verdict.problem
    assert len(list(verdict.lines(hint_only=False))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "line 1: SyntaxError: "),
        ("x = '\0'", "source code string cannot contain null bytes"),
        ("import sys\nsys.exit('bye')\n", "line 2: SystemExit: bye"),
        ("raise ValueError('two\\nlines')\n", "line 1: ValueError: two lines"),
        ("import nothing_of_this_name\n", "line 1: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_reported_in_one_line_and_the_others_are_judged(tmp_path, text, message):
    (tmp_path / "random.py").write_bytes(f"{text}\n".encode("utf-8", "surrogateescape"))
    (tmp_path / "mine.py").write_text(STYLES["complex"], encoding="utf-8")
    report = check.check(tmp_path, hint=True)
    first, *found = str(report).splitlines()
    assert report.code == 1
    assert first.startswith(str(tmp_path / "random.py"))
    assert message in first
    assert found == [f"{name}: right" for name in EXERCISES]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "random.py"]


def test_a_wrong_function_that_another_file_imports_makes_nothing_wrong_there(tmp_path):
    right = STYLES["complex"]
    start = right.index("def attention")
    (tmp_path / "rope.py").write_text(right[:start].replace("-1, 2)", "2, -1).mT.contiguous()"), encoding="utf-8")
    (tmp_path / "attention.py").write_text(
        f"import math\nfrom rope import apply_rotary_emb\n{right[start:]}", encoding="utf-8"
    )
    outcomes = [line for line in str(check.check(tmp_path, hint=True)).splitlines() if line[0] != " "]
    assert outcomes == [f"{name}: {'wrong' if name == ROTATE else 'right'}" for name in EXERCISES]


def test_nothing_to_judge_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    mine = tmp_path / "mine.py"
    mine.write_text("x = 1\n", encoding="utf-8")
    for options, message in (
        ({}, "no file is given"),
        ({"file": mine}, "defines none of precompute_freqs_cis, "),
        ({"file": tmp_path / "empty"}, "defines none of precompute_freqs_cis, "),
    ):
        with pytest.raises(ValueError, match=message):
            check.check(**options)
    with pytest.raises(FileNotFoundError):
        check.check(file=tmp_path / "missing.py")


def test_exercise_writes_functions_without_bodies_that_check_does_not_pass_and_overwrites_no_file(
    tmp_path, monkeypatch, capsys
):
    directory = tmp_path / "mine" / "deep"
    monkeypatch.setattr(sys, "argv", ["study", "exercise", str(directory)])
    assert main() == 0
    assert capsys.readouterr().out.endswith(f"python -m study check {shlex.quote(directory.as_posix())} --hint\n")
    assert sorted(path.name for path in directory.iterdir()) == ["attention.py", "cache.py", "layouts.py", "rope.py"]
    monkeypatch.setattr(sys, "argv", ["study", "check", "--hint", str(directory)])
    assert main() == 1, "so that homework without bodies does not pass"
    assert capsys.readouterr().out == "".join(f"{name}: not written yet\n" for name in EXERCISES)
    (directory / "cache.py").write_text("mine = 1\n", encoding="utf-8")
    (directory / "rope.py").unlink()
    with pytest.raises(ValueError, match=r"layouts\.py exists and is not overwritten"):
        exercise(directory)
    assert (directory / "cache.py").read_text(encoding="utf-8") == "mine = 1\n"
    assert not (directory / "rope.py").exists()
