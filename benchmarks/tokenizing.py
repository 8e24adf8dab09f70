"""Measure the speed and memory of tokenizing a large text: python benchmarks/tokenizing.py"""

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the library in the repository

from model.text.prepare import load_dataset, tokenize
from model.text.python_docs import python_docs
from model.text.sources import open_documents
from model.text.tokenizer import SentencePieceTokenizer
from model.text.train_tokenizer import train_tokenizer


def generate_text(file: Path, megabytes: int) -> None:
    """Write lines of the bundled documentation, drawn at random, so that no long passage repeats."""
    lines = [line for text in python_docs() for line in text.splitlines(keepends=True)]
    draw = random.Random(0)
    with file.open("w", encoding="utf-8", newline="") as out:
        while out.tell() < megabytes * 1_000_000:
            out.write("".join(draw.choices(lines, k=20_000)))


def resident_memory(process: str = "self") -> int:
    """The resident memory in bytes of a process and its children, including mapped files and libraries. Linux only."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    total = sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in file.read_text(encoding="utf-8").split():
            total += resident_memory(child)
    return total


class PeakMemory(threading.Thread):
    """Measures the peak memory while a ``with`` block runs: at its start, and ten times per second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._done = threading.Event()

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        self.bytes = resident_memory()
        while not self._done.wait(0.1):
            self.bytes = max(self.bytes, resident_memory())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the generated text (default: 1000)")
    parser.add_argument("--vocab_size", type=int, default=4096, help="vocabulary size (default: 4096)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        generate_text(text, flags.megabytes)
        megabytes = text.stat().st_size / 1e6
        start = time.perf_counter()
        tokenizer = SentencePieceTokenizer(train_tokenizer(python_docs(), Path(folder), vocab_size=flags.vocab_size))
        print(f"train a tokenizer of {flags.vocab_size} pieces on 2 MB: {time.perf_counter() - start:.1f} s")
        start = time.perf_counter()
        with PeakMemory() as peak:
            tokenize(Path(folder), open_documents([text]), tokenizer)
        seconds = time.perf_counter() - start
        data = load_dataset(Path(folder))
        print(
            f"{megabytes:.0f} MB in {seconds:.2f} s ({megabytes / seconds:.1f} MB/s), "
            f"{len(data.train) + len(data.val)} tokens, peak memory {peak.bytes / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
