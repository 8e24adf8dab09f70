"""What each topic lets its reader choose: one frozen dataclass a topic, which is also its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..cache import SINKS


@dataclass(frozen=True)
class Rotate:
    """The worked example: five vectors of length 4, rotated pair by pair."""

    theta: Annotated[float, "base of the frequencies"] = 10000.0


@dataclass(frozen=True)
class Forms:
    """Every way of writing RoPE, side by side: deviation, time, memory, permutation."""

    head_dim: Annotated[int, "width of one head"] = 64
    length: Annotated[int, "positions"] = 512
    heads: Annotated[int, "heads"] = 12
    ratio: Annotated[float, "rope_ratio of ChatGLM2-32k: positions are divided by it"] = 16.0
    repeats: Annotated[int, "calls of which the median time is taken"] = 20


@dataclass(frozen=True)
class Relative:
    """Scores depend on m - n only, norms are kept, and why q and k are rotated, not the embedding."""

    head_dim: Annotated[int, "width of the vectors"] = 64
    distance: Annotated[int, "m - n"] = 7
    theta: Annotated[float, "base of the frequencies"] = 10000.0
    seed: Annotated[int, "of the random vectors"] = 0


@dataclass(frozen=True)
class Decay:
    """Long-term decay: RoFormer's bound and the inner product itself, over distance."""

    head_dim: Annotated[int, "width of one head"] = 128
    length: Annotated[int, "largest distance"] = 4096
    thetas: Annotated[tuple[float, ...], "bases of the frequencies"] = (100.0, 10000.0, 500000.0)


@dataclass(frozen=True)
class Trace:
    """One attention call step by step: expression, shape, dtype and the values of one pair."""

    model: Annotated[Path | None, "a trained model (default: random weights)"] = None
    prompt: Annotated[str, "what the trained model is given"] = "Once upon a time"
    batch: Annotated[int, "rows"] = 2
    length: Annotated[int, "tokens"] = 512
    heads: Annotated[int, "heads"] = 12
    head_dim: Annotated[int, "width of one head"] = 64
    position: Annotated[int, "token whose values are shown (a negative one counts from the end)"] = 2
    head: Annotated[int, "head whose values are shown"] = 0
    pair: Annotated[int, "pair whose values are shown"] = 1


@dataclass(frozen=True)
class Cache:
    """The KV cache, call by call: slots written and read, work saved, and the logits it leaves as they are."""

    model: Annotated[Path | None, "a trained model (default: a small random network)"] = None
    prompt: Annotated[str, "what the first call gives a trained model, which then continues it greedily"] = (
        "Once upon a time"
    )
    length: Annotated[int, "tokens of the first call of the random network"] = 6
    calls: Annotated[tuple[int, ...], "tokens of each of the calls that follow"] = (1, 1, 1, 3, 1)
    max_seq_len: Annotated[int, "slots of the random network's cache"] = 16


@dataclass(frozen=True)
class Mistakes:
    """Common mistakes about RoPE, found in published tutorials and code, each with its number."""


@dataclass(frozen=True)
class Attention:
    """Which tokens each head of a trained model attends to, with its rotation and without."""

    model: Annotated[Path | None, "a trained model (default: the newest run)"] = None
    prompt: Annotated[str | None, "one text (default: windows of the model's own validation text)"] = None
    data: Annotated[tuple[str, ...], "text to take the windows from; its end is taken"] = ()
    tokens: Annotated[int, "tokens of a window, at most the model's context"] = 64
    windows: Annotated[int, "windows over which weights are averaged"] = 16


@dataclass(frozen=True)
class Extrapolate:
    """Loss by position, inside and far past the trained length, and what scaling and windows do about it."""

    model: Annotated[Path | None, "a trained model (default: the newest run)"] = None
    data: Annotated[tuple[str, ...], "text it is tested on; its end is taken (default: its own validation text)"] = ()
    factor: Annotated[int, "how many times the trained length"] = 8
    windows: Annotated[int, "pieces of text of that length"] = 16


@dataclass(frozen=True)
class Endless:
    """Loss far past the context with a cache that forgets, and what is remembered of what it forgot."""

    model: Annotated[Path | None, "a trained model (default: the newest run)"] = None
    data: Annotated[tuple[str, ...], "text it is tested on; its end is taken (default: its own validation text)"] = ()
    factor: Annotated[int, "how many times the trained length"] = 8
    windows: Annotated[int, "pieces of text of that length"] = 16
    keep: Annotated[int, "first tokens of a text that are never dropped (attention sinks)"] = SINKS


@dataclass(frozen=True)
class Compare:
    """The same small model with each position encoding, several seeds, tested at 1, 2, 4 and 8 times its length."""

    schemes: Annotated[tuple[str, ...], "which (default: all)"] = ()
    seeds: Annotated[int, "runs of each"] = 3
    results: Annotated[
        Path | None, "a JSON line for each finished run, which is not run again (default: benchmarks/compare.jsonl)"
    ] = None
    steps: Annotated[int, "optimizer steps"] = 600
    batch_size: Annotated[int, "sequences a step"] = 16
    length: Annotated[int, "trained length, in tokens"] = 64
    dim: Annotated[int, "width of the model"] = 64
    n_layers: Annotated[int, "its blocks"] = 2
    n_heads: Annotated[int, "its heads"] = 4
    vocab_size: Annotated[int, "tokens of the BPE tokenizer trained on the data"] = 512
    data: Annotated[tuple[str, ...], "text, whose last tenth is for validation"] = ("python-docs",)
    windows: Annotated[int, "validation windows, each of 8 times the trained length"] = 32
    keep: Annotated[
        Path | None,
        "have each trained model below this directory, for the topics that take one; trains what is not there",
    ] = None
    dry: Annotated[bool, "only print what is in the results file"] = False


@dataclass(frozen=True)
class Check:
    """Your own RoPE, mask, cache and attention: right, or wrong and which mistake it is."""

    file: Annotated[Path | None, "a Python file, or a directory of them (`exercise` writes some to start from)"] = None
    hint: Annotated[bool, "only the property that fails, with two numbers"] = False
    seconds: Annotated[float, "processor time that one function may take"] = 10.0


@dataclass(frozen=True)
class Exercise:
    """Files with docstrings and no bodies, to write RoPE, a mask, a cache and attention yourself."""

    directory: Annotated[Path | None, "where they go; what is there is not overwritten"] = None


@dataclass(frozen=True)
class Page:
    """One HTML file with the model inside: type, step, and watch it rotate, score and fill its cache."""

    model: Annotated[Path | None, "a trained model of up to 20M parameters (default: the newest run)"] = None
    out: Annotated[Path, "the file to write"] = Path("page.html")
    prompt: Annotated[str, "what the model reads first"] = "Return the number of"
    tokenizer: Annotated[Path | None, "tokenizer.model (default: the one beside the model)"] = None


TOPICS = {
    "rotate": Rotate,
    "trace": Trace,
    "forms": Forms,
    "relative": Relative,
    "decay": Decay,
    "cache": Cache,
    "attention": Attention,
    "extrapolate": Extrapolate,
    "endless": Endless,
    "compare": Compare,
    "exercise": Exercise,
    "check": Check,
    "mistakes": Mistakes,
    "page": Page,
}
