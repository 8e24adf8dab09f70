"""The wheel installs the package ``ropewalk`` only, which works beside a user's ``model.py``."""

import os
import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from script_helpers import ROOT, run_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder in which only this project is installed."""
    if not find_spec("pip") or not find_spec("setuptools") or int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("needs pip and setuptools 77")
    folder = tmp_path_factory.mktemp("install")
    # a copy, because setuptools builds inside the source directory
    shutil.copytree(ROOT / "model", folder / "source" / "model", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    command = ["-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
    done = run_python(*command, "--target", folder / "site", folder / "source")
    assert done.returncode == 0, done.stderr
    return folder / "site"


def files_in(folder: Path) -> set[Path]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in files if "__pycache__" not in path.parts}


def test_the_wheel_installs_one_package_with_all_its_files(site):
    """Also py.typed, with which type checkers use its annotations."""
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"ropewalk"}
    assert files_in(site / "ropewalk") == files_in(ROOT / "model") - {Path("README.md")}  # for those who browse


LIBRARY = """\
import torch
from ropewalk import ModelArgs, Trainer, Transformer, generate, load_model, save_model
from ropewalk.text.dataset import Dataset
from ropewalk.training.config import TrainArgs

model = Transformer(ModelArgs(dim=16, n_layers=1, n_heads=2, vocab_size=37, max_seq_len=24))
text = torch.arange(4000) % 37
Trainer(model, Dataset(text.numpy(), text.numpy(), 4000, 3999), TrainArgs(batch_size=2, max_steps=3)).run()
save_model(model, "saved")
print(*(token for (token,) in generate(load_model("saved"), [[1, 2, 3]], max_new_tokens=4)))
"""


def test_the_library_trains_saves_loads_and_generates_beside_a_module_called_model(site, tmp_path):
    (tmp_path / "model.py").write_text("raise SystemExit('not the library')\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(LIBRARY, encoding="utf-8")
    done = run_python("mine.py", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(site)})
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4
