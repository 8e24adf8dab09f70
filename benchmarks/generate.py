"""The speed of generation, compared with transformers on the same weights. Both take turns in one process.

    python benchmarks/generate.py                      everything; some minutes
    python benchmarks/generate.py --only speed --dtypes float32
    python benchmarks/generate.py --shape 1.1B         TinyLlama's shape in bfloat16 (large.py)

A machine's speed changes from minute to minute, so only the ratio of medians is meaningful. The network has the shape
of llama2.c's stories15M, but a separate output matrix (24.4M parameters), and random weights; 255 tokens are sampled
after BOS.
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
from model.decoding.network import for_decoding
from model.weights import load_model, save_model

ARGS = large.SHAPES["15M"]
NEW_TOKENS = 255
BOS = 1
Measurement = Callable[[], float]  # runs once, and returns seconds or tokens/s


def alternate(measurements: dict[str, Measurement], repeats: int) -> dict[str, float]:
    """Run the measurements in turns, and return the median of each. The first turn of each is a warm-up."""
    figures: dict[str, list[float]] = {name: [] for name in measurements}
    for repeat in range(repeats + 1):
        for name, measure in measurements.items():
            figure = measure()
            if repeat > 0:
                figures[name].append(figure)
    return {name: statistics.median(values) for name, values in figures.items()}


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ropewalk_speed(model: Transformer, rows: int = 1, **options) -> Measurement:
    def run() -> list[list[int | None]]:
        return list(generate(model, [[BOS]] * rows, NEW_TOKENS, temperature=1.0, **options))

    return lambda: rows * NEW_TOKENS / seconds(run)


def transformers_speed(reference) -> Measurement:
    prompt = torch.tensor([[BOS]], device=reference.device)
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "pad_token_id": 0}
    options |= {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}

    def run() -> torch.Tensor:
        return reference.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    return lambda: NEW_TOKENS / seconds(run)


def bandwidth(device: torch.device, repeats: int = 9) -> float:
    """The bytes per second that the machine reads from memory: the best sum over more bytes than fit into a cache."""
    block = torch.ones(64 * 2**20, device=device)
    return 4 * block.numel() / min(seconds(lambda: block.sum().item()) for _ in range(repeats))


def bytes_per_token(model: Transformer) -> int:
    """The bytes that one step reads: all weights, only one row of the embedding, and half of the cache on average."""
    weights = sum(p.numel() for p in model.parameters())
    if model.output is not None:
        weights -= model.tok_embeddings.weight.numel() - ARGS.dim
    cache = 2 * ARGS.n_layers * ARGS.n_kv_heads * ARGS.head_dim * NEW_TOKENS // 2
    return (weights + cache) * model.tok_embeddings.weight.element_size()


def speed(
    model: Transformer, int8: Transformer, reference, dtype: torch.dtype, repeats: int, compile: bool
) -> dict[str, float]:
    """Print and return the tokens/s of transformers, of this network eager, compiled and in int8, and of a batch."""
    model, reference = model.to(dtype), reference.to(dtype)
    measurements = {"transformers": transformers_speed(reference), "eager": ropewalk_speed(model)}
    if compile:
        measurements["compiled"] = ropewalk_speed(model, compile=True)
        if dtype == torch.float32:
            measurements["int8, compiled"] = ropewalk_speed(int8, compile=True)
    if dtype == torch.float32:
        measurements["batch 16"] = ropewalk_speed(model, rows=16)
    speeds = alternate(measurements, repeats)
    limit, size = bandwidth(model.tok_embeddings.weight.device), bytes_per_token(model)
    print(f"\n{dtype}: {size / 1e6:.1f} MB a token, memory reads {limit / 1e9:.1f} GB/s")
    print("| | tokens/s | times transformers | share of the memory's speed |\n|---|---|---|---|")
    for name, figure in speeds.items():
        share = "" if name in ("batch 16", "int8, compiled") else f"{figure * size / limit:.0%}"
        print(f"| {name} | {figure:.0f} | {figure / speeds['transformers']:.2f} | {share} |", flush=True)
    if "batch 16" in speeds:
        print(f"batch 16 gives {speeds['batch 16'] / speeds['eager']:.1f} times the tokens/s of batch 1")
    return speeds


@torch.no_grad()
def length(model: Transformer, repeats: int) -> None:
    """Print the milliseconds for the next token after texts of several lengths: cached, compiled, and uncached."""
    model = model.float()
    device = model.tok_embeddings.weight.device
    text = torch.randint(ARGS.vocab_size, (ARGS.max_seq_len,)).tolist()
    print("\n| tokens before | ms, cached | ms, compiled | ms, without a cache |\n|---|---|---|---|")
    cache = KVCache(ARGS, device=device)
    eager, compiled = for_decoding(model), for_decoding(model, compile=True)
    model(torch.tensor([text], device=device), cache=cache)
    for before in (3, 15, 63, 127, 255):
        token = torch.tensor([text[before : before + 1]], device=device)  # (1, 1)
        whole_text = torch.tensor([text[: before + 1]], device=device)  # (1, before + 1)
        forwards: dict[str, Callable[[], torch.Tensor]] = {
            "cached": partial(eager, token, before, cache),
            "compiled": partial(compiled, token, before, cache),
            "uncached": partial(eager, whole_text),
        }
        measurements = {
            name: partial(seconds, lambda forward=forward: forward().sum().item()) for name, forward in forwards.items()
        }
        times = alternate(measurements, 10 * repeats)
        print(f"| {before} | " + " | ".join(f"{1e3 * figure:.1f}" for figure in times.values()) + " |", flush=True)


ROPEWALK_SCRIPT = """
import sys
from model import generate
from model.weights import load_model
print(next(generate(load_model(sys.argv[1]), [[1]], 1)))
"""
TRANSFORMERS_SCRIPT = """
import sys, torch
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained(sys.argv[1])
print(model.generate(torch.tensor([[1]]), max_new_tokens=1, do_sample=False, pad_token_id=0))
"""


def launch(model: Transformer, repeats: int) -> dict[str, float]:
    """Print and return the seconds from starting Python to the first token, for the same weights on disk."""
    with tempfile.TemporaryDirectory() as directory:
        save_model(model.float(), directory)

        def launch_time(script: str) -> Measurement:
            command = [sys.executable, "-c", script, directory]
            env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
            return lambda: seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=env))

        times = alternate(
            {"ropewalk": launch_time(ROPEWALK_SCRIPT), "transformers": launch_time(TRANSFORMERS_SCRIPT)}, repeats
        )
    ours, theirs = times["ropewalk"], times["transformers"]
    print(f"\nlaunch to first token: {ours:.1f} s, transformers {theirs:.1f} s: {ours / theirs:.2f}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=("speed", "length", "launch"))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no_compile", action="store_true")
    parser.add_argument("--shape", choices=large.SHAPES, help="the table of large.py: decode, prefill, load, compile")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="with --shape: the directory of the model, which is written if it is missing",
    )
    parser.add_argument(
        "--ways", nargs="+", default=[], help="with --shape: a choice of transformers, eager, compiled ..."
    )
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
