"""Every way to a product and to attention, timed on this machine, beside what the rules of model/kernels.py choose.

    python benchmarks/kernels.py                        a minute or two
    python benchmarks/kernels.py --only attention --dtypes bfloat16
    python benchmarks/kernels.py --constants            SLICES, QUERY_BLOCK and MAX_TRAINING_KEYS, beside other values

Products are given in GB/s of weights, which lie in more memory than any cache holds, next to what a sum over as many
bytes reads in the same process; attention in milliseconds. The ways take turns, and the fastest of several rounds
counts. A star marks what the rule chooses; the last lines say where that was not the fastest, by more than 5%.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from model import kernels
from model.weights.int8 import quantize

SHAPES = [(32000, 288), (768, 288), (288, 288), (5632, 2048), (2048, 5632), (32000, 2048)]  # (out, in)
ROWS = (1, 4, 16)
BYTES = 2**28  # of weights that are gone through in one round
# name: B, H, K, T, S, D, training
ATTENTION = {
    "training, 16 x 256, 8 / 8 heads of 32": (16, 8, 8, 256, 256, 32, True),
    "training, 16 x 256, 8 / 4 heads of 32": (16, 8, 4, 256, 256, 32, True),
    "training, 4 x 1024, 8 / 8 heads of 32": (4, 8, 8, 1024, 1024, 32, True),
    "prompt of 512, 32 / 4 heads of 64": (1, 32, 4, 512, 512, 64, False),
    "the same after 512 tokens": (1, 32, 4, 512, 1024, 64, False),
    "the same after 1,536 tokens": (1, 32, 4, 512, 2048, 64, False),
    "prompt of 256, 6 / 6 heads of 48": (1, 6, 6, 256, 256, 48, False),
    "prompt of 32, 6 / 6 heads of 48": (1, 6, 6, 32, 32, 48, False),
    "one token after 1,900, 32 / 4 heads of 64": (1, 32, 4, 1, 1901, 64, False),
    "one token after 128, 6 / 6 heads of 48": (1, 6, 6, 1, 129, 48, False),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COMPILED = {"cpp_wrapper": True, "realize_reads_threshold": 0}  # as decoding/network.py compiles
Way = Callable[[], object]


def fastest(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """Seconds of each, the best of ``rounds`` in which they take turns, after one that does not count."""
    best = dict.fromkeys(ways, float("inf"))
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds = time.perf_counter() - started
            if number:
                best[name] = min(best[name], seconds)
    return best


def memory_rate(rounds: int) -> float:
    """Bytes a second that a sum over more memory than any cache holds reads."""
    block = torch.ones(BYTES // 4)
    return BYTES / fastest({"sum": block.sum}, 2 * rounds)["sum"]


class Verdict:
    """Prints a table's rows, and remembers where the way that is chosen was not the fastest."""

    def __init__(self) -> None:
        self.misses: list[str] = []

    def row(self, what: str, seconds: dict[str, float], chosen: str, shown: Callable[[float], str]) -> None:
        cells = [f"{name} {shown(value)}{'*' if name == chosen else ''}" for name, value in seconds.items()]
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)
        best = min(seconds, key=seconds.__getitem__)
        if seconds[chosen] > 1.05 * seconds[best]:
            self.misses.append(f"{what}: {best} is {seconds[chosen] / seconds[best]:.2f} times as fast as {chosen}")


def through(way: Callable[..., Tensor], x: Tensor, weights: list[tuple[Tensor, ...]]) -> None:
    for weight in weights:
        way(x, *weight)


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, options=COMPILED, dynamic=False)  # type: ignore[arg-type, no-any-return]


def name_of(way: object, ways: dict[str, Callable[..., Tensor]]) -> str:
    return next(name for name, each in ways.items() if each is way)


def chosen_when_compiled(rule: Callable[..., object], *given: object) -> object:
    """What a rule answers inside torch.compile."""
    is_compiling = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True
    try:
        return rule(*given)
    finally:
        torch.compiler.is_compiling = is_compiling


@torch.no_grad()
def products(dtype: torch.dtype, rounds: int, verdict: Verdict) -> None:
    for rows in ROWS:
        for out, columns in SHAPES:
            size = out * columns * dtype.itemsize
            weights = [(torch.randn(out, columns).to(dtype),) for _ in range(max(2, BYTES // size))]
            x = torch.randn(rows, 1, columns).to(dtype)
            ways = {name: way for name, way in kernels.LINEAR.items() if rows == 1 or name != "mv"}
            for is_compiled in (False, True) if rows == 1 else (False,):
                torch._dynamo.reset()
                run = {name: compiled(way) if is_compiled else way for name, way in ways.items()}
                timed = fastest({name: partial(through, way, x, weights) for name, way in run.items()}, rounds)
                way = chosen_when_compiled(kernels.choose_linear, x) if is_compiled else kernels.choose_linear(x)
                what = f"{rows} x {out} x {columns}{', compiled' if is_compiled else ''}"
                total = size * len(weights)
                verdict.row(what, timed, name_of(way, kernels.LINEAR), lambda s, total=total: f"{total / s / 1e9:.1f}")


@torch.no_grad()
def int8_products(rounds: int, verdict: Verdict) -> None:
    for out, columns in SHAPES:
        weights = [tuple(quantize(torch.randn(out, columns))) for _ in range(max(2, BYTES // (out * columns)))]
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(1, 1, columns).to(dtype)
            for is_compiled in (False, True):
                torch._dynamo.reset()
                run = {name: compiled(way) if is_compiled else way for name, way in kernels.INT8.items()}
                if not is_compiled:
                    del run["elementwise"]  # sums one by one, which only a compiler makes one loop of
                timed = fastest({name: partial(through, way, x, weights) for name, way in run.items()}, rounds)
                given = (x, weights[0][1])
                way = chosen_when_compiled(kernels.choose_int8, *given) if is_compiled else kernels.choose_int8(*given)
                what = f"1 x {out} x {columns}, x in {str(dtype)[6:]}{', compiled' if is_compiled else ''}"
                total = out * columns * len(weights)
                verdict.row(what, timed, name_of(way, kernels.INT8), lambda s, total=total: f"{total / s / 1e9:.1f}")


def attention_ways(dtype: torch.dtype, sizes: tuple[int, int, int, int, int, int, bool]) -> tuple[dict[str, Way], str]:
    """Each way to this attention, with its backward pass in training, and the name of the one that is chosen."""
    B, H, K, T, S, D, training = sizes
    q, k, v = (torch.randn(shape).to(dtype) for shape in ((B, H, T, D), (B, K, S, D), (B, K, S, D)))
    tensors = [t.requires_grad_(training) for t in (q, k, v)]
    out = torch.randn(B, H, T, D).to(dtype)

    def run(way: kernels.Attend) -> None:
        result = way(*tensors, None)
        if training:
            torch.autograd.grad(result, tensors, out)

    ways = {name: lambda way=way: run(way) for name, way in kernels.ATTENTION.items()}
    return ways, name_of(kernels.choose_attention(q, S), kernels.ATTENTION)


def attentions(dtype: torch.dtype, rounds: int, verdict: Verdict) -> None:
    for what, sizes in ATTENTION.items():
        ways, chosen = attention_ways(dtype, sizes)
        verdict.row(what, fastest(ways, rounds), chosen, lambda seconds: f"{1e3 * seconds:.3g}")


@torch.no_grad()
def constants(rounds: int) -> None:
    """The constants of kernels.py beside other values, one line each."""
    weights = [torch.randn(32000, 288) for _ in range(8)]
    x = torch.randn(1, 1, 288)
    print("\nSLICES, ms for one float32 row x 32000 x 288")
    for value in (1, 2, 4, 8, 16, 32):
        kernels.SLICES = value
        seconds = fastest({"": lambda: [kernels.linear_in_slices(x, w) for w in weights]}, rounds)[""]
        print(f"| {value} | {1e3 * seconds / len(weights):.2f} |", flush=True)
    kernels.SLICES = 8
    print("\nFEW_ROWS, ms for float32 rows x 5632 x 2048, slices / F.linear")
    weight = torch.randn(5632, 2048)
    for rows in (16, 64, 128, 256, 512):
        x = torch.randn(rows, 1, 2048)
        ways = {"slices": lambda x=x: kernels.linear_in_slices(x, weight), "F.linear": lambda x=x: F.linear(x, weight)}
        print(f"| {rows} | " + " | ".join(f"{1e3 * each:.2f}" for each in fastest(ways, rounds).values()) + " |")
    print("\nQUERY_BLOCK, ms for a bfloat16 prompt of 512, 32 / 4 heads of 64, blockwise")
    ways, _ = attention_ways(torch.bfloat16, ATTENTION["prompt of 512, 32 / 4 heads of 64"])
    for value in (32, 64, 128, 256, 512):
        kernels.QUERY_BLOCK = value
        print(f"| {value} | {1e3 * fastest(ways, rounds)['blockwise']:.2f} |", flush=True)
    kernels.QUERY_BLOCK = 128
    print("\nMAX_TRAINING_KEYS, ms forward and backward in bfloat16, 4,096 tokens, 8 heads of 32, blockwise / fused")
    with torch.enable_grad():
        for length in (128, 256, 512, 1024):
            ways, _ = attention_ways(torch.bfloat16, (4096 // length, 8, 8, length, length, 32, True))
            print(f"| {length} | " + " | ".join(f"{1e3 * each:.1f}" for each in fastest(ways, rounds).values()) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=("products", "int8", "attention"))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--constants", action="store_true", help="the constants beside other values, and no more")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    name = torch.cpu.get_capabilities().get("cpu_name", "")
    print(f"{name}, {kernels.CPU}, {options.threads} threads, torch {torch.__version__}")
    if options.constants:
        constants(options.rounds)
        return
    verdict = Verdict()
    print(f"memory reads {memory_rate(options.rounds) / 1e9:.1f} GB/s")
    for dtype in map(DTYPES.__getitem__, options.dtypes):
        if options.only in (None, "products"):
            print(f"\nrows x out x in, {str(dtype)[6:]}: GB/s of weights")
            products(dtype, options.rounds, verdict)
        if options.only in (None, "attention"):
            print(f"\nattention, {str(dtype)[6:]}: ms")
            attentions(dtype, options.rounds, verdict)
    if options.only in (None, "int8"):
        print("\nrow x out x in, int8: GB/s of weights")
        int8_products(options.rounds, verdict)
    print("\nwhere the rule does not choose the fastest by more than 5%:", *verdict.misses or ["nowhere"], sep="\n  ")


if __name__ == "__main__":
    main()
