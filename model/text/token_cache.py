"""The cache of what can be made or fetched again: token ids, tokenizers, downloads.

    python -m model.text.token_cache                    what is there, how large, made of what, and which runs used it
    python -m model.text.token_cache --remove_unused    remove what no run directory that still exists has used

It is in $XDG_CACHE_HOME/ropewalk, by default ~/.cache/ropewalk. An entry is a directory, with about.json and used_by
in it, made under a lock: of two processes that want the same one, the second waits for the first.
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
from ..cli.files import TEXTS, printable, read_json, write_json

NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}
ABOUT, USED_BY, DOWNLOADS = "about.json", "used_by", "downloads"


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def download_path(url: str) -> Path:
    """Where the file behind ``url``, less what follows a #, is kept."""
    address = urldefrag(url).url
    name = os.path.basename(unquote(urlsplit(address).path)) or "index.txt"
    return cache_home() / DOWNLOADS / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"


@contextmanager
def explained(cache_dir: Path) -> Iterator[None]:
    """A full or read-only disk, as a ValueError that says where the cache is and how to have it elsewhere."""
    try:
        yield
    except OSError as error:
        place = Path(os.fsdecode(error.filename)) if error.filename is not None else cache_dir
        concerned = place.is_relative_to(cache_dir) or cache_dir.is_relative_to(place)  # or what it would lie in
        if error.errno not in NO_ROOM or not concerned:
            raise
        raise ValueError(
            f"{error.filename or cache_dir}: {error.strerror}: the cache is kept there; set XDG_CACHE_HOME to have it "
            f"elsewhere, or see `python -m {__package__}.token_cache`"
        ) from None


def make_entry(
    folder: Path, specs: Sequence[str | Path], fill: Callable[[Path], object], whole: Callable[[], bool]
) -> None:
    """Let ``fill`` write the files of ``folder`` into a directory beside it, which then gets its name.

    One process at a time: who comes second finds the first one's work, if it is ``whole``.
    """
    with explained(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if whole():
                return
            temporary = folder.with_name(f".{folder.name}.tmp")  # what a killed process left there is discarded
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                fill(temporary)
                sources = [printable(os.path.abspath(spec) if os.path.exists(spec) else str(spec)) for spec in specs]
                write_json(temporary / ABOUT, {"sources": sources})
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
        print(f"waiting for another process, which prepares the same text ({folder})", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def note_use(folder: Path, run: Path) -> None:
    """Write down that the run directory uses the entry, so that it is not removed before the run is.

    In a read-only cache, perhaps of several users, this is left out, and nothing can be removed either.
    """
    if str(run.absolute()) not in users(folder):
        with suppress(OSError), (folder / USED_BY).open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{run.absolute()}\n")


def users(folder: Path) -> list[str]:
    file = folder / USED_BY
    return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if file.exists() else []


class CacheEntry(NamedTuple):
    path: Path
    size: int  # bytes
    sources: list[str]
    runs: list[str]  # that used it and still exist


def cache_entries(home: Path) -> list[CacheEntry]:
    """What the cache holds, the largest first. A download is in use as long as an entry made of it is."""
    found = []
    for path in sorted([*home.glob("tokens-*"), *home.glob("tokenizer-*")]):
        try:
            sources = read_json(path / ABOUT, {"sources": TEXTS})["sources"]
        except (OSError, ValueError, KeyError):
            sources = ["?"]
        found.append(CacheEntry(path, _size(path), sources, [run for run in users(path) if Path(run).is_dir()]))
    for path in sorted((home / DOWNLOADS).glob("*")):
        runs: set[str] = set()
        for entry in found:
            if path.name in [_download_name(source) for source in entry.sources]:
                runs |= set(entry.runs)
        found.append(CacheEntry(path, _size(path), ["fetched"], sorted(runs)))
    return sorted(found, key=lambda entry: -entry.size)


def _download_name(source: str) -> str | None:
    return download_path(source).name if source.startswith(("http://", "https://")) else None


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def remove(entry: CacheEntry) -> None:
    if entry.path.is_dir():
        with _locked(entry.path):
            shutil.rmtree(entry.path)
    else:
        entry.path.unlink()


def main() -> None:
    parser = Parser(prog=f"{__package__}.token_cache", description="List what the cache of texts and tokenizers holds.")
    parser.add_argument("--remove_unused", action="store_true", help="remove what no existing run directory has used")
    flags = parser.parse_args()
    home = cache_home()
    freed = 0
    for entry in cache_entries(home):
        use = f"used by {', '.join(entry.runs)}" if entry.runs else "used by no run"
        removing = flags.remove_unused and not entry.runs
        print(f"{entry.size / 1e6:9.1f} MB  {entry.path.name}  of {', '.join(entry.sources)}")
        print(f"{'':14}{use}{', removed' if removing else ''}")
        if removing:
            remove(entry)
            freed += entry.size
    outcome = f"{freed / 1e6:.1f} MB removed" if flags.remove_unused else "remove with --remove_unused"
    print(f"{home}: {outcome}")


if __name__ == "__main__":
    run_script(main, f"{__package__}.token_cache")
