"""The limits of the network. The linters check the direction of imports (pyproject.toml)."""

import ast
import sys
from pathlib import Path

import pytest

import model

ROOT = Path(model.__file__).parent
NETWORK = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("*.py"))}


@pytest.mark.parametrize("name", NETWORK)
def test_the_network_imports_only_torch_the_standard_library_and_itself(name):
    nodes = list(ast.walk(NETWORK[name]))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) if not node.level]
    assert {module.split(".")[0] for module in names} <= {"torch", *sys.stdlib_module_names}
    assert not {*names} & {"argparse", "sys", "os", "logging"}
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"print", "open", "input"}
