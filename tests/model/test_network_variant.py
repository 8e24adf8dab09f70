"""The custom network in docs/library.md, given with --network: the scripts train, resume and generate with it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from script_helpers import run_in_process

import generate
from model.weights import find_network, load_model

ROOT = Path(__file__).parents[2]
NAME = "sliding:SlidingTransformer"
SETTINGS = ["--tokenizer", "char", "--dim", "16", "--n_layers", "2", "--n_heads", "2", "--max_seq_len", "96"]
SETTINGS += ["--batch_size", "2", "--max_steps", "2", "--eval_every", "1", "--eval_tokens", "200"]
SETTINGS += ["--sample_every", "2"]


def library_example() -> str:
    """The code block of docs/library.md that defines the class."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "class SlidingTransformer" in block]
    return example


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("variant")
    path = sys.path[:]
    (folder / "sliding.py").write_text(library_example(), encoding="utf-8")
    (folder / "text.txt").write_text("".join(f"{n} and {n} are {n + n}.\n" for n in range(300)), encoding="utf-8")
    yield folder
    sys.modules.pop("sliding", None)  # other tests have another module of this name
    sys.path[:] = path


def script(folder: Path, name: str, *argv: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / name), *argv]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture(scope="module")
def trained(folder) -> Path:
    ended = script(folder, "train.py", "--data", "text.txt", "--network", NAME, "--out_dir", "out", *SETTINGS)
    assert ended.returncode == 0, ended.stderr
    assert f"python generate.py out --network {NAME}" in ended.stderr
    assert "--- sample at step 2 ---" in ended.stdout
    return folder / "out"


def test_the_run_directory_names_the_network_and_resume_needs_no_flag(folder, trained):
    assert f'network = "{NAME}"' in (trained / "config.toml").read_text(encoding="utf-8")
    assert json.loads((trained / "config.json").read_text(encoding="utf-8"))["architectures"] == ["SlidingTransformer"]
    ended = script(folder, "train.py", "--resume", "--out_dir", "out", "--max_steps", "3")
    assert ended.returncode == 0, ended.stderr
    lines = (trained / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_the_loaded_network_attends_to_the_last_tokens_only(folder, trained, monkeypatch):
    monkeypatch.chdir(folder)
    network = find_network(NAME)
    model = load_model(trained, network=network)
    assert isinstance(model, network)
    tokens = torch.randint(model.args.vocab_size, (1, 96))
    earlier = tokens.clone()
    earlier[0, :20] = 5
    # A token attends to the 63 before it in each layer. Two layers would reach all 96, so this looks at the first one.
    outputs = []
    model.layers[0].attention.register_forward_hook(lambda module, inputs, out: outputs.append(out.detach()))
    model(tokens)
    model(earlier)
    assert torch.equal(outputs[0][:, 83:], outputs[1][:, 83:])
    assert not torch.allclose(outputs[0][:, 82], outputs[1][:, 82])


def test_generate_needs_the_network_flag_for_the_directory(folder, trained, monkeypatch, capsys):
    argv = ["out", "--prompt", "1 and", "--max_new_tokens", "8", "--temperature", "0"]
    ended = script(folder, "generate.py", *argv, "--network", NAME)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("1 and")
    monkeypatch.chdir(folder)
    assert run_in_process(generate.main, "generate.py", *argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert NAME in err
