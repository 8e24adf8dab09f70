"""The way from train.py to the arithmetic of a step stays short enough to be followed."""

import ast
import inspect
import sys
import textwrap
import traceback
from pathlib import Path

import pytest
import torch

import train
from model.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("each_processor")
ROOT = Path(train.__file__).parent
FLAGS = ["--data", "text.txt", "--out_dir", "out", "--tokenizer", "char", "--dim", "16", "--n_layers", "1"]
FLAGS += ["--n_heads", "2", "--max_seq_len", "16", "--batch_size", "2", "--max_steps", "2", "--sample_every", "0"]
FLAGS += ["--device", "cpu", "--eval_tokens", "50"]


def of_the_project(path: str) -> bool:
    return path == train.__file__ or path.startswith(str(ROOT / "model"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Training as the script does it, in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("model.training.console.draw_losses", lambda directory: None)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(f"{n} and {n} are {n + n}.\n" for n in range(200)), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["train.py", *FLAGS])
    return train.main


def test_from_main_to_backward_are_at_most_five_calls(run, monkeypatch):
    stacks, backward = [], torch.Tensor.backward

    def noted(self, *args, **kwargs):
        stacks.append([frame for frame in traceback.extract_stack() if of_the_project(frame.filename)])
        return backward(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", noted)
    assert run() == 0
    names = [frame.name for frame in stacks[0]]
    assert names[0] == "main"
    assert names[-1] == "step"
    assert len(names) <= 5, names


def test_a_step_is_understood_from_at_most_twelve_files(run, monkeypatch):
    """The files on the way to the step, and of everything that is called within it."""
    files, step = set(), Trainer.step

    def profile(frame, event, argument) -> None:
        if event == "call" and of_the_project(frame.f_code.co_filename):
            files.add(frame.f_code.co_filename)

    def noted(self, *args):
        files.update(frame.filename for frame in traceback.extract_stack() if of_the_project(frame.filename))
        sys.setprofile(profile)
        try:
            return step(self, *args)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Trainer, "step", noted)
    assert run() == 0
    names = {str(Path(file).relative_to(ROOT)) for file in files}
    assert {"train.py", "model/training/trainer.py", "model/transformer.py", "model/attention.py"} <= names
    assert len(names) <= 12, names


def test_the_step_is_one_short_function_with_all_five_parts():
    source = textwrap.dedent(inspect.getsource(Trainer.step))
    assert len(source.splitlines()) <= 40
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    assert called >= {"self.network", "cross_entropy", "loss.backward", "clip_grad_norm_", "optimizer.step"}
