"""Run the reader's files in a separate process, and collect its verdicts, however it ends."""

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
from .faults import Fault
from .together import TOGETHER
from .verdict import Verdict

GRACE = 1.0  # seconds that a process has to end a call itself after its time is used up
LINES_SHOWN = 5  # of the output of a step
LINE_BYTES = 200


class Printed:
    """The last lines that each step printed, read from the process in a thread.

    The process prints a zero byte and the name of the step before each step.
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
            text, separator, next_step = text.partition("\0")  # text before it is a line without a line end
            if text or not separator:
                self.lines.setdefault(step, deque(maxlen=LINES_SHOWN)).append(without_control_characters(text))
                self.counts[step] = self.counts.get(step, 0) + 1
            if separator:
                step = next_step

    def by(self, step: str) -> list[str]:
        """The last lines that a step printed, preceded by the number of those left out."""
        self._thread.join(GRACE)  # the process has ended, so the thread reads the rest and ends too
        lines = list(self.lines.get(step, ()))
        earlier = self.counts.get(step, 0) - len(lines)
        return [f"({earlier} lines before these)", *lines] if earlier else lines


def without_control_characters(text: str) -> str:
    """The text with "?" for control characters, which could clear the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text.expandtabs())


@dataclass
class Progress:
    """The state of a process according to its notes."""

    seconds_left: float  # for the reader's code
    started: float = field(default_factory=time.monotonic)
    startup: float = 0.0  # seconds until the first note
    step: str = ""  # the current step
    allowed: float = 0.0  # seconds for this step
    running_since: float | None = None  # None while no code of the reader is running
    finished: bool = False
    defined: list[str] = field(default_factory=list)  # functions that the files define
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def update(self, note: dict[str, Any]) -> None:
        self.startup = self.startup or time.monotonic() - self.started
        self.finished = note.get("finished", self.finished)
        self.defined = note.get("defined", self.defined)
        if "verdict" in note:
            verdict = Verdict(**note["verdict"])
            verdict.faults = [Fault(*fault) for fault in verdict.faults]
            self.verdicts[verdict.function] = verdict
        if "step" in note:
            self.step, self.allowed = note["step"], note["allowed"]
        if "running" in note:
            self.seconds_left = note["seconds_left"]
            self.running_since = time.monotonic() if note["running"] else None

    def overdue(self) -> bool:
        return self.running_since is not None and time.monotonic() - self.running_since > self.allowed + GRACE


def judge_files(files: list[Path], seconds: float) -> list[Verdict]:
    """The verdicts on all files and functions. If a step ends the process, another process skips it and continues.

    Raises ValueError if a file cannot be run at all.
    """
    found: dict[str, Verdict] = {}
    ended: set[str] = set()  # steps that ended a process
    seconds_left = seconds
    restarted = False
    while True:
        # Functions that raised or stopped are not called again. The others are, because later ones use them.
        skipped = [step for step, each in found.items() if each.outcome in ("raised", "stopped") or step in ended]
        progress, status, printed = run_child(files, skipped, seconds_left)
        for step, verdict in progress.verdicts.items():
            verdict.printed = printed.by(step)
            found.setdefault(step, verdict)
        for path in map(str, files):
            if printed.by(path):
                found.setdefault(path, Verdict(path, "loaded", printed=printed.by(path)))
        if progress.finished:
            break
        step = progress.step
        if not step or step in skipped:
            raise ValueError(f"{files[0]}: {status}")
        if step in (*FUNCTIONS, TOGETHER):
            found[step] = Verdict(step, "stopped", status, printed=printed.by(step))
        else:
            found[step] = Verdict(step, "unloaded", f"{step}: {status}", printed=printed.by(step))
        ended.add(step)
        seconds_left = progress.seconds_left
        if progress.running_since is not None:
            seconds_left -= time.monotonic() - progress.running_since
        if restarted:  # restarts count too, so that many of them cannot exceed the limit
            seconds_left -= progress.startup
        restarted = True
        if seconds_left <= 0:
            for name in progress.defined:
                found.setdefault(name, Verdict(name, "stopped", f"not judged: the {seconds:g} seconds were used up"))
            break
    order = [*map(str, files), *FUNCTIONS, TOGETHER]
    return sorted(found.values(), key=lambda verdict: order.index(verdict.function))


def run_child(files: list[Path], skipped: list[str], seconds: float) -> tuple[Progress, str, Printed]:
    """Run one process to its end: its progress, its end as a message, and its output."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes.jsonl"
        notes.write_text("", encoding="utf-8")
        # -P keeps the current directory, which may hold a model.py or a random.py, off the import path.
        command = [sys.executable, "-P", "-m", f"{__package__}.child", str(notes), str(seconds), json.dumps(skipped)]
        child = subprocess.Popen(
            [*command, *map(str, files)],
            stdin=subprocess.DEVNULL,  # input() raises EOFError
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert child.stdout is not None
        printed = Printed(child.stdout)
        progress = Progress(seconds)
        overdue = False
        try:
            with notes.open(encoding="utf-8") as file:
                while child.poll() is None and not overdue:
                    read_notes(file, progress)
                    overdue = progress.overdue()
                    time.sleep(0.02)
                read_notes(file, progress)
        finally:
            child.kill()
            child.wait()
    status = out_of_time(progress.allowed) if overdue else exit_message(child.returncode)
    return progress, status, printed


def read_notes(file: IO[str], progress: Progress) -> None:
    """Read the complete lines; an incomplete last line is read again later."""
    while True:
        place = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(place)
            return
        progress.update(json.loads(line))


def exit_message(code: int) -> str:
    if code < 0:
        return f"the process was killed by signal {-code}; did it use all the memory, or recurse in C?"
    return f"it ended the process with status {code} (os._exit?)"
