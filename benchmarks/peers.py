"""Compare generation with the programs that people would use instead: llama2.c, llama.cpp and transformers.

    python benchmarks/peers.py --llama2c path/to/run.c     some minutes
    python benchmarks/peers.py --shapes 15M --repeats 9
    python benchmarks/peers.py --shapes 1.1B --dtypes bfloat16 int8 --tokens 32

All get the same random weights and continue BOS greedily. llama2.c, which has float32 only, is built from the given
file with the system's compiler. llama.cpp is measured if llama-bench and its convert_hf_to_gguf.py are on PATH, with
Q8_0 for int8. The contenders take turns; the first turn is a warm-up, which also compiles. Prints the median tokens/s,
and for float32 the seconds from launch.
"""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import startup  # noqa: F401, I001  must come before torch
import torch

from benchmarks.generate import alternate, seconds
from benchmarks.large import SHAPES
from model import ModelArgs, Transformer, generate
from model.cli.machine import pick_dtype
from model.decoding.network import for_decoding
from model.text.train_tokenizer import train_tokenizer
from model.weights import llama2c, load_model, save_model

DEMO = ModelArgs(dim=192, n_layers=6, n_heads=6, vocab_size=1024, max_seq_len=256, tie_embeddings=True)
MODELS = {"2.9M": DEMO, **SHAPES}
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


def build_llama2c(source: Path, directory: Path) -> Path:
    program = directory / "run"
    flags = ["-Ofast", "-march=native", "-fopenmp", "-w"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program), "-lm"], check=True)
    return program


def write_model(args: ModelArgs, directory: Path) -> None:
    """Write random weights for all contenders, and tokenizers, which llama.cpp and llama2.c ask for."""
    torch.manual_seed(0)
    model = Transformer(args).eval()
    save_model(model, directory)
    train_tokenizer(["text of any kind"], directory / "tokenizer.model", kind="char")
    llama2c.save(model, directory / "model.bin")
    piece = struct.pack("<fi", 0.0, 1) + b"a"
    (directory / "tokenizer.bin").write_bytes(struct.pack("<i", 1) + args.vocab_size * piece)


def llama2c_speed(program: Path, directory: Path, tokens: int, threads: int) -> float:
    """Tokens/s as llama2.c reports it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [str(program), "model.bin", "-t", "0", "-n", str(tokens)]
    environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True)
    found = re.search(rb"achieved tok/s: (\S+)", done.stderr)
    assert found, done.stderr
    return float(found[1])


def llama_cpp_speed(directory: Path, dtype: str, tokens: int, threads: int) -> float:
    """Tokens/s as llama-bench reports it, for a file that llama.cpp's converter makes of the directory."""
    file = directory / f"{dtype}.gguf"
    if not file.exists():
        convert = ["convert_hf_to_gguf.py", str(directory), "--outtype", GGUF_TYPES[dtype], "--outfile", str(file)]
        subprocess.run(convert, check=True, capture_output=True)
    options = f"-p 0 -n {tokens} -t {threads} -r 1 -o json"
    command = ["llama-bench", "-m", str(file), *options.split()]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(report[0]["avg_ts"])


def our_speed(model: Transformer, tokens: int) -> float:
    """Tokens/s after the first one, which the C programs do not count either."""
    steps = generate(model, [[1]], tokens + 1)
    next(steps)
    return tokens / seconds(lambda: list(steps))


def transformers_speed(directory: Path, dtype: str, tokens: int) -> Callable[[], float]:
    from transformers import LlamaForCausalLM, logging

    logging.set_verbosity_error()
    reference = LlamaForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    options = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return lambda: tokens / seconds(lambda: reference.generate(torch.tensor([[1]]), **options))


def contenders(
    directory: Path, dtype: str, program: Path | None, options: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    """For each contender that has this dtype, its tokens/s in one turn."""
    tokens, threads = options.tokens, options.threads
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": pick_dtype("int8", torch.device("cpu"))}
    model = load_model(directory, dtype=dtypes[dtype], int8=dtype == "int8")
    turns: dict[str, Callable[[], float]] = {
        "compiled": partial(our_speed, for_decoding(model, compile=True), tokens),
        "eager": partial(our_speed, model, tokens),
    }
    if dtype != "int8":
        turns["transformers"] = transformers_speed(directory, dtype, tokens)
    if program is not None and dtype == "float32":
        turns["llama2.c"] = partial(llama2c_speed, program, directory, tokens, threads)
    if shutil.which("llama-bench") and shutil.which("convert_hf_to_gguf.py"):
        turns["llama.cpp"] = partial(llama_cpp_speed, directory, dtype, tokens, threads)
    return turns


def launches(directory: Path, program: Path | None, threads: int) -> dict[str, Callable[[int], float]]:
    """For each contender, the seconds from launch until a number of tokens is generated and the process has ended."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(script: str, way: str, tokens: int) -> float:
        command = [sys.executable, "-c", script.format(threads=threads), str(directory), str(tokens), way]
        return seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=environment))

    found: dict[str, Callable[[int], float]] = {"compiled": partial(run, LAUNCH, "compiled")}
    found["eager"] = partial(run, LAUNCH, "eager")
    found["transformers"] = partial(run, LAUNCH_TRANSFORMERS, "")
    if program is not None:
        found["llama2.c"] = lambda tokens: seconds(lambda: llama2c_speed(program, directory, max(tokens, 2), threads))
    return found


def print_row(name: str, figures: dict[str, float], reference: str, digits: int) -> None:
    cells = [f"{way} {figure:,.{digits}f} ({figure / figures[reference]:.2f})" for way, figure in figures.items()]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--llama2c", type=Path, metavar="RUN.C", help="llama2.c's run.c, which is compiled and measured"
    )
    parser.add_argument("--shapes", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=GGUF_TYPES, default=["float32"])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, torch {torch.__version__}; in brackets the ratio to llama2.c, else to compiled")
    with tempfile.TemporaryDirectory() as temporary:
        program = None if options.llama2c is None else build_llama2c(options.llama2c, Path(temporary))
        for name in options.shapes:
            directory = Path(temporary, name)
            directory.mkdir()
            write_model(MODELS[name], directory)
            for dtype in options.dtypes:
                turns = contenders(directory, dtype, program, options)
                reference = "llama2.c" if "llama2.c" in turns else "compiled"
                print_row(f"{name} {dtype}, tokens/s", alternate(turns, options.repeats), reference, 0)
            if "float32" not in options.dtypes:
                continue
            for tokens in (1, options.tokens):
                processes = launches(directory, program, options.threads)
                times = alternate({way: partial(run, tokens) for way, run in processes.items()}, options.repeats)
                print_row(f"{name}, seconds from launch to {tokens} tokens and exit", times, reference, 2)


if __name__ == "__main__":
    main()
