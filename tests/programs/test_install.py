"""The wheel installs the package ``ropewalk`` only, which works beside a user's ``model.py``."""

import os
import shutil
import sysconfig
import venv
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from script_helpers import ROOT, run_python

PROGRAM = """\
from ropewalk import KVCache, ModelArgs, Transformer

args = ModelArgs(dim=16, n_layers=1, n_heads=2, vocab_size=37, max_seq_len=24)
model = Transformer(args)
cache = KVCache(args, batch_size=2)
ModelArgs(dim="wide")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment in which only this project is installed."""
    if not find_spec("pip") or not find_spec("setuptools") or int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("needs pip and setuptools 77")
    folder = tmp_path_factory.mktemp("install")
    source, environment = folder / "source", folder / "environment"
    # a copy, because setuptools builds inside the source directory
    shutil.copytree(ROOT / "model", source / "model", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    venv.create(environment, symlinks=os.name != "nt")
    command = ["-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
    done = run_python(*command, "--target", site_packages(environment), source)
    assert done.returncode == 0, done.stderr
    return environment


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "model.py").write_text("raise SystemExit('not the library')\n", encoding="utf-8")
    return tmp_path


def files_in(folder: Path) -> set[Path]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in files if "__pycache__" not in path.parts}


def test_the_wheel_installs_one_package_with_all_its_files(environment):
    site = site_packages(environment)
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"ropewalk"}
    assert files_in(site / "ropewalk") == files_in(ROOT / "model")


LIBRARY = """\
import torch
from ropewalk import ModelArgs, Trainer, Transformer, generate, load_model, save_model
from ropewalk.text.dataset import Dataset
from ropewalk.training.config import TrainArgs

model = Transformer(ModelArgs(dim=16, n_layers=1, n_heads=2, vocab_size=37, max_seq_len=24))
text = torch.arange(4000) % 37
Trainer(model, Dataset(text.numpy(), text.numpy(), 4000, ""), TrainArgs(batch_size=2, max_steps=3)).run()
save_model(model, "saved")
print(*(token for (token,) in generate(load_model("saved"), [[1, 2, 3]], max_new_tokens=4)))
"""


def test_the_library_trains_saves_loads_and_generates_beside_a_module_called_model(environment, folder):
    (folder / "mine.py").write_text(LIBRARY, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(site_packages(environment))}
    done = run_python("mine.py", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4


def test_a_type_checker_sees_the_types_of_the_installed_package(environment, folder):
    pytest.importorskip("mypy")
    (folder / "mine.py").write_text(PROGRAM, encoding="utf-8")
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # Other packages are not installed there, so mypy does not spend a minute on torch.
    flags = ["--ignore-missing-imports", "--config-file=", f"--cache-dir={os.devnull}", f"--python-executable={python}"]
    done = run_python("-m", "mypy", *flags, "mine.py", cwd=folder)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert errors[0].startswith("mine.py:6: error: ")
    assert "arg-type" in errors[0]
