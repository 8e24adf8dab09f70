"""How a program starts and ends: its exit code, signals, and one line for a user's mistake."""

import atexit
import errno
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TextIO

# They end a program: Ctrl-C, a request to end, a terminal that is closed, and the warning of a batch system before it
# kills. Windows has only the first two.
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]

# Words in the messages of RuntimeErrors, in this order from PyTorch's CPU allocator, from CUDA and MPS, and from C++
OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "bad_alloc")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
OWN_PACKAGES = (__package__.partition(".")[0], "study")


def print_note(text: str) -> None:
    """Print to stderr, because stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def quantity(count: int, noun: str, plural: str = "") -> str:
    """``1 token``, ``2,000 tokens``; ``plural`` is for nouns without a regular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def enumerated(names: Sequence[str]) -> str:
    """The first eight names, and how many more there are."""
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def print_rows(rows: Mapping[str, str], file: TextIO | None = None) -> None:
    """Print a table of names and texts, a line each; to stdout without a ``file``."""
    for name, text in rows.items():
        print(f"{name:<14} {text}", file=file, flush=True)


@contextmanager
def explain_out_of_memory(advice: str, device: object = "this machine") -> Iterator[None]:
    """If the memory of ``device`` is not enough for the ``with`` block, raise ValueError with ``advice``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        raise ValueError(f"{device} has too little free memory: {advice}") from None


@contextmanager
def on_stop(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler`` for each of STOP_SIGNALS in the ``with`` block.

    A signal that the parent process ignores stays ignored: SIGHUP under nohup, SIGINT in a background job.
    """
    handled = {n: previous for n in STOP_SIGNALS if (previous := signal.getsignal(n)) is not signal.SIG_IGN}
    try:
        for number in handled:
            signal.signal(number, handler)
        yield
    finally:
        for number, previous in handled.items():
            signal.signal(number, previous)


def end_program(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: end the program by an exception, so that temporary files are removed."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def discard_stdout() -> None:
    """Discard the text that could not be written to stdout, and all that follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class IgnoringErrors(io.FileIO):
    """A file whose write errors are ignored: a full disk, a pipe without a reader, or a terminal that was closed."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def ignore_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def restored_process() -> Iterator[None]:
    """Restore at the end what a program changes in its process, because IPython's %run and runpy go on in it."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if handlers[signal.SIGINT] is signal.SIG_DFL:  # set by startup.py
        handlers[signal.SIGINT] = signal.default_int_handler
    streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    errors = {stream: stream.errors for stream in streams.values() if isinstance(stream, io.TextIOWrapper)}
    format_warning = warnings.formatwarning
    try:
        yield
    finally:
        vars(sys).update(streams)
        for stream, mode in errors.items():
            if not stream.closed:
                stream.reconfigure(errors=mode)
        warnings.formatwarning = format_warning
        for number, handler in handlers.items():
            signal.signal(number, handler)


def open_streams() -> None:
    """Prepare stdout and stderr for whatever they are connected to.

    Characters that an output cannot encode are replaced by ``?``. Write errors on stderr are ignored, because a lost
    message must not end a run.
    """
    stderr = sys.__stderr__
    # Not if a test has replaced it, and not the terminal of Windows, which takes bytes in another encoding.
    if stderr is not None and sys.stderr is stderr and not (sys.platform == "win32" and stderr.isatty()):
        file = IgnoringErrors(stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(file), stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def raised_in(error: Exception) -> str:
    """The package, or the module outside one, that raised the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0]


def message_of(error: Exception) -> str:
    """What to tell the user, in one line."""
    message = str(error)
    if isinstance(error, OSError):
        if error.filename and error.strerror:
            message = f"{error.filename}: {error.strerror}"
        if error.errno in DISK_FULL:
            message += ": free some space there, or write to another disk"
    return " ".join(message.split())


def run_script(main: Callable[[], int | None], script: str) -> NoReturn:
    """Run ``main`` and exit: code 2 and one line for a user's mistake, 0 for a broken pipe, 130 after Ctrl-C.

    A mistake is an OSError, or a ValueError raised in this project, or a warning of it with PYTHONWARNINGS=error. A
    ValueError from elsewhere, such as the user's own network, keeps its traceback, which says where it was raised. The
    other STOP_SIGNALS end the program with 128 plus their number.
    """
    # When Python ends, the work is done: a signal would only change the exit code, or print a traceback.
    atexit.register(ignore_stop_signals)
    with restored_process():
        sys.exit(exit_code(main, script))


def exit_code(main: Callable[[], int | None], script: str) -> int | str:  # a text, which sys.exit prints
    """Run ``main`` for ``run_script``."""
    open_streams()
    own = {*OWN_PACKAGES, main.__module__.partition(".")[0]}
    warnings.formatwarning = lambda message, *_, **__: f"{script}: warning: {message}\n"
    code: int | str
    try:
        with on_stop(end_program), explain_out_of_memory("close other programs, or use smaller settings"):
            code = main() or 0
            sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has closed the pipe, which is not an error
        code = 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        code = error.code or 0
    except (OSError, ValueError, UserWarning) as error:
        if not isinstance(error, OSError) and raised_in(error) not in own:
            raise
        code = 2
        print(f"{script}: error: {message_of(error)}", file=sys.stderr)
    ignore_stop_signals()
    try:
        sys.stdout.flush()
    except OSError:  # a full disk or a closed pipe or terminal: Python would fail again, with code 120
        discard_stdout()
    return code
