"""study check: right solutions are right in every style, and mistakes that are not in its file are named."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from study.check.mistakes import FUNCTIONS, MISTAKES
from study.check.probes import same

from study import check
from study.check import judge_all
from study.check.judge import EXERCISES, HALF_SPLIT, RIGHT, UNWRITTEN, Conventions, Verdict, results_of, version
from study.check.reader import Raised, Reader
from study.exercise import exercise
from study.program import main

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
    return judge_all(files, Conventions())


def names(verdict: Verdict) -> list[str]:
    return list(dict.fromkeys(each.mistake.name for each in verdict.named))


@pytest.mark.parametrize("style", STYLES)
def test_a_right_solution_is_right_in_every_style(tmp_path, style):
    found = judged(tmp_path, STYLES[style])
    layout = HALF_SPLIT if style == "halves" else RIGHT
    written = [name for name in EXERCISES if f" {name}(" in STYLES[style] or f" {name}:" in STYLES[style]]
    expected = dict.fromkeys(written, RIGHT) | {ROTATE: layout, ATTEND: layout}
    assert {name: verdict.outcome for name, verdict in found.items()} == expected
    assert not any(verdict.findings or verdict.problem for verdict in found.values())


@pytest.mark.parametrize(("title", "function", "style", "old", "new"), changes("right.diff"))
def test_a_right_function_may_be_written_in_other_ways(tmp_path, title, function, style, old, new):
    found = judged(tmp_path, changed(style, old, new))
    assert function in found
    assert all(verdict.is_good for verdict in found.values()), (title, found)


@pytest.mark.parametrize(("title", "function", "style", "old", "new"), changes("planted.diff"))
def test_a_planted_mistake_is_named_and_nothing_else_is_wrong(tmp_path, title, function, style, old, new):
    found = judged(tmp_path, changed(style, old, new))
    verdict = found.pop(function)
    assert verdict.outcome == "wrong", verdict
    assert ", and ".join(names(verdict)) == title, verdict
    hint, full = (" ".join(" ".join(verdict.lines(hint_only)).split()) for hint_only in (True, False))
    for each in verdict.named:
        assert (each.mistake.name in hint, each.mistake.why in hint) == (False, False)
        assert f"{each.mistake.why} See docs/rope" in full
        assert (each.wrong in full) == (not each.calls_helpers)
    assert {each.outcome for each in found.values()} <= {RIGHT, HALF_SPLIT}, found


def held_out(function: str) -> list[tuple[list[str], str]]:
    """The functions of this name in held_out.txt, with the names that describe their mistakes; none for right ones."""
    found: list[tuple[list[str], str]] = []
    for block in (SOLUTIONS / "held_out.txt").read_text(encoding="utf-8").split("\n@@ ")[1:]:
        name, text = block.split("\n", 1)
        right, lines = text.split("\n---\n")
        if name != function:
            continue
        found.append(([], f"{right}\n"))
        for line in filter(str.strip, lines.splitlines()):
            accepted, change = line.split(" | ", 1)
            wrong = f"{right}\n"
            for part in change.split(" && "):
                old, new = (each.strip(" ").replace("\\n", "\n") for each in f"{part} ".split(" =>", 1))
                assert old in wrong, line
                wrong = wrong.replace(old, new)
            found.append((accepted.split(" / "), wrong))
    return found


@pytest.mark.parametrize("function", EXERCISES)
def test_of_mistakes_that_are_not_lines_of_the_file_nearly_all_are_named_and_no_right_function_is_wrong(
    tmp_path, function
):
    wrong = unnamed = 0
    for accepted, text in held_out(function):
        verdict = judged(tmp_path, f"import math\nimport torch\n\n\n{text}")[function]
        is_right = verdict.outcome.startswith(RIGHT)
        assert is_right == (not accepted or accepted == ["the arguments are in another order"]), (accepted, text)
        if not is_right:
            wrong += 1
            unnamed += not verdict.named and "-" not in accepted
            assert verdict.named or verdict.findings or verdict.problem
            assert set(names(verdict)) <= set(accepted), (accepted, names(verdict), text)
    assert unnamed <= wrong / 20


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_two_names_agree_and_none_agrees_with_the_right_function(function):
    for layout in ("neighbours", "halves") if function in ("rotate", ROTATE, ATTEND) else ("",):
        found = [("", results_of(function, version(function, (), layout)))]
        assert not any(isinstance(result, Raised) for result in found[0][1])
        for each in (each for line in FUNCTIONS[function].versions for each in line):
            results = results_of(function, version(function, [each], layout))
            for other, others in found:
                assert each.name == other or not all(map(same, results, others)), (each.name, other)
            found.append((each.name, results))


def test_the_files_of_this_project_are_right():
    report = check.check(REPO / "model")
    lines = str(report).splitlines()
    assert report.code == 0
    absent = (TO_NEIGHBOURS, TO_HALVES, MASK)
    assert lines == [*(f"{name}: right" for name in EXERCISES if name not in absent), f"not found: {', '.join(absent)}"]


def test_the_step_of_each_mistake_is_in_the_docs_and_about_it():
    walk = "".join((REPO / "docs" / name).read_text(encoding="utf-8") for name in ("rope.md", "rope-models.md"))
    headings = dict(re.findall(r"^## (\d+)\. (.*)$", walk, re.MULTILINE))
    about = {1: "pair", 2: "relative", 3: "ways to write", 4: "enters", 5: "frequencies", 7: "attention", 8: "cache"}
    for mistake in MISTAKES.values():
        assert (about | {12: "mistakes"})[mistake.step] in headings[str(mistake.step)], mistake
        assert mistake.why.endswith("."), mistake


@pytest.mark.parametrize("function", [TABLE, ROTATE, TO_HALVES, MASK])
def test_a_result_of_an_unexpected_type_or_shape_is_wrong_and_raises_nothing(tmp_path, function):
    results = [
        "None", "'x'", "(None, None)", "torch.zeros(())", "torch.zeros(2, 5, 4, 8) / 0", "args",
        "torch.zeros(2, 3).to_sparse()", "torch.zeros(2, 3, device='meta')",
    ]  # fmt: skip
    for result in results:
        verdict = judged(tmp_path, f"import torch\ndef {function}(*args):\n    return {result}\n")[function]
        assert verdict.outcome in ("wrong", "raised"), (result, verdict)
        assert verdict.findings or verdict.problem, (result, verdict)


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
    text = STYLES["complex"].replace("q @ k.transpose(2, 3)", "q @ k")
    assert re.search(r"there .*q \(\d, \d, \d, \d\), k \(", judged(tmp_path, text)[ATTEND].problem)


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
        ({"file": tmp_path / "empty"}, "has no Python file"),
    ):
        with pytest.raises(ValueError, match=message):
            check.check(**options)
    with pytest.raises(FileNotFoundError):
        check.check(file=tmp_path / "missing.py")


def test_a_hint_says_in_which_vectors_and_what_becomes_of_a_pair(tmp_path):
    old, new = "def one(x):", "def one(x, freqs_cis=freqs_cis):"
    old, new = f"{old}\n...\none(xq), one(xk)", f"{new}\n...\none(xq), one(xk, freqs_cis.conj())"
    verdict = judged(tmp_path, changed("complex", old, new))[ROTATE]
    hint = " ".join(" ".join(verdict.lines(hint_only=True)).split())
    assert hint.startswith(f"{ROTATE}: wrong, in k only ")
    assert "Pair 0 of k" in hint
    assert "(x cos a + y sin a, -x sin a + y cos a)" in hint


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
    assert capsys.readouterr().out == "".join(f"{name}: {UNWRITTEN}\n" for name in EXERCISES)
    (directory / "cache.py").write_text("mine = 1\n", encoding="utf-8")
    (directory / "rope.py").unlink()
    with pytest.raises(ValueError, match=r"layouts\.py exists and is not overwritten"):
        exercise(directory)
    assert (directory / "cache.py").read_text(encoding="utf-8") == "mine = 1\n"
    assert not (directory / "rope.py").exists()
