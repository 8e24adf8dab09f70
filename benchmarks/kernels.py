"""Time all ways to compute products and attention on this machine, and compare them with what is chosen.

    python benchmarks/kernels.py                        a minute or two
    python benchmarks/kernels.py --only attention --dtypes bfloat16

Products are given in GB/s of weights, for more weights than fit into a cache, and compared with the speed of a sum over
as many bytes. Attention is given in milliseconds. Kernels take turns, and the fastest of several rounds counts. A star
marks the chosen kernel. The last lines list the cases in which another one was more than 5% faster.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.timing import alternate, machine, seconds
from model.cli.machine import DTYPES_BY_NAME
from model.fast import direct, int8, kernels, token
from model.fast.compiled import COMPILE_OPTIONS

SHAPES = [(32000, 288), (768, 288), (288, 288), (5632, 2048), (2048, 5632), (32000, 2048)]  # (out, in)
ROWS = (1, 4, 16)
COMPILED_LINEAR = kernels.LINEAR | {"loop": token.linear}  # the last one is what a compiled token runs
BYTES = 2**28  # of weights that are read in one round


class AttentionCase(NamedTuple):
    """The sizes of an attention, in the shape letters of model/__init__.py."""

    B: int
    H: int
    K: int
    T: int
    S: int
    D: int
    training: bool = False  # with the backward pass


ATTENTION = {
    "training, 16 x 256, 8 / 8 heads of 32": AttentionCase(16, 8, 8, 256, 256, 32, training=True),
    "training, 16 x 256, 8 / 4 heads of 32": AttentionCase(16, 8, 4, 256, 256, 32, training=True),
    "training, 4 x 1024, 8 / 8 heads of 32": AttentionCase(4, 8, 8, 1024, 1024, 32, training=True),
    "prompt of 512, 32 / 4 heads of 64": AttentionCase(1, 32, 4, 512, 512, 64),
    "the same after 512 tokens": AttentionCase(1, 32, 4, 512, 1024, 64),
    "the same after 1,536 tokens": AttentionCase(1, 32, 4, 512, 2048, 64),
    "prompt of 256, 6 / 6 heads of 48": AttentionCase(1, 6, 6, 256, 256, 48),
    "prompt of 32, 6 / 6 heads of 48": AttentionCase(1, 6, 6, 32, 32, 48),
    "one token after 1,900, 32 / 4 heads of 64": AttentionCase(1, 32, 4, 1, 1901, 64),
    "one token after 128, 6 / 6 heads of 48": AttentionCase(1, 6, 6, 1, 129, 48),
}
# As a token is compiled, which has no Python around it
KERNEL_OPTIONS = COMPILE_OPTIONS | {"cpp_wrapper": True}
Run = Callable[[], object]
Kernel = TypeVar("Kernel", bound=Callable[..., Tensor])
Product = Callable[..., Tensor]  # (x, weight) or (x, weight, scales) -> the product


def best_times(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """The shortest time of each in seconds, because other load only makes a kernel slower."""
    return alternate({name: partial(seconds, run) for name, run in runs.items()}, rounds, min)


class Report:
    """Prints the rows of a table, and collects the cases in which the chosen kernel was not the fastest."""

    def __init__(self) -> None:
        self.misses: list[str] = []

    def row(self, case: str, seconds: dict[str, float], chosen: str, format_seconds: Callable[[float], str]) -> None:
        cells = [f"{name} {format_seconds(value)}{'*' if name == chosen else ''}" for name, value in seconds.items()]
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)
        best = min(seconds, key=seconds.__getitem__)
        if seconds[chosen] > 1.05 * seconds[best]:
            self.misses.append(f"{case}: {best} is {seconds[chosen] / seconds[best]:.2f} times as fast as {chosen}")

    def products(
        self,
        case: str,
        candidates: dict[str, Product],
        chosen: str,
        x: Tensor,
        weights: list[tuple[Tensor, ...]],
        rounds: int,
    ) -> None:
        """Time the product of x with all weights, and print it as GB/s of weights."""
        runs = {name: partial(multiply_all, product, x, weights) for name, product in candidates.items()}
        size = sum(weight[0].nbytes for weight in weights)
        self.row(case, best_times(runs, rounds), chosen, lambda seconds: f"{size / seconds / 1e9:.1f}")


def multiply_all(product: Product, x: Tensor, weights: list[tuple[Tensor, ...]]) -> None:
    for weight in weights:
        product(x, *weight)


def compile_all(candidates: dict[str, Kernel]) -> dict[str, Kernel]:
    torch._dynamo.reset()
    return {
        name: torch.compile(kernel, options=KERNEL_OPTIONS, dynamic=False)  # type: ignore[call-overload]
        for name, kernel in candidates.items()
    }


def name_of(kernel: object, candidates: dict[str, Callable[..., Tensor]]) -> str:
    return next(name for name, candidate in candidates.items() if candidate is kernel)


@torch.no_grad()
def time_products(dtype: torch.dtype, rounds: int, report: Report) -> None:
    for rows in ROWS:
        for out, columns in SHAPES:
            count = max(2, BYTES // (out * columns * dtype.itemsize))
            weights = [(torch.randn(out, columns).to(dtype),) for _ in range(count)]
            x = torch.randn(rows, 1, columns).to(dtype)
            case = f"{rows} x {out} x {columns}"
            candidates = {name: product for name, product in kernels.LINEAR.items() if rows == 1 or name != "mv"}
            report.products(case, candidates, name_of(kernels.choose_linear(x), kernels.LINEAR), x, weights, rounds)
            if rows == 1:
                report.products(f"{case}, compiled", compile_all(COMPILED_LINEAR), "loop", x, weights, rounds)


@torch.no_grad()
def time_packed_products(rounds: int, report: Report) -> None:
    """What a token runs in bfloat16, with copies of the weights: for several rows, too."""
    candidates: dict[str, Product] = {
        "F.linear": lambda x, weight, packed: F.linear(x, weight),
        "packed": lambda x, weight, packed: direct.packed_linear(x, packed),
    }
    for rows in ROWS:
        for out, columns in SHAPES:
            plain = [torch.randn(out, columns).bfloat16() for _ in range(max(2, BYTES // (out * columns * 2)))]
            weights = [(weight, direct.pack(weight)) for weight in plain]
            x = torch.randn(rows, 1, columns).bfloat16()
            report.products(f"{rows} x {out} x {columns}, copied", candidates, "packed", x, weights, rounds)


@torch.no_grad()
def time_int8_products(rounds: int, report: Report) -> None:
    eager: dict[str, Product] = {"packed": int8.packed, "dequantized": int8.dequantized}
    for out, columns in SHAPES:
        count = max(2, BYTES // (out * columns))
        weights = [tuple(int8.quantize(torch.randn(out, columns))) for _ in range(count)]
        words = [(weight.view(torch.int32), scales) for weight, scales in weights]
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(1, 1, columns).to(dtype)
            case = f"1 x {out} x {columns}, x in {str(dtype)[6:]}"
            report.products(case, eager, "packed", x, weights, rounds)
            loops = compile_all({"packed": int8.packed, "loop": int8_loop})
            report.products(f"{case}, compiled", loops, "loop", x, weights, rounds)
            report.products(f"{case}, compiled", compile_all({"words": int8_words}), "words", x, words, rounds)


def int8_loop(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """What a compiled token runs on a CPU with AVX-512."""
    return token.row_sums(x, weight) * scales[:, 0]


def int8_words(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """What a compiled token runs on other CPUs."""
    return token.word_sums(x, words) * scales[:, 0]


def attention_runs(case: AttentionCase, dtype: torch.dtype, compiled: bool = False) -> tuple[dict[str, Run], str]:
    """A run of each kernel, in training with its backward pass, and the name of the chosen kernel."""
    candidates = compile_all(kernels.ATTENTION | {"loop": token.attend}) if compiled else kernels.ATTENTION
    query_shape = (case.B, case.H, case.T, case.D)
    key_shape = (case.B, case.K, case.S, case.D)
    q, k, v = (torch.randn(shape).to(dtype) for shape in (query_shape, key_shape, key_shape))
    tensors = [t.requires_grad_(case.training) for t in (q, k, v)]
    grad = torch.randn(query_shape).to(dtype)

    def run(kernel: kernels.Attend) -> None:
        out = kernel(*tensors, None)
        if case.training:
            torch.autograd.grad(out, tensors, grad)

    chosen = "loop" if compiled else name_of(kernels.choose_attention(q, case.S), kernels.ATTENTION)
    return {name: partial(run, kernel) for name, kernel in candidates.items()}, chosen


def time_attention(dtype: torch.dtype, rounds: int, report: Report) -> None:
    for name, case in ATTENTION.items():
        for compiled in (False, True) if case.T == 1 else (False,):
            with torch.set_grad_enabled(case.training):
                runs, chosen = attention_runs(case, dtype, compiled)
                times = best_times(runs, rounds)
            report.row(name + ", compiled" * compiled, times, chosen, lambda seconds: f"{1e3 * seconds:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=("products", "int8", "attention"))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES_BY_NAME, default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    report = Report()
    for dtype_name in options.dtypes:
        dtype = DTYPES_BY_NAME[dtype_name]
        if options.only in (None, "products"):
            print(f"\nrows x out x in, {dtype_name}: GB/s of weights")
            time_products(dtype, options.rounds, report)
            if dtype == torch.bfloat16 and direct.has_packed_product():
                time_packed_products(options.rounds, report)
        if options.only in (None, "attention"):
            print(f"\nattention, {dtype_name}: ms")
            time_attention(dtype, options.rounds, report)
    if options.only in (None, "int8"):
        print("\nrow x out x in, int8: GB/s of weights")
        time_int8_products(options.rounds, report)
    print(
        "\nwhere another kernel is more than 5% faster than the chosen one:", *report.misses or ["nowhere"], sep="\n  "
    )


if __name__ == "__main__":
    main()
