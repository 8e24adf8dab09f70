"""What a script is called, and how it ends: with its exit code, or one line on stderr for a user's mistake."""

import atexit
import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

INSTALLED = __package__ != "model.cli"  # as ``ropewalk``; in the repository the package is called ``model``


def script_name(name: str) -> str:
    """What a script calls itself: ``train.py`` in the repository, ``ropewalk train`` where it is installed."""
    return f"ropewalk {name}" if INSTALLED else f"{name}.py"


def typed_command(name: str) -> str:
    """What a user types to start a script: ``python train.py`` or ``ropewalk train``."""
    return f"ropewalk {name}" if INSTALLED else f"python {name}.py"


def print_note(text: str, end: str = "\n") -> None:
    """A line on stderr: stdout is for the text that a script was asked for."""
    print(text, end=end, file=sys.stderr, flush=True)


def quantity(count: int, noun: str, plural: str = "") -> str:
    """``1 token``, ``2,000 tokens``; ``plural`` is for nouns that do not take an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def fail(script: str, message: str) -> NoReturn:
    print(f"{script}: error: {' '.join(message.split())}", file=sys.stderr)
    leave(2)


def leave(code: int) -> NoReturn:
    """Exit. What stdout cannot take is dropped: Python would try again, complain, and exit with 120.

    From here on Ctrl-C changes nothing, because the work is done: Python's own end would print a traceback, or exit as
    if killed.
    """
    try:
        sys.stdout.flush()
    except (OSError, KeyboardInterrupt) as error:  # the disk is full, or nobody reads and Ctrl-C ends the wait
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 130 if isinstance(error, KeyboardInterrupt) else code
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


class Unfailing(io.FileIO):
    """A file that ignores what it cannot write, on a full disk or into a pipe without a reader."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def make_streams_safe() -> None:
    """What stdout or stderr cannot encode becomes ``?``; what is written to one that was closed (``2>&-``) is lost.

    A message that cannot be written must not end a run, so errors of stderr are ignored, but not those of stdout.
    """
    own = sys.stderr
    if isinstance(own, io.TextIOWrapper) and own is sys.__stderr__:
        raw = io.BufferedWriter(Unfailing(own.fileno(), "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding=own.encoding, line_buffering=True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def terminate(*_: object) -> NoReturn:
    """On SIGTERM: leave as if by an exception, so that temporary files are removed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(128 + signal.SIGTERM)


def die_if_terminated() -> None:
    """Finish what ``terminate`` began: the exit status then shows that SIGTERM ended the process."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with suppress(OSError):
            sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)


def run_script(main: Callable[[], int | None], script: str) -> NoReturn:
    """Run ``main`` and exit: 2 with one line for a user's mistake, 0 for a broken pipe, 130 after Ctrl-C.

    SIGTERM ends the process as ever, but with temporary files removed.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # scripts/startup.py's, until now
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)
        atexit.register(die_if_terminated)  # before others are registered, so that it runs after them
    if not gc.isenabled():  # scripts/startup.py
        gc.freeze()  # what is imported is not looked through again
        gc.enable()
    make_streams_safe()
    warnings.formatwarning = lambda message, *_, **__: f"{script}: warning: {message}\n"
    try:
        code = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has gone: a normal end
        code = 0
    except OSError as error:
        fail(script, f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except ValueError as error:
        if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":  # the name of a file
            fail(script, f"this locale's encoding ({error.encoding}) lacks {error.object!r}: set PYTHONUTF8=1")
        fail(script, str(error))
    except MemoryError:
        fail(script, "the memory that is free is not enough for this: close other programs, or give less")
    except KeyboardInterrupt:
        code = 130
    leave(code)
