"""Every kind of source gives its text unchanged, split into documents; every invalid source gives a one-line error."""

import gzip
import http.server
import io
import json
import os
import re
import threading
from typing import ClassVar

import pytest
from text_helpers import join_chunks, read_documents, refusal

from model.text.sources import PYTHON_DOCS, open_documents

TEXT = "One.\r\nTwo\rthree\n\n\n  日本 😀\u2028x\x0c\n"


def documents(*specs, **options):
    """The documents of the sources, which can be read twice."""
    found = read_documents(*specs, **options)
    assert read_documents(*specs, **options) == found
    return found


@pytest.fixture
def folder(tmp_path):
    """A directory tree with each kind of text file, with files that are not text, and with two run directories."""
    content = {
        "a.txt": TEXT.encode(),
        "b.jsonl": b'{"text": "first"}\n{"text": "sec\\nond"}\n',
        "c": b"\xef\xbb\xbfno ending, but two byte order marks\xef\xbb\xbf",
        "deep/d.txt.gz": gzip.compress(b"zipped\r\n"),
        "deep/empty.txt": b"",
        "deep/er/odd[1].py": b"{}",
        "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        ".hidden/x.txt": b"not wanted",
        "project/config.toml": b"of another program",
        "run/config.toml": b"", "run/.lock": b"", "run/a.txt": b"not wanted",  # before the first evaluation
        "old/config.toml": b"", "old/metrics.jsonl": b"", "old/deeper/a.txt": b"not wanted",
    }  # fmt: skip
    for name, raw in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    return tmp_path


def test_files_directories_and_globs(folder):
    unmarked = "no ending, but two byte order marks\ufeff"
    assert documents(folder / "deep/d.txt.gz", folder / "a.txt") == ["zipped\r\n", TEXT]
    assert documents(folder / "deep/er/odd[1].py", folder / "c") == ["{}", unmarked]
    with pytest.warns(UserWarning, match=r"6 text files; 1 binary file skipped, for example .*png$"):
        assert documents(folder) == [
            TEXT,
            "first",
            "sec\nond",
            unmarked,
            "zipped\r\n",
            "{}",
            "of another program",
        ]
    assert documents(folder, patterns=["*.py", "b.*"]) == ["first", "sec\nond", "{}"]
    assert documents(folder / "*.txt", patterns=["*.py"]) == [TEXT], "patterns do not apply to globs"
    assert documents(folder / "deep" / "**" / "*.py") == ["{}"]
    assert "no text files; check the path, and --glob" in refusal(folder / "*.none")
    assert "no text files; check the path, and --glob" in refusal(folder, patterns=["*.rs"])
    assert "run directories are not read" in refusal(folder / "run")
    assert "neither a file nor a directory" in refusal("/dev/zero")
    assert "no text files; 1 binary file skipped, for example" in refusal(folder / "*.png")
    (folder / "chinese.txt").write_bytes("天下大势，分久必合".encode("gb18030"))
    assert "chinese.txt is not UTF-8 text" in refusal(folder / "c*")


def test_standard_input_can_be_read_twice_and_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def pipe(raw):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))

    pipe(TEXT.encode())
    found = open_documents(["-"])
    assert join_chunks(found) == join_chunks(found) == [TEXT]
    assert os.listdir(tmp_path) == []
    pipe(b"ab\xff")
    assert "standard input is not UTF-8 text: byte 2 is 0xff" in refusal("-")


class Web(http.server.BaseHTTPRequestHandler):
    requests: ClassVar[list[str]] = []

    def do_GET(self):
        self.requests.append(self.path)
        self.send_response(404 if "missing" in self.path else 200)
        content = json.dumps({"text": TEXT}).encode() if ".jsonl" in self.path else TEXT.encode()
        if "chunked" not in self.path:
            self.send_header("Content-Length", str(len(content) + ("short" in self.path)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A server on this machine, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Web.requests = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_url_is_downloaded_only_once(web):
    assert documents(f"{web}/a.txt") == documents(f"{web}/a.txt") == [TEXT]
    assert documents(f"{web}/b.jsonl?x=1") == [TEXT]
    assert len(Web.requests) == 2
    assert documents(f"{web}/chunked.txt") == [TEXT], "a server need not say the length"


def test_a_failed_download_is_refused_and_not_cached(web, tmp_path):
    assert "404" in refusal(f"{web}/missing.txt")
    assert "broke off after" in refusal(f"{web}/short.txt")
    assert "cannot be fetched" in refusal("http://127.0.0.1:1/a.txt")
    assert "cannot be fetched" in refusal(f"{web}/käse.txt")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_the_default_corpus_is_documentation():
    texts = read_documents(PYTHON_DOCS)
    assert 1_500_000 < sum(map(len, texts)) < 4_000_000
    assert len(texts) > 300
    everything = "\n".join(texts)
    assert "Wrap a single paragraph of text" in everything  # textwrap
    assert 'The "try" statement specifies exception handlers' in everything  # the language reference
    # Modules and topics are shuffled, so both occur at the end.
    tail = everything[-len(everything) // 10 :]
    assert tail.count("statement") > 10
    assert "Return " in tail
    assert "::=" not in everything, "paragraphs with grammar rules are removed"
    assert not re.search(r"^ *\+[-=]{3}", everything, re.MULTILINE), "and those with tables"
