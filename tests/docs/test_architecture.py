"""Every name in docs/architecture.md exists in the file that the page gives."""

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/architecture.md").read_text(encoding="utf-8")
FILES = [*REPO.glob("*.py"), *REPO.glob("model/**/*.py"), *REPO.glob("study/**/*.py")]


def test_every_name_in_the_text_exists():
    code = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
    files = {file.name for file in FILES}
    for name in re.findall(r"`([^`\n]+)`", PAGE):
        if name.startswith(("python ", "pip ", "make ", "--")) or name == "ropewalk":
            continue
        if "/" in name or name.endswith((".py", ".toml")):
            assert (REPO / name).exists() or name in files or name in ("config.toml", "page/", "check/"), name
        else:
            assert all(re.search(rf"\b{part}\b", code) for part in name.split(".")), name
    for file, names in re.findall(r"^\| `([\w/]+\.py)` \| (.*?) \|", PAGE, re.MULTILINE):
        source = (REPO / file).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"(def|class) {name}\b|^{name} = ", source, re.MULTILINE), (file, name)


def test_every_program_package_and_folder_is_on_the_page():
    tracked = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, encoding="utf-8", check=False).stdout
    files = [Path(name) for name in tracked.split()]
    if not files:
        pytest.skip("not a git checkout")
    programs = {file.name for file in files if len(file.parts) == 1 and file.suffix == ".py"}
    folders = {f"{file.parts[0]}/" for file in files if len(file.parts) > 1 and not file.parts[0].startswith(".")}
    packages = {f"model/{file.parts[1]}/" for file in files if file.parts[0] == "model" and len(file.parts) > 2}
    assert {name for name in programs | folders | packages if f"`{name}`" not in PAGE} == set()
