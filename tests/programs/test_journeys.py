"""Three readers, from their first command to their last. Each command is a process, and finds what others left."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hub import put_into_cache, save_published
from script_helpers import ROOT

pytestmark = pytest.mark.slow

GREEDY = ("--temperature", "0", "--max_new_tokens", "20")
QUESTION = "What is rope 3?"


@pytest.fixture
def run(tmp_path) -> Callable[..., str]:
    """``run("train.py", "--data", "my.txt")`` types the command in an empty folder; returns its standard output."""

    def call(*words: object, code: int = 0, stdin: str = "") -> str:
        done = subprocess.run(
            command_of(*words), cwd=tmp_path, env=environment_of(tmp_path), input=stdin, capture_output=True,
            text=True, encoding="utf-8",
        )  # fmt: skip
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    return call


def command_of(program: object, *words: object) -> list[str]:
    """The command of a program of this repository, or of a module or a file of the reader's."""
    path = ROOT / str(program)
    return [sys.executable, *map(str, (path if path.exists() else program, *words))]


def environment_of(home: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(home / "hf")}


def write_text(path: Path) -> None:
    """A text that a few seconds of training do not see ten times."""
    lines = [f"Rope {n} is laid in the long lane from {n % 7} strands of hemp, {n * n} yards.\n" for n in range(5000)]
    path.write_text("".join(lines), encoding="utf-8")


def write_chats(path: Path) -> None:
    """Conversations of one to five sentences."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(200):
            answer = " ".join([f"Rope {n} has {n % 7} strands."] * (n % 5 + 1))
            question = {"role": "user", "content": f"What is rope {n}?"}
            file.write(json.dumps({"messages": [question, {"role": "assistant", "content": answer}]}) + "\n")


def steps(directory: Path) -> list[int]:
    path = directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in lines]


def interrupt(home: Path, directory: Path, *words: object) -> None:
    """Type the command, and Ctrl-C after its first validation."""
    process = subprocess.Popen(
        command_of(*words), cwd=home, env=environment_of(home), stderr=subprocess.PIPE, text=True
    )
    while not steps(directory) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert f"python train.py --resume {directory.relative_to(home)}" in err


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send Ctrl-C to another one there")
def test_from_an_own_text_to_a_chat_and_to_another_format_and_back(run, tmp_path):
    write_text(tmp_path / "my.txt")
    write_chats(tmp_path / "chats.jsonl")
    assert "python train.py --data=my.txt" in run("train.py", "--data", "my.txt", "--minutes", "10", "--plan")
    assert not (tmp_path / "runs").exists()

    mine = tmp_path / "runs" / "my"
    interrupt(tmp_path, mine, "train.py", "--data", "my.txt", "--minutes", "0.1")
    stopped = steps(mine)[-1]
    assert "no step left" not in run("train.py", "--resume")
    assert steps(mine) == sorted(set(steps(mine)))
    assert steps(mine)[-1] > stopped
    text = run("generate.py", "--prompt", "Rope", *GREEDY)
    assert text.startswith("Rope")

    flags = "--init_from", "runs/my", "--data", "chats.jsonl"
    assert "python train.py" in run("train.py", *flags, "--minutes", "10", "--plan")
    run("train.py", *flags, "--minutes", "0.05")
    assert run("chat.py", "--max_new_tokens", "20", stdin=QUESTION).strip()
    scores = run("evaluate.py", "runs/chats", "--data", "chats.jsonl", "--json").splitlines()
    assert json.loads(scores[-1])["nats_per_token"] > 0

    moved = shutil.move(mine, tmp_path / "moved")
    assert run("generate.py", moved, "--prompt", "Rope", *GREEDY) == text
    run("convert.py", "moved", "moved.bin", "--to", "llama2c")
    run("convert.py", "moved.bin", "back", "--to", "hf", "--tokenizer", "moved/tokenizer.model")
    assert run("generate.py", "back", "--prompt", "Rope", *GREEDY) == text


LIBRARY = """\
from model import generate
from model.weights import load_model, load_tokenizer

model, tokenizer = load_model("ORG/Small-Instruct"), load_tokenizer("ORG/Small-Instruct")
prompt = tokenizer.encode("The rope")
print(tokenizer.decode([token for (token,) in generate(model, [prompt], max_new_tokens=20)]))
"""


def test_from_a_published_model_to_its_use_as_a_library(run, tmp_path, transformers):
    network = save_published(tmp_path / "published")
    put_into_cache(tmp_path / "hf", "ORG/Small-Instruct", tmp_path / "published")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    prompts = ["The rope", "What is a rope?", "Three strands"]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        out = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        expected.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))

    model = ("ORG/Small-Instruct", *GREEDY, "--dtype", "float32")
    assert run("generate.py", *model, "--prompt", prompts[0]).rstrip("\n") == prompts[0] + expected[0].rstrip("\n")
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    listed = run("generate.py", *model, "--prompt_file", "prompts.txt", "--jsonl").splitlines()
    assert [json.loads(line)["text"] for line in listed] == expected
    chat = run("generate.py", *model, "--chat", "--prompt", QUESTION)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = network.generate(**rendered, max_new_tokens=20, do_sample=False)[0, rendered["input_ids"].shape[1] :]
    assert tokenizer.decode(out, skip_special_tokens=True).strip() in chat
    assert run("generate.py", *model[:-1], "int8", "--prompt", prompts[0]).startswith(prompts[0])

    (tmp_path / "use.py").write_text(LIBRARY, encoding="utf-8")
    assert run(tmp_path / "use.py").rstrip("\n") == expected[0].rstrip("\n")


NETWORK = """\
from model import Transformer


class Faster(Transformer):
    def __init__(self, args):
        super().__init__(args)
        self.freqs_cis = self.freqs_cis**2
"""


def test_from_the_exercise_to_a_network_of_ones_own_and_the_page(run, tmp_path):
    write_text(tmp_path / "my.txt")
    study = "-m", "study"
    run("train.py", "--data", "my.txt", "--minutes", "0.03")
    run(*study, "exercise", "mine")
    assert "not written yet" in run(*study, "check", "mine", "--hint", code=1)

    solution = (ROOT / "tests" / "solutions" / "real.py").read_text(encoding="utf-8")
    wrong = solution.replace("a * cos - b * sin", "a * cos + b * sin").replace("a * sin + b", "b * cos - a * sin #")
    (tmp_path / "mine.py").write_text(wrong, encoding="utf-8")
    assert "apply_rotary_emb: wrong" in run(*study, "check", "mine.py", code=1)
    (tmp_path / "mine.py").write_text(solution, encoding="utf-8")
    right = run(*study, "check", "mine.py")
    assert "wrong" not in right
    assert len(re.findall(r"^\w+: right", right, re.MULTILINE)) >= 7
    losses = re.findall(r"\d\.\d{3}", run(*study, "check", "mine.py", "--run", "runs/my"))
    assert losses[0] == losses[1]

    (tmp_path / "faster.py").write_text(NETWORK, encoding="utf-8")
    own = "--network", "faster:Faster"
    run("train.py", *own, "--data", "my.txt", "--minutes", "0.03", "--out_dir", "runs/faster")
    assert run("generate.py", "runs/faster", *own, "--prompt", "Rope", *GREEDY).startswith("Rope")
    run("generate.py", "runs/faster", "--prompt", "Rope", code=2)
    run(*study, "page", "runs/my", "--prompt", "Rope", "--out", "page.html")
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
