"""Run in a process of its own: train, resume, generate and convert as on Windows, as far as a POSIX system can act it.

What only POSIX has is absent; directories cannot be opened, pipes not waited for, files not synced that are open for
reading only, and none replaced that is mapped or open; and texts that the console's code page lacks are printed.
"""

import builtins
import ctypes
import errno
import importlib
import io
import os
import select
import signal
import sys
from pathlib import Path

ABSENT = ["fcntl", "grp", "posix", "pwd", "resource", "termios", "tty", "pty", "syslog"]
# What others wrote has its own care for Windows: it is loaded before the acting begins.
FOREIGN = ["torch", "torch.distributed", "torch.testing", "numpy.testing", "filelock", "sentencepiece", "tqdm"]
FOREIGN += ["safetensors.torch", "torch.nn.parallel"]
SETTINGS = {"tokenizer": "char", "dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 16, "batch_size": 4}
SETTINGS |= {"max_steps": 4, "eval_every": 2, "sample_every": 2, "eval_tokens": 100, "device": "cpu"}
TEXT = "".join(f"{n} é {n} 🐍 {n + n}.\n" for n in range(200))


def refuse_what_windows_refuses() -> None:
    import fcntl  # held back below, for the library

    real_open, real_replace, real_fsync, real_cdll = os.open, os.replace, os.fsync, ctypes.CDLL
    real_io_open = io.open

    def open_file(path, flags, mode=0o777, *, dir_fd=None):
        if os.path.isdir(path) and not flags & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, "Windows opens no directory", str(path))
        return real_open(path, flags, mode, dir_fd=dir_fd)

    def fsync(descriptor):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Windows syncs no file that is open for reading only")
        real_fsync(descriptor)

    def replace(source, target):
        used = real_io_open("/proc/self/maps", encoding="utf-8").read().splitlines()
        used += [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        for path in map(os.path.realpath, (source, target)):
            if any(line.endswith(path) for line in used):
                raise PermissionError(errno.EACCES, "Windows replaces no file that is mapped or open", path)
        real_replace(source, target)

    def open_text(path, *words, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "Windows has no /proc", str(path))
        return real_io_open(path, *words, **options)

    def load_library(name, *words, **options):
        if name is None:
            raise TypeError("Windows has no library without a name")
        return real_cdll(name, *words, **options)

    def wait(*_):
        raise OSError(errno.ENOTSOCK, "Windows waits for sockets only")

    os.open, os.replace, os.fsync, select.select = open_file, replace, fsync, wait
    io.open = builtins.open = open_text
    ctypes.CDLL = load_library
    for name in ("fork", "sched_getaffinity", "sysconf", "getuid", "geteuid", "uname", "killpg"):
        delattr(os, name)
    for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "alarm", "setitimer", "pthread_sigmask"):
        delattr(signal, name)
    sys.modules.update(dict.fromkeys([*ABSENT, "matplotlib"]))  # that one looks for Windows' own registry
    sys.platform = "win32"


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    for name in FOREIGN:
        importlib.import_module(name)
    refuse_what_windows_refuses()
    from model import kernels
    from model.cli import run_script
    from model.scripts import convert, generate, train

    def run(script, *words):
        sys.argv = [f"{script.__name__.rpartition('.')[2]}.py", *map(str, words)]
        try:
            run_script(script.main, sys.argv[0])
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{sys.argv} ended with {ended.code}") from None

    Path("text.txt").write_text(TEXT, encoding="utf-8")
    flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
    for native in (True, False):
        kernels.CPU = kernels.Processor(bfloat16=native, avx512=native)
        run(train, *flags, "--data", "text.txt", "--out_dir", f"run-{native}")
        run(train, "--resume", "--out_dir", f"run-{native}", "--max_steps", 6)
        run(train, "--init_from", f"run-{native}", *flags[10:], "--data", "text.txt", "--out_dir", f"tuned-{native}")
        for more in ([], ["--no_cache"], ["--jsonl"]):
            run(
                generate,
                f"run-{native}",
                "--prompt",
                "🐍",
                "--max_new_tokens",
                9,
                "--temperature",
                2,
                "--seed",
                3,
                *more,
            )
        run(convert, f"run-{native}", f"{native}.bin", "--to", "llama2c")
        run(convert, f"run-{native}", f"meta-{native}", "--to", "meta")
        run(convert, f"meta-{native}", f"back-{native}", "--to", "hf")
        run(generate, f"back-{native}", "--max_new_tokens", 5)


if __name__ == "__main__":
    main()
