"""The seven files need nothing but torch: what stands around them is not imported with them."""

import os
import subprocess
import sys
from pathlib import Path

import model

ROOT = Path(model.__file__).parents[1]
NETWORK = ("config", "rope", "rope_scaling", "cache", "attention", "transformer", "generation")
BLOCKED = f"""
import importlib, inspect, sys, textwrap
import torch

ALLOWED = {{*sys.stdlib_module_names, *(name.partition(".")[0] for name in sys.modules)}}
SEVEN = {{"model", *("model." + name for name in {NETWORK})}}


class OnlyTorch:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if name not in SEVEN and (top == "model" or top not in ALLOWED):
            raise ImportError(f"{{name}} is imported")


sys.meta_path.insert(0, OnlyTorch())
for name in {NETWORK}:
    for loaded in [each for each in sys.modules if each.partition(".")[0] == "model"]:
        del sys.modules[loaded]
    importlib.import_module("model." + name)

from model import KVCache, ModelArgs, Transformer, generation

lines = [line for line in inspect.getdoc(generation).splitlines() if line.startswith("    ")]
scope = dict(torch=torch, KVCache=KVCache, ModelArgs=ModelArgs, Transformer=Transformer, decode=generation.decode)
exec(textwrap.dedent("\\n".join(lines)), scope)
print(len(lines), len(scope["tokens"]))
"""


def test_each_of_the_seven_files_imports_and_five_tokens_are_decoded_with_torch_alone():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, encoding="utf-8", env=environment
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["3", "5"]


def test_other_names_are_imported_at_first_use():
    assert set(model.__all__) <= set(dir(model))
    assert all(callable(getattr(model, name)) for name in model.__all__)
    assert not hasattr(model, "no_such_name")
