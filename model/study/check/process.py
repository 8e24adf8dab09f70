"""Run the reader's files in a process of their own, and collect its verdicts, however it ends."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .calls import FUNCTIONS, out_of_time
from .together import TOGETHER
from .verdict import Verdict

GRACE = 1.0  # seconds that a process has to end a call by itself after its time
LINES_SHOWN = 5  # of what a step printed
LINE_BYTES = 200


class Printed:
    """The last lines that each step printed, read from the process in a thread of its own.

    Each step begins with a line of a zero byte and its name.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.lines: dict[str, deque[str]] = {}
        self.counts: dict[str, int] = {}
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        step = ""
        while line := stream.readline(LINE_BYTES):
            text = line.decode("utf-8", "backslashreplace").rstrip()
            if "\0" in text:  # perhaps behind a line that was left open
                text, _, following = text.partition("\0")
            else:
                following = step
            if text or following == step:
                self.lines.setdefault(step, deque(maxlen=LINES_SHOWN)).append(printable(text))
                self.counts[step] = self.counts.get(step, 0) + 1
            step = following

    def of(self, step: str) -> list[str]:
        """Its last lines, and how many there were if not all are here."""
        self._thread.join(GRACE)  # the process has ended: what it printed is read in no time
        lines = list(self.lines.get(step, ()))
        more = self.counts.get(step, 0) - len(lines)
        return [f"({more} lines before these)", *lines] if more else lines


def printable(text: str) -> str:
    """Without control characters, which could clear the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text.expandtabs())


@dataclass
class Progress:
    """What the notes of a process have said so far."""

    left: float  # seconds for the reader's code
    began: float = field(default_factory=time.monotonic)
    startup: float = 0.0  # seconds until the first note
    at: str = ""  # the step it is in
    allowed: float = 0.0  # seconds for this step
    running: float | None = None  # since when the reader's code runs, if it does
    ended: bool = False
    defined: list[str] = field(default_factory=list)  # functions that the files define
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def take(self, note: dict[str, Any]) -> None:
        self.startup = self.startup or time.monotonic() - self.began
        self.ended = self.ended or "end" in note
        if "verdict" in note:
            verdict = Verdict(**note["verdict"])
            self.verdicts[verdict.function] = verdict
        self.defined = note.get("defined", self.defined)
        if "at" in note:
            self.at, self.allowed = note["at"], note["allowed"]
        if "running" in note:
            self.left = note["left"]
            self.running = time.monotonic() if note["running"] else None

    def overdue(self) -> bool:
        return self.running is not None and time.monotonic() - self.running > self.allowed + GRACE


def judge_files(files: list[Path], seconds: float) -> list[Verdict]:
    """The verdicts on all files and functions. What ends the process is left out of the next one.

    Raises ValueError if a single file cannot be run at all.
    """
    found: dict[str, Verdict] = {}
    ended: set[str] = set()  # steps that ended a process
    left = seconds
    restarted = False
    while True:
        # Functions that stopped before are not called again. All others are, since later ones build on them.
        skipped = [step for step, verdict in found.items() if verdict.outcome == "stopped" or step in ended]
        progress, status, printed = run_child(files, skipped, left)
        for step, verdict in progress.verdicts.items():
            verdict.printed = printed.of(step)
            found.setdefault(step, verdict)
        for path in map(str, files):
            if printed.of(path):
                found.setdefault(path, Verdict(path, "loaded", printed=printed.of(path)))
        if progress.ended:
            break
        if not progress.at or progress.at in skipped:
            raise ValueError(f"{files[0]}: {status}")
        found[progress.at] = ended_in(progress.at, status, printed.of(progress.at))
        ended.add(progress.at)
        left = progress.left
        if progress.running is not None:
            left -= time.monotonic() - progress.running
        if restarted:  # starting another process takes from the time as well, so that all together keep it
            left -= progress.startup
        restarted = True
        if left <= 0:
            for name in progress.defined:
                found.setdefault(name, Verdict(name, "stopped", f"not judged: the {seconds:g} seconds were used up"))
            break
    order = [*map(str, files), *FUNCTIONS, TOGETHER]
    return sorted(found.values(), key=lambda verdict: order.index(verdict.function))


def ended_in(step: str, status: str, printed: list[str]) -> Verdict:
    """The verdict on a function, or on a file, that ended the process."""
    if step in (*FUNCTIONS, TOGETHER):
        return Verdict(step, "stopped", status, printed=printed)
    return Verdict(step, "unloaded", f"{step}: {status}", printed=printed)


def run_child(files: list[Path], skipped: list[str], seconds: float) -> tuple[Progress, str, Printed]:
    """Run one process to its end: how far it came, how it ended in words, and what it printed."""
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes.jsonl"
        notes.write_text("", encoding="utf-8")
        words = [sys.executable, "-m", f"{__package__}.child", str(notes), str(seconds), json.dumps(skipped)]
        child = subprocess.Popen(
            [*words, *map(str, files)],
            stdin=subprocess.DEVNULL,  # input() ends at once
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert child.stdout is not None
        printed = Printed(child.stdout)
        progress = Progress(seconds)
        late = False
        try:
            with notes.open(encoding="utf-8") as file:
                while child.poll() is None and not late:
                    read_notes(file, progress)
                    late = progress.overdue()
                    time.sleep(0.02)
                read_notes(file, progress)
        finally:
            child.kill()
            child.wait()
    return progress, in_words(child.returncode, late, progress.allowed), printed


def read_notes(file: IO[str], progress: Progress) -> None:
    """The whole lines that are there; half a line is read again later."""
    while True:
        place = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(place)
            return
        progress.take(json.loads(line))


def in_words(code: int, late: bool, allowed: float) -> str:
    if late:
        return out_of_time(allowed)
    if code < 0:
        return f"the process was killed by signal {-code}; did it use all the memory, or recurse in C?"
    return f"it ended the process with status {code} (os._exit?)"
