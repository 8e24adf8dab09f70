"""What each topic lets its reader choose: one frozen dataclass a topic, which is also its flags. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class Rotate:
    """The worked example: five vectors of length 4, turned pair by pair."""

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
    """Scores see m - n only, norms stay, and why it is q and k that turn, not the embedding."""

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

    model: Annotated[Path | None, "a trained model (default: the notes' sizes with random weights)"] = None
    prompt: Annotated[str, "what the trained model reads"] = "Once upon a time"
    batch: Annotated[int, "rows"] = 2
    length: Annotated[int, "tokens"] = 512
    heads: Annotated[int, "heads"] = 12
    head_dim: Annotated[int, "width of one head"] = 64
    position: Annotated[int, "token that is watched (a negative one counts from the end)"] = 2
    head: Annotated[int, "head that is watched"] = 0
    pair: Annotated[int, "pair that is watched"] = 1


@dataclass(frozen=True)
class Notes:
    """What the notes this project grew from get wrong, each with its number."""


@dataclass(frozen=True)
class Attention:
    """Who looks at whom in a trained model, by layer and head, with its rotation and without."""

    model: Annotated[Path | None, "a trained model (default: the newest run)"] = None
    prompt: Annotated[str, "what it reads"] = "The rope is as long as the walk it was made in, and no longer than that."


@dataclass(frozen=True)
class Extrapolate:
    """Loss by position, inside and far past the trained length, and what scaling and windows do about it."""

    model: Annotated[Path | None, "a trained model (default: the newest run)"] = None
    data: Annotated[tuple[str, ...], "text it is tested on; its end is taken"] = ("python-docs",)
    factor: Annotated[int, "how many times the trained length"] = 8
    windows: Annotated[int, "pieces of text of that length"] = 16


@dataclass(frozen=True)
class Compare:
    """The same small model trained under each scheme, several seeds, tested at 1, 2, 4 and 8 times its length."""

    schemes: Annotated[tuple[str, ...], "which (default: all)"] = ()
    seeds: Annotated[int, "runs of each"] = 3
    results: Annotated[Path, "a JSON line for each finished run; those in it are not run again"] = Path(
        "benchmarks/compare.jsonl"
    )
    steps: Annotated[int, "optimizer steps"] = 600
    batch_size: Annotated[int, "sequences a step"] = 16
    length: Annotated[int, "trained length, in tokens"] = 64
    dim: Annotated[int, "width of the model"] = 64
    n_layers: Annotated[int, "its blocks"] = 2
    n_heads: Annotated[int, "its heads"] = 4
    vocab_size: Annotated[int, "tokens of the BPE tokenizer trained on the data"] = 512
    data: Annotated[tuple[str, ...], "text, whose last tenth is for validation"] = ("python-docs",)
    windows: Annotated[int, "validation windows, each of 8 times the trained length"] = 32
    keep: Annotated[Path | None, "save each trained model below this directory, for the topics that take one"] = None
    dry: Annotated[bool, "only print what is in the results file"] = False


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
    "attention": Attention,
    "extrapolate": Extrapolate,
    "compare": Compare,
    "notes": Notes,
    "page": Page,
}
