"""Compare the generation speed with transformers on the same file, for model sizes that people download.

Used by generate.py --shape. All contenders are in memory at once and take turns. Loading and compiling are measured in
new processes. Prints each measurement to stderr, and tables of medians to stdout; 1.1B takes about fifteen minutes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from model import KVCache, ModelArgs, Transformer, precompute_freqs_cis
from model.decoding.network import for_decoding
from model.decoding.sampling import Sampler, Sampling
from model.generation import decode
from model.weights import load_model, save_model

SHAPES = {
    "15M": ModelArgs(dim=288, n_layers=6, n_heads=6, hidden_dim=768, vocab_size=32000, max_seq_len=256),
    "1.1B": ModelArgs(
        dim=2048, n_layers=22, n_heads=32, n_kv_heads=4, hidden_dim=5632, vocab_size=32000, max_seq_len=2048
    ),
}
STEPS = 8  # timed decode steps after each prompt length
WAYS = ["transformers", "eager", "compiled", "int8, eager", "int8, compiled"]
Table = dict[str, dict[str, str]]  # column -> contender -> figure
Tokens = Callable[[list[int]], Iterator[Any]]  # from a prompt to its next tokens; the first one takes the prefill


def write_model(args: ModelArgs, directory: Path) -> None:
    """Random weights in bfloat16, unless the directory holds a model already."""
    if (directory / "model.safetensors").exists():
        return
    with torch.device("meta"):
        model = Transformer(args).to(torch.bfloat16)
    model.to_empty(device="cpu")
    model.freqs_cis = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.uniform_(-0.03, 0.03)
            else:
                weight.fill_(1)
    save_model(model, directory)


def ours(directory: Path, compile: bool, int8: bool, model: Transformer | None = None) -> tuple[Transformer, Tokens]:
    model = model or load_model(directory, dtype=torch.bfloat16, int8=int8)
    network, args = for_decoding(model, compile), model.args

    def tokens(text: list[int]) -> Iterator[Any]:
        cache = KVCache(args, 1, len(text) + STEPS + 1, torch.bfloat16)
        sampler = Sampler(Sampling(temperature=0.0), [text], args.vocab_size)
        return decode(network, torch.tensor([text]), STEPS + 1, sampler, cache)

    return model, tokens


def theirs(directory: Path) -> Tokens:
    from transformers import LlamaForCausalLM

    reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()

    @torch.no_grad()
    def tokens(text: list[int]) -> Iterator[Any]:
        ids, past = torch.tensor([text]), None
        for _ in range(STEPS + 1):
            out = reference(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            ids, past = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            yield ids

    return tokens


def speed(directory: Path, lengths: list[int], repeats: int, names: list[str]) -> Table:
    """Median tokens/s of decoding after each prompt length and of prefill, with the ratio to the first contender."""
    model, eager = ours(directory, False, False)
    contenders: dict[str, Tokens] = {"transformers": theirs(directory), "eager": eager}
    contenders["compiled"] = ours(directory, True, False, model)[1]
    model, contenders["int8, eager"] = ours(directory, False, True)
    contenders["int8, compiled"] = ours(directory, True, True, model)[1]
    contenders = {name: contenders[name] for name in names}
    text = torch.randint(3, model.args.vocab_size, (max(lengths),)).tolist()
    for tokens in contenders.values():
        list(tokens(text[: lengths[0]]))  # warm up: compile, and read every page of the weights
    speeds: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(repeats):
        for length in lengths:
            for name, tokens in contenders.items():
                started = time.perf_counter()
                steps = tokens(text[:length])
                next(steps)
                prefilled = time.perf_counter()
                count = sum(1 for _ in steps)
                ended = time.perf_counter()
                decode_speed, prefill_speed = count / (ended - prefilled), length / (prefilled - started)
                speeds.setdefault((name, "decode", length), []).append(decode_speed)
                speeds.setdefault((name, "prefill", length), []).append(prefill_speed)
                log(f"{name}, {length} tokens: prefill {prefill_speed:.1f}, decode {decode_speed:.1f} tokens/s")
    columns = [("decode", length) for length in lengths] + [("prefill", length) for length in lengths[1:]]
    table: Table = {}
    for kind, length in columns:
        medians = {name: statistics.median(speeds[name, kind, length]) for name in names}
        first = medians[names[0]]
        table[f"{kind} {length}"] = {name: f"{median:.1f} ({median / first:.2f})" for name, median in medians.items()}
    return table


PROCESS = """
import gc, json, re, sys, time
from pathlib import Path
way, directory = sys.argv[1:]
import torch
torch.set_num_threads({threads})
if way == "transformers":
    from transformers import LlamaForCausalLM as Theirs
else:
    from model import KVCache
    from model.decoding.network import for_decoding
    from model.weights import load_model
def peak():  # the peak of getrusage would include that of the parent process
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
gc.collect()
gc.freeze()  # otherwise a garbage collection of everything imported, 75 ms, may happen while loading
before, started = peak(), time.perf_counter()
if way == "transformers":
    model = Theirs.from_pretrained(directory, dtype=torch.bfloat16)
else:
    model = load_model(directory, dtype=torch.bfloat16, int8="int8" in way)
measured = {{"load": time.perf_counter() - started}}
token = torch.tensor([[5]])
with torch.no_grad():
    if way == "transformers":
        model(token, use_cache=True)
    else:
        cache = KVCache(model.args, dtype=torch.bfloat16)
        network = for_decoding(model, compile="compiled" in way)
        network(token, 0, cache)
    measured["peak"] = peak() - before
    if "compiled" in way:
        seconds = []
        for position in (2, 3):
            started = time.perf_counter()
            network(token, position, cache)
            seconds.append(time.perf_counter() - started)
        measured["compile"] = seconds[0] - seconds[1]
print(json.dumps(measured))
"""


def launch(directory: Path, repeats: int, names: list[str]) -> Table:
    """Seconds to load with the file in the page cache, peak memory up to the first token, and seconds to compile."""
    size = (directory / "model.safetensors").stat().st_size
    with tempfile.TemporaryDirectory() as compiler_cache:
        env = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": compiler_cache}
        script = PROCESS.format(threads=torch.get_num_threads())

        def measure(name: str) -> dict[str, float]:
            command = [sys.executable, "-c", script, name, str(directory)]
            done = subprocess.run(command, check=True, capture_output=True, env=env)
            measured: dict[str, float] = json.loads(done.stdout)
            log(f"{name}: " + ", ".join(f"{key} {figure:.3g}" for key, figure in measured.items()))
            return measured

        turns: list[dict[str, dict[str, float]]] = [{name: measure(name) for name in names} for _ in range(repeats + 1)]
    table: Table = {"load s": {}, "peak memory / file": {}, "compile s, cold": {}, "warm": {}}
    for name in names:
        load = statistics.median(turn[name]["load"] for turn in turns[1:])
        peak = statistics.median(turn[name]["peak"] for turn in turns[1:])
        table["load s"][name] = f"{load:.2f}"
        table["peak memory / file"][name] = f"{peak / size:.2f}"
        if "compiled" in name:
            for column, turn in zip(("compile s, cold", "warm"), turns):
                table[column][name] = f"{turn[name]['compile']:.1f}"
    return table


def run(shape: str, only: str | None, repeats: int, keep: Path | None, ways: list[str]) -> None:
    args = SHAPES[shape]
    names = [name for name in WAYS if name in ways or not ways]
    with tempfile.TemporaryDirectory() as temporary:
        directory = keep or Path(temporary)
        write_model(args, directory)
        if only in (None, "speed"):
            lengths = [8, 512, 1900] if shape == "1.1B" else [8, 128, 240]
            print_table(f"{shape}, tokens/s", names, speed(directory, lengths, repeats, names))
        if only in (None, "launch"):
            print_table(shape, names, launch(directory, repeats, names))


def print_table(title: str, names: list[str], table: Table) -> None:
    print(f"\n| {title} | " + " | ".join(table) + " |" + "\n|---" + "|---" * len(table) + "|")
    for name in names:
        print(f"| {name} | " + " | ".join(column.get(name, "") for column in table.values()) + " |", flush=True)


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
