"""Every kind of source gives its text unchanged, in documents, and every kind of junk ends in one line."""

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

from model.text import sources
from model.text.python_docs import prose, python_docs
from model.text.readers import split_documents
from model.text.sources import DEFAULT, open_documents
from model.text.tokenizer import split_text

TEXT = "One.\r\nTwo\rthree\n\n\n  日本 😀\u2028x\x0c\n"


def documents(*specs, **options):
    """What the sources hold, read twice: the documents put together from their pieces."""
    source = open_documents([str(spec) for spec in specs], **options)
    runs = [list(source), list(source)]
    assert runs[0] == runs[1]
    whole: list[str] = []
    for text, starts in runs[0]:
        assert text
        if starts:
            whole.append(text)
        else:
            whole[-1] += text
    return whole


def one_line(match, *specs, **options):
    with pytest.raises(ValueError, match=match) as error:
        documents(*specs, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path):
    """A tree with each kind of text file, and things beside them that are none."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.jsonl").write_text(
        '{"text": "first", "body": "I"}\n\n{"text": "sec\\nond", "body": "II"}\n', encoding="utf-8"
    )
    (tmp_path / "deep" / "c.txt.gz").write_bytes(gzip.compress(b"zipped\r\n"))
    (tmp_path / "deep" / "er" / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "both", "body": "III"}'))
    (tmp_path / "deep" / "empty.txt").touch()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("not wanted", encoding="utf-8")
    return tmp_path


def test_files_keep_their_text(folder):
    assert documents(folder / "a.txt") == [TEXT]
    assert documents(folder / "b.jsonl") == ["first", "sec\nond"]
    assert documents(folder / "b.jsonl", text_key="body") == ["I", "II"]
    assert documents(folder / "deep/c.txt.gz", folder / "a.txt") == ["zipped\r\n", TEXT]


def test_directories_and_globs(folder):
    with pytest.warns(UserWarning, match=r"4 text files; left out: 1 empty \(such as .*empty.txt\) and 1 binary .*png"):
        assert documents(folder) == [TEXT, "first", "sec\nond", "zipped\r\n", "both"]
    assert documents(folder / "*.txt") == [TEXT]
    assert documents(folder / "**" / "*.gz") == ["zipped\r\n", "both"]
    (folder / "odd[1].md").write_text("a name that looks like a pattern", encoding="utf-8")
    assert documents(folder / "odd[1].md") == ["a name that looks like a pattern"]


def test_a_folder_of_any_endings_is_text(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("code", encoding="utf-8")
    (tmp_path / "b.md").write_text("prose", encoding="utf-8")
    (tmp_path / "c").write_text("no ending", encoding="utf-8")
    assert documents(tmp_path) == ["prose", "no ending", "code"]
    assert documents(tmp_path, patterns=["*.py"]) == ["code"]
    assert documents(tmp_path, patterns=["*.py", "b.*"]) == ["prose", "code"]
    assert documents(tmp_path / "*", patterns=["*.py"]) == ["prose", "no ending"], "a glob has its own pattern"
    one_line("holds no text files: check the path, and --glob", tmp_path, patterns=["*.rs"])


def test_a_glob_with_an_empty_file_takes_the_others(folder):
    with pytest.warns(UserWarning, match=r"left out: 1 empty \(such as .*empty.txt\)$"):
        assert documents(folder / "**" / "*.txt") == [TEXT]


def test_a_folder_of_binary_files_holds_no_text(tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(9))
    one_line(r"holds no text files, but 1 binary \(such as .*x.bin\)", tmp_path)


def test_a_text_in_another_encoding_is_not_skipped_as_binary(tmp_path):
    (tmp_path / "a.txt").write_text("fine", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("天下大势，分久必合，合久必分。这是我们的国家。".encode("gb18030"))
    one_line(r"b.txt is not UTF-8 text.* GB18030", tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    one_line("neither a file nor a directory: pipe its text into --data -", tmp_path / "fifo")
    one_line("neither a file nor a directory", "/dev/zero")


def test_a_text_key_that_is_not_there_lists_those_that_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"story": "x", "number": 3, "title": "y"}\n', encoding="utf-8")
    one_line(r"a.jsonl:1 has no text under 'text': give text_key one of 'story', 'title'$", tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text('{"number": 3}\n', encoding="utf-8")
    one_line(r"b.jsonl:1 has no text under 'text': it has no text at all", tmp_path / "b.jsonl")


def test_standard_input_can_be_read_twice(monkeypatch):
    sources._spool.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode()), encoding="utf-8"))
    assert documents("-") == [TEXT]
    assert documents("-") == [TEXT]
    sources._spool.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    one_line("standard input is empty", "-")
    sources._spool.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8"))
    one_line("standard input is not UTF-8 text: byte 2 is 0xff", "-")
    sources._spool.cache_clear()


def test_a_mark_that_editors_put_first_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbftext\xef\xbb\xbf")
    assert documents(tmp_path / "a.txt") == ["text\ufeff"]


def test_separators_wherever_blocks_are_cut():
    text = "<|end|>one<|end|><|end|>two <| end|>\n" + "three " * 9000 + "<|end|>four<|end"
    expected = [part for part in text.split("<|end|>") if part]
    for size in (1, 2, 3, 7, 1000, len(text)):
        whole: list[str] = []
        for piece, starts in split_documents((text[i : i + size] for i in range(0, len(text), size)), "<|end|>"):
            whole += [piece] if starts else []
            whole[-1] += "" if starts else piece
        assert whole == expected


def test_separator_option(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\n\nthree\n", encoding="utf-8")
    assert documents(tmp_path / "a.txt", doc_separator="\n\n") == ["one", "two", "three\n"]
    one_line("doc_separator is empty", tmp_path / "a.txt", doc_separator="")


def test_a_large_document_comes_in_pieces_and_little_memory(tmp_path):
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
    assert peak < 9e6  # some blocks of a megabyte, which take up to four bytes a character


@pytest.mark.parametrize("text", ["", "x", "a b " * 999, "  " * 999, "x" * 999, "日本語 " * 300, "\n \n" * 500])
def test_pieces_are_the_text(text):
    for size in (1, 2, 10, 100):
        pieces = list(split_text(text, size))
        assert "".join(pieces) == text
        assert all(0 < len(piece) <= size for piece in pieces)
    if text == "a b " * 999:
        assert all(piece.startswith(" ") for piece in list(split_text(text, 100))[1:])


def test_what_is_not_text(tmp_path):
    for place in (0, 5, (1 << 20) - 1, (1 << 20) + 3, 3_000_000):
        raw = b"x" * place
        (tmp_path / "latin.txt").write_bytes(raw + b"\xe9t\xe9")
        message = one_line(f"latin.txt is not UTF-8 text: byte {place} is 0xe9", tmp_path / "latin.txt")
        assert "iconv" in message
        (tmp_path / "cut.txt").write_bytes(raw + "日".encode()[:2])
        one_line(f"byte {place} is 0xe6", tmp_path / "cut.txt")
        (tmp_path / "zero.txt").write_bytes("é".encode() + raw + b"\0")
        one_line(f"zero.txt is not text: byte {place + 2} is zero", tmp_path / "zero.txt")
    (tmp_path / "wide.txt").write_bytes("text".encode("utf-16"))
    one_line("byte 0 is 0xff", tmp_path / "wide.txt")
    (tmp_path / "junk.txt").write_bytes(bytes(range(255, -1, -1)))
    one_line("junk.txt is not UTF-8", tmp_path / "junk.txt")


def test_a_character_across_blocks_is_text(tmp_path):
    for place in range((1 << 20) - 4, (1 << 20) + 1):
        (tmp_path / "a.txt").write_bytes(b"x" * place + "😀é".encode())
        assert documents(tmp_path / "a.txt")[0].endswith("x😀é")


def test_bad_json_names_the_line(tmp_path):
    file = tmp_path / "a.jsonl"
    for line in ('{"text": "cut', "[" * 99_999, '{"text": "\\ud800"}'):
        file.write_text('{"text": "good"}\n\n' + line + "\n", encoding="utf-8")
        one_line(r"a.jsonl:3 is not valid JSON", file)
    for line in ('{"body": "x"}', '["text"]', '{"text": 3}', '{"text": null}', '"text"', "3"):
        file.write_text('{"text": "good"}\n' + line, encoding="utf-8")
        one_line(r"a.jsonl:2 has no text under 'text'", file)
    file.write_bytes(b'{"text": "good"}\n{"text": "\xe9"}\n')
    one_line("a.jsonl is not UTF-8 text: byte 27 is 0xe9", file)


def test_broken_gzip(tmp_path):
    whole = gzip.compress(os.urandom(1000).hex().encode())
    damaged = whole[:500] + b"\0\0\0\0" + whole[504:]
    for content in (whole[:-9], b"no gzip at all", damaged):
        (tmp_path / "a.txt.gz").write_bytes(content)
        one_line("a.txt.gz is not a whole gzip file", tmp_path / "a.txt.gz")


def test_nothing_there(tmp_path):
    one_line("nowhere.txt does not exist", tmp_path / "nowhere.txt")
    one_line("matches no file", tmp_path / "*.txt")
    one_line("holds no text files", tmp_path)
    (tmp_path / "a.txt").touch()
    one_line("a.txt is empty", tmp_path / "a.txt")


def test_identity_follows_the_files(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one", encoding="utf-8")
    first = open_documents([file]).identity()
    assert first == open_documents([file]).identity()
    assert first != open_documents([file], doc_separator="\n").identity()
    file.write_text("other", encoding="utf-8")
    assert first != open_documents([file]).identity()


class Web(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
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
    Web.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_web_pages_are_fetched_once(web, tmp_path):
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert documents(f"{web}/a.txt") == documents(f"{web}/a.txt#sha256={digest}") == [TEXT]
    assert documents(f"{web}/b.jsonl?x=1") == [TEXT]
    assert len(Web.asked) == 2
    one_line("the 0000", f"{web}/a.txt#sha256={'0' * 64}")
    assert len(Web.asked) == 2


def test_web_trouble(web, tmp_path):
    one_line("404", f"{web}/missing.txt")
    one_line("broke off after", f"{web}/short.txt")
    one_line("has sha256", f"{web}/a.txt#sha256={'0' * 64}")
    one_line("is to be sha256=", f"{web}/a.txt#md5=1")
    one_line("cannot be fetched", "http://127.0.0.1:1/a.txt")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_the_default_corpus_is_documentation():
    texts = python_docs()
    assert 1_500_000 < sum(map(len, texts)) < 4_000_000
    assert len(texts) > 300
    everything = "\n".join(texts)
    assert "Wrap a single paragraph of text" in everything  # textwrap
    assert 'The "try" statement specifies exception handlers' in everything  # the language reference
    pieces = list(open_documents([DEFAULT]))
    assert "".join(text for text, _ in pieces) == "".join(texts)
    assert sum(starts for _, starts in pieces) == len(texts)
    # Modules and topics are mixed: either end has both.
    tail = everything[-len(everything) // 10 :]
    assert tail.count("statement") > 10
    assert "Return " in tail
    for table in ("::=", "+------", "---- ---- ", "==== ===="):
        assert table not in everything


def test_paragraphs_with_a_table_or_a_grammar_are_no_prose():
    kept = "Title\n=====\n\nA line.\n   An indented | one.\n\n>>> 1 - -2\n3\n"
    table = "   +-----+----+\n   | a | b |\n   +-----+----+\n"
    columns = "name   class\n----   -----\nhlist  HList\n"
    rule = "   and_expr ::= shift_expr\n"
    assert prose(kept) == kept
    assert prose("\n".join([table, "Title\n=====\n", columns, "A line.\n", rule])) == "Title\n=====\n\nA line.\n"
