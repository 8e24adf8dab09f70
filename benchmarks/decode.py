#!/usr/bin/env python3
"""Compare generation with the programs that people would use instead: transformers, llama2.c and llama.cpp.

    python benchmarks/decode.py --llama2c path/to/run.c     some minutes
    python benchmarks/decode.py --shapes 15M --turns 9
    python benchmarks/decode.py --shapes 1.1B --dtypes bfloat16 int8 --tokens 32
    python benchmarks/decode.py --model path/to/SmolLM2-135M-Instruct --dtypes bfloat16

All have the same weights, random or those of ``--model``, and continue BOS greedily. transformers runs in a process of
its own (peers.py). llama2.c, which has float32 only, is built from the given file with the system's compiler. llama.cpp
is measured if llama-bench and its convert_hf_to_gguf.py are on PATH, with Q8_0 for int8. Prints the median tokens/s,
and for float32 the seconds from launch to the first and to the last token.
"""

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup

import torch

from benchmarks.peers import in_own_process, users_environment
from benchmarks.timing import Measurement, alternate, machine, seconds
from model import ModelArgs, Transformer, generate
from model.cli.machine import pick_dtype
from model.text.train_tokenizer import train_tokenizer
from model.weights import llama2c, load_model, save_model

SHAPES = {
    "2.9M": ModelArgs(dim=192, n_layers=6, n_heads=6, vocab_size=1024, max_seq_len=256, tie_embeddings=True),
    "15M": ModelArgs(dim=288, n_layers=6, n_heads=6, hidden_dim=768, vocab_size=32000, max_seq_len=256),
    "135M": ModelArgs(  # SmolLM2's
        dim=576,
        n_layers=30,
        n_heads=9,
        n_kv_heads=3,
        hidden_dim=1536,
        vocab_size=49152,
        max_seq_len=2048,
        tie_embeddings=True,
    ),
    "1.1B": ModelArgs(
        dim=2048, n_layers=22, n_heads=32, n_kv_heads=4, hidden_dim=5632, vocab_size=32000, max_seq_len=2048
    ),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": pick_dtype("int8", torch.device("cpu"))}
GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"}
LAUNCH = """
import startup, sys, torch
from model import generate
from model.weights import load_model
torch.set_num_threads({threads})
model = load_model(sys.argv[1])
for _ in generate(model, [[1]], int(sys.argv[2]), compile=sys.argv[3] == "compiled"):
    pass
"""
LAUNCH_TRANSFORMERS = """
import sys, torch
from transformers import LlamaForCausalLM
torch.set_num_threads({threads})
model = LlamaForCausalLM.from_pretrained(sys.argv[1])
model.generate(torch.tensor([[1]]), min_new_tokens=int(sys.argv[2]), max_new_tokens=int(sys.argv[2]), do_sample=False)
"""


def write_model(args: ModelArgs, directory: Path) -> Path:
    """Write random weights for all contenders, and tokenizers, which llama.cpp and llama2.c ask for."""
    torch.manual_seed(0)
    model = Transformer(args).eval()
    save_model(model, directory)
    train_tokenizer(["text of any kind"], directory / "tokenizer.model", kind="char")
    llama2c.save(model, directory / "model.bin")
    piece = struct.pack("<fi", 0.0, 1) + b"a"
    (directory / "tokenizer.bin").write_bytes(struct.pack("<i", 1) + args.vocab_size * piece)
    return directory


def build_llama2c(source: Path, directory: Path) -> Path:
    program = directory / "run"
    flags = ["-Ofast", "-march=native", "-fopenmp", "-w"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program), "-lm"], check=True)
    return program


def our_speed(model: Transformer, tokens: int, compile: bool) -> float:
    """Tokens/s after the prompt and two steps, the first of which loads compiled code or copies weights."""
    steps = generate(model, [[1]], tokens + 3, compile=compile)
    for _ in range(3):
        next(steps)
    return tokens / seconds(lambda: list(steps))


def llama2c_speed(program: Path, directory: Path, tokens: int) -> float:
    """Tokens/s as llama2.c reports it."""
    environment = users_environment() | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [str(program), "model.bin", "-t", "0", "-n", str(tokens)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True)
    found = re.search(rb"achieved tok/s: (\S+)", done.stderr)
    assert found, done.stderr
    return float(found[1])


def llama_cpp_speed(directory: Path, dtype: str, tokens: int) -> float:
    """Tokens/s as llama-bench reports it, for a file that llama.cpp's converter makes of the directory."""
    file = directory / f"{dtype}.gguf"
    if not file.exists():
        convert = ["convert_hf_to_gguf.py", str(directory), "--outtype", GGUF_TYPES[dtype], "--outfile", str(file)]
        subprocess.run(convert, check=True, capture_output=True)
    options = f"-p 0 -n {tokens} -t {torch.get_num_threads()} -r 1 -o json"
    command = ["llama-bench", "-m", str(file), *options.split()]
    report = subprocess.run(command, env=users_environment(), check=True, capture_output=True)
    return float(json.loads(report.stdout)[0]["avg_ts"])


def speeds(directory: Path, dtype: str, llama2c_program: Path | None, tokens: int) -> dict[str, Measurement]:
    """For each contender that has this dtype, its tokens/s in one turn."""
    model = load_model(directory, dtype=DTYPES[dtype], int8=dtype == "int8")
    turns: dict[str, Measurement] = {
        "compiled": partial(our_speed, model, tokens, True),
        "eager": partial(our_speed, model, tokens, False),
    }
    if dtype != "int8":
        turns["transformers"] = in_own_process("generation", directory=str(directory), dtype=dtype, tokens=tokens)
    if llama2c_program is not None and dtype == "float32":
        turns["llama2.c"] = partial(llama2c_speed, llama2c_program, directory, tokens)
    if shutil.which("llama-bench") and shutil.which("convert_hf_to_gguf.py"):
        turns["llama.cpp"] = partial(llama_cpp_speed, directory, dtype, tokens)
    return turns


def launches(directory: Path, llama2c_program: Path | None, tokens: int) -> dict[str, Measurement]:
    """For each contender, the seconds from launch until the tokens are generated and the process has ended."""
    environment = users_environment() | {"PYTHONPATH": str(ROOT)}  # startup.py, which ours imports, sets its own

    def run(script: str, way: str) -> float:
        script = script.format(threads=torch.get_num_threads())
        command = [sys.executable, "-c", script, str(directory), str(tokens), way]
        return seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=environment))

    turns: dict[str, Measurement] = {
        "compiled": partial(run, LAUNCH, "compiled"),
        "eager": partial(run, LAUNCH, "eager"),
        "transformers": partial(run, LAUNCH_TRANSFORMERS, ""),
    }
    if llama2c_program is not None:  # it does not count its first token, so it needs two
        turns["llama2.c"] = lambda: seconds(lambda: llama2c_speed(llama2c_program, directory, max(tokens, 2)))
    return turns


def rows(
    name: str, directory: Path, dtypes: list[str], llama2c_program: Path | None, tokens: int, turns: int
) -> Iterator[str]:
    """The rows of the table for one network."""
    for dtype in dtypes:
        figures = alternate(speeds(directory, dtype, llama2c_program, tokens), turns)
        yield row(f"{name} {dtype}, tokens/s", figures, ".0f")
    if "float32" in dtypes:
        for count in (1, tokens):
            figures = alternate(launches(directory, llama2c_program, count), turns)
            yield row(f"{name} float32, seconds from launch to {count} tokens", figures, ".2f")


def row(what: str, figures: dict[str, float], digits: str) -> str:
    cells = [f"{name} {figure:{digits}}" for name, figure in figures.items()]
    return f"| {what} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama2c", type=Path, metavar="RUN.C", help="llama2.c's run.c, which is built and measured")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory to measure instead of random weights")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["2.9M", "15M"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        directories = {name: Path(temporary, name) for name in flags.shapes}
        program = flags.llama2c and build_llama2c(flags.llama2c, Path(temporary))
        if flags.model:
            directories, program = {flags.model.name: flags.model}, None
        for name, directory in directories.items():
            if not flags.model:
                write_model(SHAPES[name], directory)
            for line in rows(name, directory, flags.dtypes, program, flags.tokens, flags.turns):
                print(line, flush=True)


if __name__ == "__main__":
    startup.run(main, "decode.py")
