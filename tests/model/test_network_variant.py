"""The custom network in docs/library.md, given with --network: the scripts train, resume and generate with it."""

import importlib
import sys

from script_helpers import library_example, run_in_process

NAME = "sliding:SlidingTransformer"
SETTINGS = ["--tokenizer", "char", "--dim", "16", "--n_layers", "2", "--n_heads", "2", "--max_seq_len", "96"]
SETTINGS += ["--batch_size", "2", "--max_steps", "2", "--eval_every", "1", "--eval_tokens", "200"]


def test_the_scripts_train_resume_and_generate_with_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "sliding.py").write_text(library_example(), encoding="utf-8")
    (tmp_path / "text.txt").write_text("".join(f"{n} and {n} are {n + n}.\n" for n in range(300)), encoding="utf-8")

    def script(name: str, *argv: str, code: int = 0) -> tuple[str, str]:
        """Run a script that has not imported the module yet; returns its stdout and stderr."""
        sys.modules.pop("sliding", None)
        assert run_in_process(importlib.import_module(name).main, f"{name}.py", *argv) == code
        return capsys.readouterr()

    _, err = script("train", "--data", "text.txt", "--network", NAME, "--out_dir", "out", *SETTINGS)
    assert f"python generate.py out --network {NAME}" in err
    script("train", "--resume", "--out_dir", "out", "--max_steps", "3")
    argv = ["out", "--prompt", "1 and", "--max_new_tokens", "8", "--temperature", "0"]
    assert script("generate", *argv, "--network", NAME)[0].startswith("1 and")
    out, err = script("generate", *argv, code=2)
    assert out == ""
    assert NAME in err
