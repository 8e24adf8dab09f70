"""Kill a script again and again: what it leaves at last must be what it leaves undisturbed. For faults.py.

Half of the kills (SIGKILL) come at random moments, half in the midst of writing a file; then the same command goes on.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from model.weights import load_model
from model.weights.tensors import load_tensors

SIZES = {"dim": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 32, "batch_size": 8}
SIZES |= {
    "micro_batch_size": 4,
    "dropout": 0.1,
    "eval_every": 5,
    "eval_tokens": 500,
    "sample_every": 0,
    "dtype": "float32",
}
SIZES |= {"device": "cpu", "minutes": 1_000_000}  # by steps alone: the default's minutes would end a run that was slow
TINY = [f"--{name}={value}" for name, value in SIZES.items()]
STATE, BEST, METRICS = "training_state.safetensors", "model.safetensors", "metrics.jsonl"
WRITING, ELSEWHERE = "while writing a file", "elsewhere"
Files = dict[str, object]


class Process(Protocol):
    """What is needed of subprocess.Popen."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class Group:
    """A script and all processes that it starts, as torchrun does, killed together."""

    def __init__(self, *command: object, cache: Path) -> None:
        words, nowhere = list(map(str, command)), subprocess.DEVNULL
        self.process = subprocess.Popen(words, stdout=nowhere, stderr=nowhere, env=environment(cache))
        self.poll = self.process.poll

    def kill(self) -> None:
        """Children first found, then all killed: those of torchrun have sessions of their own."""
        for pid in family(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def family(pid: int) -> list[int]:
    """The process and its descendants, as /proc has them; alone where there is no /proc."""
    found = [pid]
    for file in Path("/proc").glob(f"{pid}/task/*/children"):
        found += [each for child in file.read_text(encoding="ascii").split() for each in family(int(child))]
    return found


def environment(cache: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as users run them
    return own | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}


def kill_repeatedly(
    start: Callable[[Path], Process | None], content: Callable[[Path], Files], scratch: Path, kills: int,
    patience: float, seed: int,
) -> Counter[str]:  # fmt: skip
    """Kill what ``start`` starts ``kills`` times, and let it go on each time. Returns where they hit.

    ``start`` gets the directory to write into, new or left by a kill, and gives None when all is done there already.
    A kill comes at most ``patience`` seconds after the first sign of work. Raises AssertionError where the end differs
    from that of an undisturbed run.
    """
    rng, hits, number = random.Random(seed), Counter[str](), 0
    expected = content(finished(start, scratch / "undisturbed"))
    while hits.total() < kills:
        number += 1
        directory = scratch / f"killed-{number}"
        while hits.total() < kills and (process := start(directory)) is not None:
            before = signs(directory)
            while process.poll() is None and signs(directory) == before:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, patience))
            while hits.total() % 2 and process.poll() is None and not unfinished(directory):
                pass  # a file is half-written for a millisecond or two
            if process.poll() is not None:
                assert wait(process) == 0, f"ended with {wait(process)} after {hits.total()} kills"
                break
            process.kill()
            wait(process)
            hits[WRITING if unfinished(directory) else ELSEWHERE] += 1
        found = content(finished(start, directory))
        assert found.keys() == expected.keys(), f"other files than undisturbed: {found.keys() ^ expected.keys()}"
        assert not (differ := [name for name in found if found[name] != expected[name]]), f"{differ[:3]} differ"
        assert not unfinished(directory), f"{unfinished(directory)} stays"
    return hits


def finished(start: Callable[[Path], Process | None], directory: Path) -> Path:
    if (process := start(directory)) is not None:
        assert wait(process) == 0, f"ended with {wait(process)}"
    return directory


def wait(process: Process) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.001)
    return code


def signs(directory: Path) -> list[int]:
    """Changes as soon as something is written: starting Python takes seconds, in which there is nothing to disturb."""
    return [file.stat().st_size for file in directory.rglob("*") if file.is_file() and file.name != ".lock"]


def unfinished(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob(".*.tmp")]


def trained(directory: Path) -> Files:
    """All of a run but the times, which are the machine's: weights, optimizer state, metrics, tokens."""
    found: Files = {}
    for file in directory.rglob("*"):
        if file.name in (STATE, BEST):
            tensors = load_tensors(file)
            found |= {f"{file.name} {name}": tensor.numpy().tobytes() for name, tensor in tensors.items()}
        if file.name == METRICS:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            found[METRICS] = [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]
        if file.suffix == ".bin":
            found[file.name] = file.read_bytes()
    return found


def converted(directory: Path) -> Files:
    state = load_model(next(path for path in directory.iterdir() if path.name in ("new", "new.bin"))).state_dict()
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def compared(directory: Path) -> Files:
    lines = [json.loads(line) for line in (directory / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return {f"{line['scheme']} {line['seed']}": line["bits_per_byte"] for line in lines} | {"lines": len(lines)}


def training(text: Path, cache: Path, torchrun: bool, steps: int) -> Callable[[Path], Process | None]:
    many = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

    def start(directory: Path) -> Process | None:
        config = directory / "config.toml"
        new = [*TINY, "--tokenizer", "char", "--data", text, "--max_steps", steps, "--out_dir", directory]
        what = ["--resume", "--out_dir", directory] if config.exists() else new
        if (directory / STATE).exists() and len((directory / METRICS).read_bytes().splitlines()) == steps:
            return None
        return Group(*(many if torchrun else [sys.executable]), ROOT / "train.py", *what, cache=cache)

    return start


def tokenizing(text: Path) -> Callable[[Path], Process | None]:
    """The cache lies in the directory; the run of one step that follows is outside of it."""

    def start(directory: Path) -> Process | None:
        directory.mkdir(exist_ok=True)
        if list(directory.glob("ropewalk/tokens-*/meta.json")):
            return None
        out = Path(tempfile.mkdtemp(dir=directory.parent))
        small = [*TINY, "--vocab_size", 400, "--max_steps", 1, "--data", text, "--out_dir", out / "run"]
        return Group(sys.executable, ROOT / "train.py", *small, cache=directory)

    return start


def converting(source: Path, to: str, cache: Path) -> Callable[[Path], Process | None]:
    def start(directory: Path) -> Process | None:
        directory.mkdir(exist_ok=True)
        target = directory / ("new.bin" if to == "llama2c" else "new")
        if target.exists():
            return None
        for half in [*directory.glob(".*.tmp"), *directory.glob("*.tokenizer.bin")]:  # as the error would tell the user
            subprocess.run(["rm", "-r", str(half)], check=True)
        return Group(sys.executable, ROOT / "convert.py", source, target, "--to", to, cache=cache)

    return start


def comparing(text: Path, cache: Path) -> Callable[[Path], Process | None]:
    sizes = {"steps": 8, "batch_size": 2, "length": 8, "dim": 16, "n_layers": 1, "vocab_size": 320, "windows": 2}
    words = ["--schemes", "rope", "none", "--seeds", 2, *(f"--{name}={value}" for name, value in sizes.items())]

    def start(directory: Path) -> Process | None:
        directory.mkdir(exist_ok=True)
        where = ["--data", text, "--results", directory / "results.jsonl", "--keep", directory / "models"]
        return Group(sys.executable, ROOT / "study.py", "compare", *words, *where, cache=cache)

    return start
