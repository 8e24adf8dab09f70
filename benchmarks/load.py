"""Measure the memory and time that loading a checkpoint takes: python benchmarks/load.py [--directory DIR]

Writes a model of 1.1 GB (in float32) in each format, loads each in a new process, and compares the peak of resident
memory, above that of Python and torch, with the size of the loaded network. The directory needs 3 GB; /dev/shm is
fast. Linux only, because it reads /proc/self/status.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from convert import open_source
from model import ModelArgs, Transformer
from model.weights import llama2c, load_model, meta, save_model

ARCHITECTURE = {"dim": 1536, "n_layers": 8, "n_heads": 16, "hidden_dim": 4096, "vocab_size": 16000, "max_seq_len": 512}


def memory(name: str) -> int:
    """A value of /proc/self/status in bytes: VmRSS is the current resident memory, VmHWM its peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {name}")


def measure(path: Path, dtype: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:  # load once, so that imports on first use are not measured
        save_model(Transformer(ModelArgs(dim=8, n_layers=1, n_heads=1)), directory)
        load_model(directory)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the peak
    before, begin = memory("VmRSS"), time.perf_counter()
    model = open_source(path).model(dtype=getattr(torch, dtype))
    seconds = time.perf_counter() - begin
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"size": size, "peak": memory("VmHWM") - before, "seconds": seconds}


def write(directory: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (name, checkpoint, dtype to load it in), one at a time, to save disk space."""
    model = Transformer(ModelArgs(**ARCHITECTURE))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", file=sys.stderr)
    llama2c.save(model, directory / "model.bin")
    yield "llama2.c, float32", directory / "model.bin", "float32"
    (directory / "model.bin").unlink()
    for dtype in ("float32", "bfloat16"):
        model = model.to(getattr(torch, dtype))
        save_model(model, directory / dtype)
        (directory / "meta").mkdir(exist_ok=True)
        meta.save(model, directory / "meta")
        for name, path in {"Hugging Face": directory / dtype, "Meta": directory / "meta"}.items():
            yield f"{name}, {dtype}", path, dtype
            if dtype == "bfloat16":
                yield f"{name}, bfloat16 to float32", path, "float32"


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of loading.")
    parser.add_argument("--directory", type=Path, help="where to write the models (default: a temporary directory)")
    parser.add_argument("--measure", nargs=2, metavar=("PATH", "DTYPE"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        print(json.dumps(measure(Path(flags.measure[0]), flags.measure[1])))
        return
    with tempfile.TemporaryDirectory(dir=flags.directory) as directory:
        print("| checkpoint | network, MB | peak, MB | peak / network | seconds |\n|---|---|---|---|---|")
        for name, path, dtype in write(Path(directory)):
            command = [sys.executable, __file__, "--measure", str(path), dtype]
            done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
            measured = json.loads(done.stdout)
            size, peak = measured["size"] / 1e6, measured["peak"] / 1e6
            print(f"| {name} | {size:.0f} | {peak:.0f} | {peak / size:.2f} | {measured['seconds']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
