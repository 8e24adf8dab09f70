"""How fast generation is, next to transformers on the same weights, in one process, taking turns.

    python benchmarks/generate.py                      everything; some minutes
    python benchmarks/generate.py --only speed --dtypes float32
    python benchmarks/generate.py --shape 1.1B         TinyLlama's shape in bfloat16 (large.py)

A machine's absolute figures change from minute to minute: what counts is the ratio of medians of runs that took turns.
The network has the shape of llama2.c's stories15M with random weights; 255 tokens are sampled after BOS.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import large

from model import KVCache, Transformer, generate
from model.decoding.batches import next_token_logits
from model.decoding.network import for_decoding
from model.weights import load_model, save_model

ARGS = large.SHAPES["15M"]
NEW = 255
BOS = 1
Turn = Callable[[], float]  # runs once, returns its figure


def alternate(turns: dict[str, Turn], repeats: int) -> dict[str, float]:
    """The median figure of each, after one turn each that does not count."""
    figures: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(repeats + 1):
        for name, turn in turns.items():
            figure = turn()
            if repeat:
                figures[name].append(figure)
    return {name: statistics.median(values) for name, values in figures.items()}


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ours(model: Transformer, rows: int = 1, **options) -> Turn:
    def turn() -> float:
        return rows * NEW / seconds(lambda: list(generate(model, [[BOS]] * rows, NEW, temperature=1.0, **options)))

    return turn


def theirs(reference) -> Turn:
    prompt = torch.tensor([[BOS]], device=reference.device)
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "pad_token_id": 0}

    def turn() -> float:
        return NEW / seconds(
            lambda: reference.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, min_new_tokens=NEW, **options
            )
        )

    return turn


def bandwidth(device: torch.device, repeats: int = 9) -> float:
    """Bytes a second that the machine reads, at best: a sum over more memory than any cache holds."""
    block = torch.ones(64 * 2**20, device=device)

    def turn() -> float:
        def run() -> float:
            return block.sum().item()

        return seconds(run)

    return 4 * block.numel() / min(turn() for _ in range(repeats))


def bytes_per_token(model: Transformer) -> int:
    """What one step reads: every weight but the embedding, of which one row, and on average half a cache."""
    weights = sum(p.numel() for p in model.parameters())
    if model.output is not None:
        weights -= model.tok_embeddings.weight.numel() - ARGS.dim
    cache = 2 * ARGS.n_layers * ARGS.n_kv_heads * ARGS.head_dim * NEW // 2
    return (weights + cache) * model.tok_embeddings.weight.element_size()


def speed(
    model: Transformer, int8: Transformer, reference, dtype: torch.dtype, repeats: int, compile: bool
) -> dict[str, float]:
    """Print, and return, the tokens/s of each way."""
    model, reference = model.to(dtype), reference.to(dtype)
    turns = {"transformers": theirs(reference), "eager": ours(model)}
    if compile:
        turns["compiled"] = ours(model, compile=True)
        if dtype == torch.float32:
            turns["int8, compiled"] = ours(int8, compile=True)
    if dtype == torch.float32:
        turns["batch 16"] = ours(model, rows=16)
    found = alternate(turns, repeats)
    limit, size = bandwidth(model.tok_embeddings.weight.device), bytes_per_token(model)
    print(f"\n{dtype}: {size / 1e6:.1f} MB a token, memory reads {limit / 1e9:.1f} GB/s")
    print("| | tokens/s | times transformers | share of the memory's speed |\n|---|---|---|---|")
    for name, figure in found.items():
        share = "" if name in ("batch 16", "int8, compiled") else f"{figure * size / limit:.0%}"
        print(f"| {name} | {figure:.0f} | {figure / found['transformers']:.2f} | {share} |", flush=True)
    if "batch 16" in found:
        print(f"batch 16 gives {found['batch 16'] / found['eager']:.1f} times the tokens/s of batch 1")
    return found


@torch.no_grad()
def length(model: Transformer, repeats: int) -> None:
    """Milliseconds for the next token after so many: with the cache, eager and compiled, and without."""
    model = model.float()
    device = model.tok_embeddings.weight.device
    text = torch.randint(ARGS.vocab_size, (ARGS.max_seq_len,)).tolist()
    print("\n| tokens before | ms, cached | ms, compiled | ms, --no_cache |\n|---|---|---|---|")
    cache = KVCache(ARGS, device=device)
    eager, compiled = for_decoding(model), for_decoding(model, compile=True)
    model(torch.tensor([text], device=device), cache=cache)
    for before in (3, 15, 63, 127, 255):
        token = torch.tensor([text[before : before + 1]], device=device)
        whole = torch.tensor(text[: before + 1], device=device)
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "cached": partial(eager, token, before, cache),
            "compiled": partial(compiled, token, before, cache),
            "without": partial(next_token_logits, eager, [whole]),
        }
        found = alternate(
            {name: partial(seconds, lambda way=way: way().sum().item()) for name, way in ways.items()}, 10 * repeats
        )
        print(f"| {before} | " + " | ".join(f"{1e3 * figure:.1f}" for figure in found.values()) + " |", flush=True)


OURS = """
import sys
from model import generate
from model.weights import load_model
print(next(generate(load_model(sys.argv[1]), [[1]], 1)))
"""
THEIRS = """
import sys, torch
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained(sys.argv[1])
print(model.generate(torch.tensor([[1]]), max_new_tokens=1, do_sample=False, pad_token_id=0))
"""


def launch(model: Transformer, repeats: int) -> dict[str, float]:
    """Seconds from starting Python to the first token of the same weights on disk: printed, and returned."""
    with tempfile.TemporaryDirectory() as directory:
        save_model(model.float(), directory)

        def starting(script: str) -> Turn:
            command = [sys.executable, "-c", script, directory]
            env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
            return lambda: seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=env))

        found = alternate({"ropewalk": starting(OURS), "transformers": starting(THEIRS)}, repeats)
    share = found["ropewalk"] / found["transformers"]
    print(
        f"\nlaunch to first token: {found['ropewalk']:.1f} s, transformers {found['transformers']:.1f} s: {share:.2f}"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=("speed", "length", "launch"))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no_compile", action="store_true")
    parser.add_argument("--shape", choices=large.SHAPES, help="the table of large.py: decode, prefill, load, compile")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="with --shape: where the model is, or is made")
    parser.add_argument("--ways", nargs="+", default=[], help="with --shape: transformers, eager, compiled, int8, ...")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("this machine has no CUDA device that PyTorch can use: leave --device out")

    from transformers import LlamaForCausalLM, logging

    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.shape:
        large.run(options.shape, options.only, options.repeats, options.keep, options.ways)
        return
    model = Transformer(ARGS).to(options.device).eval()
    with tempfile.TemporaryDirectory() as directory:
        save_model(model, directory)
        int8 = load_model(directory, options.device, int8=True)
        reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).to(options.device).eval()
    if options.only in (None, "speed"):
        for name in options.dtypes:
            speed(model, int8, reference, getattr(torch, name), options.repeats, not options.no_compile)
    if options.only in (None, "length"):
        length(model, options.repeats)
    if options.only in (None, "launch"):
        launch(model, options.repeats)


if __name__ == "__main__":
    main()
