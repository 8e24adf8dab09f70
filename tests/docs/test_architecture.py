"""Every name in docs/architecture.md exists in the file that the page gives."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/architecture.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| (.*?) \| .* \|$", PAGE, re.MULTILINE)
FILES = [*REPO.glob("*.py"), *REPO.glob("model/**/*.py"), *REPO.glob("study/**/*.py")]
CODE = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def defined(path: Path) -> set[str]:
    """Functions, classes and their methods, and names assigned at the top, as ``name`` or ``Class.name``."""
    found = set()
    for node in CODE[path].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef):
                found.add(f"{node.name}.{inner.name}")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("file", "names"), ROWS)
def test_each_row_of_the_walks_names_something_in_its_file(file, names):
    names = re.findall(r"`([\w.]+)`", names)
    assert names
    assert set(names) <= defined(REPO / file)


def test_every_name_in_the_text_exists():
    everything = set().union(*map(defined, CODE))
    files = {path.name for path in CODE}
    words = {alias.arg for tree in CODE.values() for alias in ast.walk(tree) if isinstance(alias, ast.arg)}
    words |= {node.attr for tree in CODE.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for name in re.findall(r"`([^`\n]+)`", PAGE):
        if name.startswith(("python ", "pip ", "make ", "--")) or name == "ropewalk":
            continue
        if "/" in name or name.endswith((".py", ".toml")):
            assert (REPO / name).exists() or name in files or name in ("config.toml", "page/", "check/"), name
        else:
            assert name in everything | words, name


def test_every_program_package_and_folder_is_on_the_page():
    tracked = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, encoding="utf-8", check=False).stdout
    files = [Path(name) for name in tracked.split()]
    if not files:
        pytest.skip("not a git checkout")
    programs = {file.name for file in files if len(file.parts) == 1 and file.suffix == ".py"}
    folders = {f"{file.parts[0]}/" for file in files if len(file.parts) > 1 and not file.parts[0].startswith(".")}
    packages = {f"model/{file.parts[1]}/" for file in files if file.parts[0] == "model" and len(file.parts) > 2}
    assert {name for name in programs | folders | packages if f"`{name}`" not in PAGE} == set()
