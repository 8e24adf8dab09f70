"""Every kind of source gives its text unchanged, split into documents; every invalid source gives a one-line error."""

import gzip
import hashlib
import http.server
import io
import json
import os
import threading
import tracemalloc
from typing import ClassVar

import pytest
from text_helpers import read_documents

from model.text import sources
from model.text.python_docs import prose
from model.text.sources import PYTHON_DOCS, open_documents

TEXT = "One.\r\nTwo\rthree\n\n\n  日本 😀\u2028x\x0c\n"


def documents(*specs, **options):
    """The documents of the sources, which can be read twice."""
    found = read_documents(*specs, **options)
    assert read_documents(*specs, **options) == found
    return found


def one_line(match, *specs, **options):
    with pytest.raises(ValueError, match=match) as error:
        read_documents(*specs, **options)
    assert "\n" not in str(error.value)


@pytest.fixture
def folder(tmp_path):
    """A directory tree with each kind of text file, and with files that are not text."""
    content = {
        "a.txt": TEXT.encode(),
        "b.jsonl": b'{"text": "first", "body": "I"}\n\n{"text": "sec\\nond", "body": "II"}\n',
        "deep/c.txt.gz": gzip.compress(b"zipped\r\n"),
        "deep/er/d.jsonl.gz": gzip.compress(b'{"text": "both", "body": "III"}'),
        "deep/empty.txt": b"",
        "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        ".hidden/x.txt": b"not wanted",
    }
    for name, raw in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    return tmp_path


def test_files_keep_their_text(folder):
    assert documents(folder / "b.jsonl") == ["first", "sec\nond"]
    assert documents(folder / "b.jsonl", text_key="body") == ["I", "II"]
    assert documents(folder / "deep/c.txt.gz", folder / "a.txt") == ["zipped\r\n", TEXT]
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbftext\xef\xbb\xbf")
    assert documents(folder / "a.txt") == ["text\ufeff"], "a byte order mark is removed"


def test_run_directories_and_the_folders_of_programs_are_skipped(tmp_path):
    (tmp_path / "story.txt").write_text("story", encoding="utf-8")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.toml").write_text("kept", encoding="utf-8")
    before = open_documents([tmp_path])
    for name in (".lock", "metrics.jsonl"):  # before and after the first evaluation
        run = tmp_path / "runs" / name.strip(".")
        (run / "deeper").mkdir(parents=True)
        for file in ("config.toml", "config.json", "deeper/a.txt", name):
            (run / file).write_text('{"text": "not wanted"}', encoding="utf-8")
    for folder in ("__pycache__", "node_modules/package", "project/.cache"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text("not wanted", encoding="utf-8")
    assert documents(tmp_path) == ["kept", "story"]
    assert open_documents([tmp_path]).identity() == before.identity(), "the run can be resumed"


def test_directories_and_globs(folder):
    with pytest.warns(UserWarning, match=r"4 text files; skipped: 1 empty \(.*empty.txt\) and 1 binary \(.*png\)"):
        assert documents(folder) == [TEXT, "first", "sec\nond", "zipped\r\n", "both"]
    with pytest.warns(UserWarning, match=r"skipped: 1 empty \(for example .*empty.txt\)$"):
        assert documents(folder / "**" / "*.txt") == [TEXT]
    assert documents(folder / "**" / "*.gz") == ["zipped\r\n", "both"]
    (folder / "odd[1].md").write_text("a name that looks like a pattern", encoding="utf-8")
    assert documents(folder / "odd[1].md") == ["a name that looks like a pattern"]
    one_line("holds no text files", folder / "*.none")
    one_line(r"holds no text files, only 1 binary \(.*png\)", folder / "*.png")


def test_text_files_in_a_folder_may_have_any_ending(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("code", encoding="utf-8")
    (tmp_path / "b.md").write_text("prose", encoding="utf-8")
    (tmp_path / "c").write_text("no ending", encoding="utf-8")
    assert documents(tmp_path) == ["prose", "no ending", "code"]
    assert documents(tmp_path, patterns=["*.py"]) == ["code"]
    assert documents(tmp_path, patterns=["*.py", "b.*"]) == ["prose", "code"]
    assert documents(tmp_path / "*", patterns=["*.py"]) == ["prose", "no ending"], "patterns do not apply to globs"
    one_line("holds no text files: check the path, and --glob", tmp_path, patterns=["*.rs"])


def test_a_text_in_another_encoding_is_not_skipped_as_binary(tmp_path):
    (tmp_path / "a.txt").write_text("fine", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("天下大势，分久必合，合久必分。这是我们的国家。".encode("gb18030"))
    one_line(r"b.txt is not UTF-8 text", tmp_path)


def test_the_identity_changes_with_the_files_and_the_separator(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one", encoding="utf-8")
    first = open_documents([file]).identity()
    assert first == open_documents([file]).identity()
    assert first != open_documents([file], doc_separator="\n").identity()
    as_table = open_documents([file])
    as_table.files = [as_table.files[0]._replace(format="csv")]
    assert first != as_table.identity()
    file.write_text("other", encoding="utf-8")
    assert first != open_documents([file]).identity()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_pipes_and_devices_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    one_line("neither a file nor a directory", tmp_path / "fifo")
    one_line("neither a file nor a directory", "/dev/zero")


def test_standard_input_can_be_read_twice(monkeypatch):
    def pipe(raw):
        sources._spool.cache_clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))

    pipe(TEXT.encode())
    assert documents("-") == [TEXT]
    pipe(b"")
    one_line("standard input is empty", "-")
    pipe(b"ab\xff")
    one_line("standard input is not UTF-8 text: byte 2 is 0xff", "-")
    sources._spool.cache_clear()


def test_the_separator_of_documents_can_be_set(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\n\nthree\n", encoding="utf-8")
    assert documents(tmp_path / "a.txt", doc_separator="\n\n") == ["one", "two", "three\n"]
    one_line("doc_separator is empty", tmp_path / "a.txt", doc_separator="")


def test_a_large_document_is_read_in_chunks_with_little_memory(tmp_path):
    line = "It was the best of times, 日本 it was the worst.\n"
    (tmp_path / "a.txt").write_text(line * 200_000, encoding="utf-8")  # 10 MB
    tracemalloc.start()
    length = starts = 0
    for text, start in open_documents([tmp_path / "a.txt"]):
        length += len(text)
        starts += start
        assert len(text) <= 16_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (length, starts) == (len(line) * 200_000, 1)
    assert peak < 9e6  # a few blocks of 1 MB, with up to four bytes per character


def test_invalid_json_is_refused_with_its_line_number(tmp_path):
    file = tmp_path / "a.jsonl"
    for line in ('{"text": "cut', "[" * 99_999, '{"text": "\\ud800"}'):
        file.write_text('{"text": "good"}\n\n' + line + "\n", encoding="utf-8")
        one_line(r"a.jsonl:3 is not valid JSON", file)
    for line in ('{"body": "x"}', '["text"]', '{"text": 3}', '{"text": null}', '"text"', "3"):
        file.write_text('{"text": "good"}\n' + line, encoding="utf-8")
        one_line(r"a.jsonl:2 has no text under 'text'", file)
    file.write_bytes(b'{"text": "good"}\n{"text": "\xe9"}\n')
    one_line("a.jsonl is not UTF-8 text: byte 27 is 0xe9", file)


@pytest.mark.parametrize("ending", [".jsonl", ".NDJSON.GZ"])
def test_json_lines_without_the_field_are_refused_in_a_folder_too(tmp_path, ending):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    content = json.dumps({"body": TEXT}).encode() + b"\n"
    (tmp_path / f"b{ending}").write_bytes(gzip.compress(content) if ending.endswith(".GZ") else content)
    one_line(rf"b{ending}:1 has no text under 'text': give text_key one of 'body'$", tmp_path)


class Web(http.server.BaseHTTPRequestHandler):
    requests: ClassVar[list[str]] = []

    def do_GET(self):
        self.requests.append(self.path)
        self.send_response(404 if "missing" in self.path else 200)
        content = json.dumps({"text": TEXT}).encode() if ".jsonl" in self.path else TEXT.encode()
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


def test_a_url_is_downloaded_only_once(web, tmp_path):
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert documents(f"{web}/a.txt") == documents(f"{web}/a.txt#sha256={digest}") == [TEXT]
    assert documents(f"{web}/b.jsonl?x=1") == [TEXT]
    assert len(Web.requests) == 2
    one_line("expected 0000", f"{web}/a.txt#sha256={'0' * 64}")
    assert len(Web.requests) == 2


def test_characters_of_a_url_that_are_not_ascii_are_percent_encoded(web):
    assert documents(f"{web}/käse 1%20.txt?q=ä+b") == [TEXT]
    assert Web.requests == ["/k%C3%A4se%201%20.txt?q=%C3%A4+b"]
    one_line("http://a..b/käse.txt cannot be fetched", "http://a..b/käse.txt")


def test_a_failed_download_is_refused_and_not_cached(web, tmp_path):
    one_line("404", f"{web}/missing.txt")
    one_line("broke off after", f"{web}/short.txt")
    one_line("must be sha256=", f"{web}/a.txt#md5=1")
    one_line("cannot be fetched", "http://127.0.0.1:1/a.txt")
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
    for table in ("::=", "+------", "---- ---- ", "==== ===="):
        assert table not in everything


def test_paragraphs_with_tables_or_grammar_rules_are_removed():
    kept = "Title\n=====\n\nA line.\n   An indented | one.\n\n>>> 1 - -2\n3\n"
    table = "   +-----+----+\n   | a | b |\n   +-----+----+\n"
    columns = "name   class\n----   -----\nhlist  HList\n"
    rule = "   and_expr ::= shift_expr\n"
    assert prose(kept) == kept
    assert prose("\n".join([table, "Title\n=====\n", columns, "A line.\n", rule])) == "Title\n=====\n\nA line.\n"
