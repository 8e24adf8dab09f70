"""The cache of token ids, tokenizers and downloads.

    python -m model.text.token_cache                    list the entries with size, sources and runs
    python -m model.text.token_cache --remove_unused    remove the entries that no existing run uses

It is in $XDG_CACHE_HOME/ropewalk, by default ~/.cache/ropewalk. Token ids and tokenizers are directories with
about.json and used_by, made under a lock: if two processes need the same one, the second waits and then reuses it.
Downloads are files.
"""

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

from filelock import FileLock, Timeout

from ..cli import Parser, run_script
from ..cli.files import TEXTS, displayable_name, read_json, write_json

NOT_WRITABLE = {errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}
ABOUT, USED_BY, DOWNLOADS = "about.json", "used_by", "downloads"


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def download_path(url: str) -> Path:
    """The path of a downloaded file in the cache. The fragment of ``url`` is ignored."""
    address = urldefrag(url).url
    name = os.path.basename(unquote(urlsplit(address).path)) or "index.txt"
    return cache_home() / DOWNLOADS / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"


@contextmanager
def explain_disk_errors(cache_dir: Path) -> Iterator[None]:
    """Report a full or read-only disk as a ValueError that tells how to move the cache."""
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if error.filename is not None else cache_dir
        in_cache = path.is_relative_to(cache_dir) or cache_dir.is_relative_to(path)  # inside, or a parent of the cache
        if error.errno not in NOT_WRITABLE or not in_cache:
            raise
        raise ValueError(
            f"{error.filename or cache_dir}: {error.strerror}: the cache cannot be written; set XDG_CACHE_HOME to move "
            f"it, or free space with `python -m {__package__}.token_cache --remove_unused`"
        ) from None


def make_entry(
    folder: Path, specs: Sequence[str | Path], fill: Callable[[Path], object], is_complete: Callable[[], bool]
) -> None:
    """Make the cache entry ``folder`` unless ``is_complete``. Only one process at a time makes it.

    ``fill`` writes the files into a temporary directory, which is renamed when it is done.
    """
    with explain_disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if is_complete():
                return
            temporary = folder.with_name(f".{folder.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)  # a process that was killed may have left it
            temporary.mkdir()
            try:
                fill(temporary)
                sources = [os.path.abspath(spec) if os.path.exists(spec) else str(spec) for spec in specs]
                write_json(temporary / ABOUT, {"sources": [displayable_name(source) for source in sources]})
                if folder.exists():
                    shutil.rmtree(folder)
                os.rename(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    locks = folder.with_name("locks")
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / f"{folder.name}.lock")
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        print(f"waiting for another process that uses {folder}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def note_use(folder: Path, run: Path) -> None:
    """Record that the run directory uses the entry, so that the entry is kept as long as the run.

    In a read-only cache nothing is recorded, and nothing can be removed either.
    """
    if str(run.absolute()) not in runs_using(folder):
        with suppress(OSError), (folder / USED_BY).open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{run.absolute()}\n")


def runs_using(folder: Path) -> list[str]:
    file = folder / USED_BY
    return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if file.exists() else []


class CacheEntry(NamedTuple):
    path: Path
    size: int  # bytes
    sources: list[str]
    runs: list[str]  # run directories that use it and exist


def cache_entries(home: Path) -> list[CacheEntry]:
    """The entries of the cache, the largest first. A download is in use if an entry made from it is in use."""
    found = []
    download_users: dict[Path, list[str]] = {}
    for path in sorted([*home.glob("tokens-*"), *home.glob("tokenizer-*")]):
        try:
            sources = read_json(path / ABOUT, {"sources": TEXTS})["sources"]
        except (OSError, ValueError, KeyError):
            sources = ["?"]
        runs = [run for run in runs_using(path) if Path(run).is_dir()]
        found.append(CacheEntry(path, sum(file.stat().st_size for file in path.iterdir()), sources, runs))
        for source in sources:
            download_users.setdefault(download_path(source), []).extend(runs)
    for path in sorted((home / DOWNLOADS).glob("*")):
        users = sorted(set(download_users.get(path, [])))
        found.append(CacheEntry(path, path.stat().st_size, ["a download"], users))
    return sorted(found, key=lambda entry: -entry.size)


def remove(entry: CacheEntry) -> None:
    if entry.path.is_dir():
        with _locked(entry.path):
            shutil.rmtree(entry.path)
    else:
        entry.path.unlink()


def main() -> None:
    parser = Parser(prog=f"{__package__}.token_cache", description="List the cached texts, tokenizers and downloads.")
    parser.add_argument("--remove_unused", action="store_true", help="remove the entries that no existing run uses")
    flags = parser.parse_args()
    home = cache_home()
    freed = 0
    for entry in cache_entries(home):
        use = f"used by {', '.join(entry.runs)}" if entry.runs else "used by no run"
        removing = flags.remove_unused and not entry.runs
        print(f"{entry.size / 1e6:9.1f} MB  {entry.path.name}  from {', '.join(entry.sources)}")
        print(f"{'':14}{use}{', removed' if removing else ''}")
        if removing:
            remove(entry)
            freed += entry.size
    summary = f"{freed / 1e6:.1f} MB removed" if flags.remove_unused else "--remove_unused removes unused entries"
    print(f"{home}: {summary}")


if __name__ == "__main__":
    run_script(main, f"{__package__}.token_cache")
