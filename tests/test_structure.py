"""The shape of the house: what the root may know, how long it may be, and what importing it costs."""

import ast
from pathlib import Path

import pytest

import model

ROOT = Path(model.__file__).parent
NETWORK = ["__init__", "config", "rope", "cache", "attention", "transformer"]  # the reading order
ROOMS = {path.parent.name for path in ROOT.glob("*/*.py")}


def imported(path: Path) -> set[str]:
    """The first name after ``model.`` of all that a file of the root imports, wherever in the file it does so."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                names |= {module.split(".")[0]} if module else {alias.name for alias in node.names}
            elif module.split(".")[0] == "model":
                names |= {module.split(".")[1]} if "." in module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("model.")}
    return names


@pytest.mark.parametrize("path", [p for p in ROOT.glob("*.py") if p.stem != "generation"], ids=lambda p: p.stem)
def test_the_root_imports_nothing_from_the_rooms(path):
    assert not imported(path) & ROOMS


def test_the_network_reads_in_one_sitting():
    lengths = {name: len((ROOT / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in NETWORK}
    assert sum(lengths.values()) < 470, lengths
    assert max(lengths.values()) <= 155, lengths


@pytest.mark.parametrize("name", NETWORK)
def test_the_network_prints_nothing_reads_no_file_parses_no_flag(name):
    tree = ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"print", "open", "input"}
    assert not imported(ROOT / f"{name}.py") & {"cli"}
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not modules & {"argparse", "sys", "os", "logging", "pathlib"}


def test_the_public_names_are_there():
    assert set(model.__all__) >= {"ModelArgs", "Transformer", "KVCache", "generate"}
    for name in model.__all__:
        assert callable(getattr(model, name)), name
    assert model.apply_rotary_emb is __import__("model.rope", fromlist=["x"]).apply_rotary_emb
    with pytest.raises(AttributeError, match="Transfomer"):
        _ = model.Transfomer


def test_the_reading_order_names_every_file():
    for name in [*NETWORK[1:], "generation"]:
        assert f"{name}.py" in model.__doc__
