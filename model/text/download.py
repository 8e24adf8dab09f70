"""Text from the web, kept so that it is fetched once."""

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from tqdm import tqdm

from ..weights.files import write_atomically

TIMEOUT = 30  # seconds without a byte


def cache_home() -> Path:
    """Where this project keeps what it can make or fetch again: $XDG_CACHE_HOME/ropewalk or ~/.cache/ropewalk."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def fetch(url: str) -> Path:
    """The file behind ``url``, from the cache when it is there. ``#sha256=HEX`` is checked each time.

    Raises ValueError when it cannot be had whole, or is not the file that was named.
    """
    address, fragment = urldefrag(url)
    wanted = fragment.removeprefix("sha256=").lower()
    if fragment and (not fragment.startswith("sha256=") or len(wanted) != 64):
        raise ValueError(f"{url}: the part after # is to be sha256= and 64 hexadecimal digits")
    name = os.path.basename(unquote(urlsplit(address).path)) or "index.txt"
    path = cache_home() / "downloads" / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: _download(address, temporary, wanted))
    elif wanted:
        with path.open("rb") as file:
            _compare(
                address, hashlib.file_digest(file, "sha256").hexdigest(), wanted, f"; remove {path} to fetch it anew"
            )
    return path


def _download(address: str, path: Path, wanted: str) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, path.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=address, disable=None) as bar:
                while block := answer.read(1 << 18):
                    file.write(block)
                    digest.update(block)
                    bar.update(len(block))
            if size and file.tell() != size:
                raise ValueError(f"{address} broke off after {file.tell()} of {size} bytes: try again")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ValueError(f"{address} cannot be fetched ({error}): check the address and the connection") from None
    _compare(address, digest.hexdigest(), wanted, "")


def _compare(address: str, got: str, wanted: str, remedy: str) -> None:
    if wanted and got != wanted:
        raise ValueError(f"{address} has sha256 {got}, not the {wanted} that was asked for{remedy}")
