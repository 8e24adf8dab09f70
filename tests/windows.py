"""Train, resume, generate and convert with the restrictions of Windows. It runs as a separate process.

POSIX-only functions are missing. Directories cannot be opened, files that are open for reading only cannot be synced,
and files that are open or memory-mapped cannot be replaced. The texts have characters that the console's code page
lacks.
"""

import builtins
import ctypes
import errno
import importlib
import io
import os
import shutil
import signal
import sys
from pathlib import Path

ABSENT = ["fcntl", "grp", "posix", "pwd", "resource", "termios", "tty", "pty", "syslog"]
# Dependencies support Windows themselves, so they are imported before the restrictions are set up.
DEPENDENCIES = ["torch", "torch.distributed", "torch.testing", "numpy.testing", "filelock", "sentencepiece", "tqdm"]
DEPENDENCIES += ["safetensors.torch", "torch.nn.parallel", "torch.distributed.checkpoint.state_dict"]
SIZE = {"tokenizer": "char", "dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 16}
STEPS = {"data": "text.txt", "batch_size": 4, "max_steps": 4, "eval_every": 2, "sample_every": 2, "eval_tokens": 100}
SAMPLING = {"prompt": "🐍", "max_new_tokens": 9, "temperature": 2, "seed": 3}
TEXT = "".join(f"{n} é {n} 🐍 {n + n}.\n" for n in range(200))


def restrict_to_windows() -> None:
    import fcntl  # made unavailable to the library below

    real_open, real_replace, real_fsync, real_cdll = os.open, os.replace, os.fsync, ctypes.CDLL
    real_io_open = io.open

    def open_file(path, flags, mode=0o777, *, dir_fd=None):
        if os.path.isdir(path) and not flags & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, "Windows cannot open a directory", str(path))
        return real_open(path, flags, mode, dir_fd=dir_fd)

    def fsync(descriptor):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Windows cannot sync a file that is open for reading only")
        real_fsync(descriptor)

    def replace(source, target):
        used = real_io_open("/proc/self/maps", encoding="utf-8").read().splitlines()
        used += [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        for path in map(os.path.realpath, (source, target)):
            if any(line.endswith(path) for line in used):
                raise PermissionError(errno.EACCES, "Windows cannot replace a file that is mapped or open", path)
        if os.path.isdir(target):
            raise PermissionError(errno.EACCES, "Windows cannot replace a directory", str(target))
        real_replace(source, target)

    def open_text(path, *arguments, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "Windows has no /proc", str(path))
        return real_io_open(path, *arguments, **options)

    def load_library(name, *arguments, **options):
        if name is None:
            raise TypeError("Windows has no library without a name")
        return real_cdll(name, *arguments, **options)

    os.open, os.replace, os.fsync = open_file, replace, fsync
    io.open = builtins.open = open_text
    ctypes.CDLL = load_library
    for name in ("fork", "sched_getaffinity", "sysconf", "getuid", "geteuid", "uname", "killpg"):
        delattr(os, name)
    for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "alarm", "setitimer", "pthread_sigmask"):
        delattr(signal, name)
    sys.modules.update(dict.fromkeys([*ABSENT, "matplotlib"]))  # matplotlib would need the Windows registry
    shutil._use_fd_functions = False  # Windows has no descriptors of directories, so rmtree goes by names
    sys.platform = "win32"


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    for name in DEPENDENCIES:
        importlib.import_module(name)
    restrict_to_windows()
    import convert
    import generate
    import train
    from model import kernels
    from model.cli import run_script

    def run(script, *arguments, **settings):
        sys.argv = [f"{script.__name__}.py", *arguments, *(f"--{name}={value}" for name, value in settings.items())]
        try:
            run_script(script.main, sys.argv[0])
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{sys.argv} ended with {ended.code}") from None

    Path("text.txt").write_text(TEXT, encoding="utf-8")
    kernels.CPU = kernels.Processor(bfloat16=True, avx2=True, avx512=True)
    run(train, **SIZE, **STEPS, out_dir="run")
    run(train, "--resume", out_dir="run", max_steps=6)
    run(train, **STEPS, init_from="run", out_dir="tuned")
    for options in ([], ["--jsonl"]):
        run(generate, "run", *options, **SAMPLING)
    run(convert, "run", "model.bin", to="llama2c")
    run(convert, "model.bin", "back", to="hf", tokenizer="run/tokenizer.model")
    run(generate, "back", max_new_tokens=5)


if __name__ == "__main__":
    main()
