"""The cache of token ids, tokenizers, downloads and compiled code.

    python -m model.text.token_cache                    list the entries with size, sources and runs
    python -m model.text.token_cache --remove_unused    remove the entries that no existing run uses

It is in $XDG_CACHE_HOME/ropewalk, by default ~/.cache/ropewalk. Token ids and tokenizers are directories with
about.json and used_by, made under a lock: if two processes need the same one, the second waits and then reuses it.
Downloads and compiled code are files. No run is recorded for compiled code, because it is compiled again when needed.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urldefrag, urlsplit

from filelock import FileLock

from ..cli import Parser, note_if_slow, run_script
from ..cli.files import read_json, write_json

T = TypeVar("T")
ABOUT, USED_BY, DOWNLOADS, COMPILED = "about.json", "used_by", "downloads", "compiled"


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def download_path(url: str) -> Path:
    """The path of a downloaded file in the cache. The fragment of ``url`` is ignored."""
    address = urldefrag(url).url
    name = os.path.basename(unquote(urlsplit(address).path)) or "index.txt"
    return cache_home() / DOWNLOADS / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Make the directory of the cache. Report a full or read-only disk as a ValueError that tells how to move it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename or folder))
        if not (path.is_relative_to(folder) or folder.is_relative_to(path)):
            raise  # reading the text failed
        raise ValueError(
            f"{path}: {error.strerror}: the cache cannot be written; set XDG_CACHE_HOME to move it, or free space with "
            f"`python -m {__package__}.token_cache --remove_unused`"
        ) from None


def cached(folder: Path, specs: Sequence[str], load: Callable[[], T | None], fill: Callable[[Path], object]) -> T:
    """What ``load`` finds in the cache entry ``folder``. If that is None, the entry is made, by one process at a time.

    ``fill`` writes the files into a temporary directory, which is renamed when it is done. ``specs`` are the text's.
    """
    found = load()
    if found is None:
        with writing_into(folder.parent), locked(folder):
            if load() is None:  # no other process has made it in the meantime
                _make(folder, specs, fill)
        found = load()
    assert found is not None
    return found


def _make(folder: Path, specs: Sequence[str], fill: Callable[[Path], object]) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # a process that was killed may have left it
    temporary.mkdir()
    try:
        fill(temporary)
        sources = [os.path.abspath(spec) if os.path.exists(spec) else spec for spec in specs]
        # Bytes of a name that are not UTF-8 are escaped, because JSON cannot hold them
        names = [source.encode("utf-8", "backslashreplace").decode() for source in sources]
        write_json(temporary / ABOUT, {"sources": names})
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def locked(folder: Path) -> AbstractContextManager[object]:
    """The lock of a cache entry, acquired; leaving the context releases it."""
    with note_if_slow(f"waiting for another process that uses {folder}"):
        return FileLock(folder.with_name(f".{folder.name}.lock")).acquire()


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
    for path in [*home.glob("tokens-*"), *home.glob("tokenizer-*")]:
        sources = read_json(path / ABOUT)["sources"]
        runs = [run for run in runs_using(path) if Path(run).is_dir()]
        found.append(CacheEntry(path, sum(file.stat().st_size for file in path.iterdir()), sources, runs))
        for source in sources:
            download_users.setdefault(download_path(source), []).extend(runs)
    for folder, source in (DOWNLOADS, "a download"), (COMPILED, "--compile"):
        for path in (home / folder).glob("*"):
            found.append(CacheEntry(path, path.stat().st_size, [source], sorted(set(download_users.get(path, [])))))
    return sorted(found, key=lambda entry: -entry.size)


def main() -> None:
    parser = Parser(prog=f"{__package__}.token_cache", description="List the cache.")
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
            if entry.path.is_dir():
                with locked(entry.path):
                    shutil.rmtree(entry.path)
            else:
                entry.path.unlink()
            freed += entry.size
    summary = f"{freed / 1e6:.1f} MB removed" if flags.remove_unused else "--remove_unused removes unused entries"
    print(f"{home}: {summary}")


if __name__ == "__main__":
    run_script(main, f"{__package__}.token_cache")
