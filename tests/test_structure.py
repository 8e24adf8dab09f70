"""The layout of the code: the direction of imports, and the limits of the network."""

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
# Each package may import from the packages before it. The network imports only itself, torch and the standard library,
# except that model/__init__.py also imports `generate` and the startup settings.
PACKAGES = ["network", "cli", "text", "weights", "decoding", "training", "positions", "study", "scripts"]
IMPORTED_BY_INIT = {"model.decoding.batches", "model.scripts.startup"}
EXTRAS = {"matplotlib", "PIL", "tokenizers", "transformers"}  # optional, so imported in the functions that use them


def name_of(path: Path) -> str:
    """``model.cli.files`` for a file of the library, ``train`` for a script."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Modules that take longer to import than the rest of the project together, and that few runs use.
COSTLY = {"model.training.distributed": {"torch.distributed.fsdp", "torch.distributed.tensor"}}


MODULES = {name_of(path): path for path in FILES}


def imported(path: Path) -> set[str]:
    """The modules of this project that a file imports, anywhere in the file."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    found = set()
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = [node.module] if node.module else []
            if node.level:  # a relative import
                parents = package.split(".")
                parts = parents[: len(parents) - node.level + 1] + parts
            module = ".".join(parts)
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()
            if not names <= MODULES.keys():  # a name that the module defines
                found.add(module)
    return found & MODULES.keys() - {name_of(path)}


def package_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "model":
        return "scripts"
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else "network"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_package_imports_only_packages_below_it(path):
    package = package_of(name_of(path))
    allowed = IMPORTED_BY_INIT if name_of(path) == "model" else set()
    above = {module for module in imported(path) if PACKAGES.index(package_of(module)) > PACKAGES.index(package)}
    assert not above - allowed, f"{package} is below them"


@pytest.mark.parametrize("name", NETWORK)
def test_the_network_imports_only_torch_the_standard_library_and_itself(name):
    tree = FILES[ROOT / f"{name}.py"]
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) if not node.level]
    assert {module.split(".")[0] for module in names} <= {"torch", *sys.stdlib_module_names}


def test_there_are_no_import_cycles():
    graph = {name: imported(path) for name, path in MODULES.items()}
    # A module may import names from the __init__ of its own package, which Python has begun to run before it.
    graph = {
        name: {module for module in imports if not name.startswith(f"{module}.")} for name, imports in graph.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_package_is_in_the_import_order():
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} <= {*PACKAGES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_there_is_no_type_checking_import_no_getattr_and_no_class_assignment(path):
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            assert name != "TYPE_CHECKING", f"line {node.lineno}"
            assert name != "__class__" or isinstance(node.ctx, ast.Load), f"line {node.lineno}"
        if isinstance(node, ast.FunctionDef):
            assert node.name != "__getattr__", f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_optional_extras_and_costly_modules_are_imported_inside_functions(path):
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
def test_the_network_does_not_print_read_files_or_parse_flags(name):
    tree = FILES[ROOT / f"{name}.py"]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"print", "open", "input"}
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not modules & {"argparse", "sys", "os", "logging", "pathlib"}


@pytest.mark.parametrize("package", sorted({path.parent for path in FILES} - {ROOT.parent}), ids=lambda p: p.name)
def test_the_docstring_of_a_package_lists_its_files(package):
    text = ast.get_docstring(FILES[package / "__init__.py"]) or ""
    assert {path.name for path in package.glob("*.py") if path.name not in text} <= {"__init__.py"}


def test_the_public_names_exist():
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
def test_every_public_name_of_a_package_is_documented(package):
    module = __import__(package, fromlist=["x"])
    for name in module.__all__:
        assert (getattr(module, name).__doc__ or "").strip(), name
