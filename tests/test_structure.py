"""The layout: which way imports go, and what the network may know."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import model

ROOT = Path(model.__file__).parent
SCRIPTS = [path for path in sorted(ROOT.parent.glob("*.py")) if not path.name.startswith("test")]
FILES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in [*SCRIPTS, *sorted(ROOT.rglob("*.py"))]}
NETWORK = sorted(path.stem for path in ROOT.glob("*.py"))  # the root: the network and the decode loop
# Each package may import from those before it and from the network, which imports itself, torch and the standard
# library only. Its __init__ offers `generate`, too, which is built on top of the loop, and sets up a script's process.
PACKAGES = ["network", "cli", "text", "weights", "decoding", "training", "positions", "study", "scripts"]
OFFERED = {"model.decoding.batches", "model.scripts.startup"}
EXTRAS = {"matplotlib", "PIL", "tokenizers", "transformers"}  # what may be missing, and so is imported where it is used


def name_of(path: Path) -> str:
    """``model.cli.files`` for a file of the library, ``train`` for a script."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# What costs more processor time to import than the rest of the project together, and few runs use.
COSTLY = {"model.training.distributed": {"torch.distributed.fsdp", "torch.distributed.tensor"}}


MODULES = {name_of(path): path for path in FILES}


def imported(path: Path) -> set[str]:
    """The modules of this project that a file imports, wherever in the file and for whatever reason it does so."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    found = set()
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()
            if not names <= MODULES.keys():  # something that the module itself defines
                found.add(module)
    return found & MODULES.keys() - {name_of(path)}


def package_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "model":
        return "scripts"
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else "network"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path):
    own = package_of(name_of(path))
    allowed = OFFERED if name_of(path) == "model" else set()
    too_high = {module for module in imported(path) if PACKAGES.index(package_of(module)) > PACKAGES.index(own)}
    assert not too_high - allowed, f"{own} lies below them"


@pytest.mark.parametrize("name", NETWORK)
def test_the_network_imports_torch_the_standard_library_and_itself(name):
    tree = FILES[ROOT / f"{name}.py"]
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) if not node.level]
    assert {module.split(".")[0] for module in names} <= {"torch", *sys.stdlib_module_names}


def test_no_two_modules_need_each_other():
    graph = {name: imported(path) for name, path in MODULES.items()}
    # A package is its own __init__ to whoever imports one of its modules, so only that one's own imports count for it.
    graph = {name: {other for other in needs if not name.startswith(f"{other}.")} for name, needs in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_package_is_known():
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} <= {*PACKAGES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_is_written_is_what_runs(path):
    """No imports for the type checker only, no names made up on access, no object that changes its class."""
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            assert name != "TYPE_CHECKING", f"line {node.lineno}"
            assert name != "__class__" or isinstance(node.ctx, ast.Load), f"line {node.lineno}"
        if isinstance(node, ast.FunctionDef):
            assert node.name != "__getattr__", f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_optional_extras_and_sharding_are_imported_where_they_are_used(path):
    inside = [node for function in ast.walk(FILES[path]) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
              for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
    for node in inside:
        names = (
            {alias.name for alias in node.names}
            if isinstance(node, ast.Import)
            else {"." * node.level + (node.module or "")}
        )
        names -= COSTLY.get(name_of(path), set())
        assert {name.split(".")[0] for name in names} <= EXTRAS, f"line {node.lineno}"


@pytest.mark.parametrize("name", NETWORK)
def test_the_network_prints_nothing_reads_no_file_parses_no_flag(name):
    tree = FILES[ROOT / f"{name}.py"]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"print", "open", "input"}
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not modules & {"argparse", "sys", "os", "logging", "pathlib"}


@pytest.mark.parametrize("package", sorted({path.parent for path in FILES} - {ROOT.parent}), ids=lambda p: p.name)
def test_a_package_says_what_its_files_are_for(package):
    text = ast.get_docstring(FILES[package / "__init__.py"]) or ""
    assert {path.name for path in package.glob("*.py") if path.name not in text} <= {"__init__.py"}


def test_the_public_names_are_there():
    assert set(model.__all__) >= {"ModelArgs", "Transformer", "KVCache", "generate"}
    for name in model.__all__:
        assert callable(getattr(model, name)), name
    assert model.apply_rotary_emb is __import__("model.rope", fromlist=["x"]).apply_rotary_emb
    with pytest.raises(AttributeError, match="Transfomer"):
        _ = model.Transfomer


@pytest.mark.parametrize("name", NETWORK)
def test_every_public_name_of_the_network_is_documented(name):
    for node in FILES[ROOT / f"{name}.py"].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("package", ["model", "model.weights"])
def test_every_name_that_a_package_offers_is_documented(package):
    offered = __import__(package, fromlist=["x"])
    for name in offered.__all__:
        assert (getattr(offered, name).__doc__ or "").strip(), name
