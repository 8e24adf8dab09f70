"""Kill a script repeatedly, and check that the end result is the same as without kills. Used by faults.py.

Half of the kills (SIGKILL) come at random moments, half while a file is written. After each, the work is started again
(training with --resume).
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from convert import open_source
from model.weights.tensors import load_tensors

SETTINGS = {"dim": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 32, "batch_size": 8, "micro_batch_size": 4}
SETTINGS |= {"dropout": 0.1, "eval_every": 5, "eval_tokens": 500, "sample_every": 0, "dtype": "float32"}
SETTINGS |= {"device": "cpu", "minutes": 1_000_000}  # the minutes of the default config would end a slow run
TINY = [f"--{name}={value}" for name, value in SETTINGS.items()]
STATE, BEST, METRICS = "training_state.safetensors", "model.safetensors", "metrics.jsonl"
WRITING, ELSEWHERE = "while writing a file", "elsewhere"
Files = dict[str, object]


class Process(Protocol):
    """The methods of subprocess.Popen that are needed."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class ProcessTree:
    """A script and all processes that it starts, for example under torchrun, which are killed together."""

    def __init__(self, *command: object, cache: Path) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(cache),
        )
        self.poll = self.process.poll

    def kill(self) -> None:
        """Find all processes, then kill them. torchrun starts new sessions, so killing the group is not enough."""
        for pid in process_tree(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


Start = Callable[[Path], Process | None]  # starts a script that writes to the directory; None if its work is done there
Content = Callable[[Path], Files]  # reads the result from the directory


def process_tree(pid: int) -> list[int]:
    """The process and its descendants according to /proc; only the process if there is no /proc."""
    pids = [pid]
    for file in Path("/proc").glob(f"{pid}/task/*/children"):
        for child in file.read_text(encoding="ascii").split():
            pids += process_tree(int(child))
    return pids


def environment(cache: Path) -> dict[str, str]:
    variables = dict(os.environ)
    variables.pop("PYTHONUNBUFFERED", None)  # users rarely set it
    return variables | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}


def kill_repeatedly(
    start: Start, content: Content, scratch: Path, kills: int, longest_wait: float, seed: int
) -> Counter[str]:
    """Start a script, kill it and start it again, until there were ``kills`` kills. Returns where they hit.

    A kill comes at a random moment up to ``longest_wait`` seconds after the script first writes something; every second
    one waits further, until a file is half-written. Raises AssertionError if the result differs from that of an
    undisturbed run.
    """
    rng = random.Random(seed)
    hits = Counter[str]()
    expected = content(run_to_end(start, scratch / "undisturbed"))
    number = 0
    while hits.total() < kills:
        number += 1
        directory = scratch / f"killed-{number}"
        while hits.total() < kills and (process := start(directory)) is not None:
            wait_for_first_write(process, directory)
            time.sleep(rng.uniform(0, longest_wait))
            while hits.total() % 2 and process.poll() is None and not unfinished(directory):
                pass  # without sleeping, because a file is half-written for only a millisecond or two
            if process.poll() is not None:
                assert wait(process) == 0, f"ended with {wait(process)} after {hits.total()} kills"
                break
            process.kill()
            wait(process)
            hits[WRITING if unfinished(directory) else ELSEWHERE] += 1
        result = content(run_to_end(start, directory))
        assert result.keys() == expected.keys(), f"other files than undisturbed: {result.keys() ^ expected.keys()}"
        different = [name for name in result if result[name] != expected[name]]
        assert not different, f"{different[:3]} differ"
        assert not unfinished(directory), f"{unfinished(directory)} is left"
    return hits


def run_to_end(start: Start, directory: Path) -> Path:
    process = start(directory)
    if process is not None:
        assert wait(process) == 0, f"ended with {wait(process)}"
    return directory


def wait(process: Process) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.001)
    return code


def wait_for_first_write(process: Process, directory: Path) -> None:
    """Starting Python takes seconds, in which a kill would disturb nothing."""
    before = file_sizes(directory)
    while process.poll() is None and file_sizes(directory) == before:
        time.sleep(0.001)


def file_sizes(directory: Path) -> list[int]:
    return [file.stat().st_size for file in directory.rglob("*") if file.is_file() and file.name != ".lock"]


def unfinished(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob(".*.tmp")]


def training_result(directory: Path) -> Files:
    """Weights, optimizer state, metrics without times, and tokens."""
    result: Files = {}
    for file in directory.rglob("*"):
        if file.name == BEST or file.match("training_state*.safetensors"):  # of a sharded run, one per process
            tensors = load_tensors(file)
            result |= {f"{file.name} {name}": tensor.numpy().tobytes() for name, tensor in tensors.items()}
        if file.name == METRICS:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            result[METRICS] = [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]
        if file.suffix == ".bin":
            result[file.name] = file.read_bytes()
    return result


def conversion_result(directory: Path) -> Files:
    path = next(path for path in directory.iterdir() if path.name in ("new", "new.bin"))
    return {name: tensor.numpy().tobytes() for name, tensor in open_source(path).model().state_dict().items()}


def comparison_result(directory: Path) -> Files:
    lines = [json.loads(line) for line in (directory / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return {f"{line['scheme']} {line['seed']}": line["bits_per_byte"] for line in lines} | {"lines": len(lines)}


def training(text: Path, cache: Path, torchrun: bool, steps: int) -> Start:
    python = [sys.executable]
    if torchrun:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

    def start(directory: Path) -> Process | None:
        flags = ["--resume", "--out_dir", directory]
        if not (directory / "config.toml").exists():
            flags = [*TINY, "--tokenizer", "char", "--data", text, "--max_steps", steps, "--out_dir", directory]
            flags += ["--fsdp"] if torchrun else []
        if (directory / STATE).exists() and len((directory / METRICS).read_bytes().splitlines()) == steps:
            return None
        return ProcessTree(*python, ROOT / "train.py", *flags, cache=cache)

    return start


def converting(source: Path, to: str, cache: Path) -> Start:
    def start(directory: Path) -> Process | None:
        directory.mkdir(exist_ok=True)
        target = directory / ("new.bin" if to == "llama2c" else "new")
        if target.exists():
            return None
        # Remove half-written files, as the error message tells the user to.
        for unfinished_file in [*directory.glob(".*.tmp"), *directory.glob("*.tokenizer.bin")]:
            subprocess.run(["rm", "-r", str(unfinished_file)], check=True)
        return ProcessTree(sys.executable, ROOT / "convert.py", source, target, "--to", to, cache=cache)

    return start


def comparing(text: Path, cache: Path) -> Start:
    sizes = {"steps": 8, "batch_size": 2, "length": 8, "dim": 16, "n_layers": 1, "vocab_size": 320, "windows": 2}
    flags = ["--schemes", "rope", "none", "--seeds", 2, *(f"--{name}={value}" for name, value in sizes.items())]

    def start(directory: Path) -> Process | None:
        directory.mkdir(exist_ok=True)
        files = ["--data", text, "--results", directory / "results.jsonl", "--keep", directory / "models"]
        return ProcessTree(sys.executable, "-m", "study", "compare", *flags, *files, cache=cache)

    return start
