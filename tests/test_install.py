"""The wheel installs the package ``ropewalk`` only, which works beside a user's ``model.py``."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETTINGS = "--tokenizer char --dim 16 --n_layers 1 --n_heads 2 --max_seq_len 16 --batch_size 2 --eval_tokens 100"
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
    for name in ("model", "configs"):  # a copy, because setuptools builds inside the source directory
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    venv.create(environment, symlinks=os.name != "nt")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--target", site_packages(environment), source], capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return environment


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "model.py").write_text("raise SystemExit('not the library')\n", encoding="utf-8")
    return tmp_path


def ropewalk(environment: Path, folder: Path, *arguments: str, before: tuple[Path, ...] = ()) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the installed command, which uses the torch of these tests.

    The directories ``before`` come first on the module search path.
    """
    site = site_packages(environment)
    command = shutil.which("ropewalk", path=os.pathsep.join([str(site / "bin"), str(site / "Scripts")]))
    assert command
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, [*before, site])), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run([command, *arguments], cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8")
    return done.returncode, done.stdout, done.stderr


def files_in(folder: Path) -> set[Path]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in files if "__pycache__" not in path.parts}


def test_the_wheel_installs_one_package_with_all_its_files(environment):
    site = site_packages(environment)
    installed = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert installed - {"bin", "Scripts"} == {"ropewalk"}
    configs = {path.relative_to(ROOT) for path in (ROOT / "configs").iterdir()}
    assert files_in(site / "ropewalk") == files_in(ROOT / "model") | configs


def test_the_command_trains_and_generates_beside_a_module_called_model(environment, folder):
    (folder / "text.txt").write_text("".join(f"{n} and {n} are {n + n}.\n" for n in range(200)), encoding="utf-8")
    code, out, err = ropewalk(environment, folder, "--help")
    assert (code, err) == (0, "")
    assert all(f"\n  {name} " in out for name in ("train", "generate", "evaluate", "convert", "study"))
    arguments = ["train", "--data", "text.txt", *SETTINGS.split(), "--max_steps", "10", "--sample_every", "0"]
    code, _, err = ropewalk(environment, folder, *arguments)
    assert code == 0, err
    assert "ropewalk generate runs/text" in err.replace("\\", "/")  # the suggested next command
    code, out, err = ropewalk(environment, folder, "generate", "--prompt", "1 and", "--max_new_tokens", "4")
    assert code == 0, err
    assert out.startswith("1 and")


STUB = """\
import gc, os
waiting = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)
raise SystemExit(f"{gc.isenabled()} {len(waiting)}")
"""


def test_the_command_makes_its_settings_before_torch_is_loaded(environment, folder):
    (folder / "stub").mkdir()
    (folder / "stub" / "torch.py").write_text(STUB, encoding="utf-8")
    assert ropewalk(environment, folder, "--help", before=(folder / "stub",))[2].strip() == "False 1"


def test_a_type_checker_sees_the_types_of_the_installed_package(environment, folder):
    pytest.importorskip("mypy")
    (folder / "mine.py").write_text(PROGRAM, encoding="utf-8")
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # Other packages are not installed there, so mypy does not spend a minute on torch.
    flags = ["--ignore-missing-imports", "--config-file=", f"--cache-dir={os.devnull}", f"--python-executable={python}"]
    command = [sys.executable, "-m", "mypy", *flags, "mine.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert errors[0].startswith("mine.py:6: error: ")
    assert "arg-type" in errors[0]
