"""Every kind of source gives its text unchanged, split into documents; every invalid source gives a one-line error."""

import gzip
import io
import json
import os
import re
import threading
from array import array

import pytest
from text_helpers import join_parts, read_documents, refusal

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
        "book.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
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
    with pytest.warns(UserWarning, match=r"6 text files; 1 file skipped: .*book\.pdf is a PDF"):
        assert documents(folder) == [
            TEXT,
            "first",
            "sec\nond",
            unmarked,
            "zipped\r\n",
            "{}",
            "of another program",
        ]
    assert documents(folder / "deep" / "**" / "*.py") == ["{}"]
    assert "no text files; check the path" in refusal(folder / "*.none")
    assert "run directories are not read" in refusal(folder / "run")
    assert "neither a file nor a directory" in refusal("/dev/zero")
    assert "no text files; 1 file skipped: " in refusal(folder / "*.pdf")


def test_files_that_are_not_text_are_skipped_in_folders_and_refused_by_name(tmp_path):
    """All of them in one warning, if the wrong byte is in the first block of a file."""
    (tmp_path / "a.txt").write_text("good", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"x" * 300_000 + b"\xe9")
    (tmp_path / "c.jsonl").write_bytes("天下大势，分久必合".encode("gb18030"))
    (tmp_path / "d").write_bytes(b"text\0text")
    with pytest.warns(UserWarning, match=r"1 text file; 3 files skipped: .*b.txt is not UTF-8 text: byte 300000 is"):
        assert documents(tmp_path) == ["good"]
    assert "c.jsonl is not UTF-8 text: byte 0 is 0xcc; convert it with iconv" in refusal(tmp_path / "c.jsonl")
    assert "d is no text: give the text itself" in refusal(tmp_path / "d")


def test_a_folder_of_code_is_read_without_the_rows_that_are_no_text(tmp_path):
    """The ending of a name in a folder promises nothing: package.json is no list of rows."""
    content = {
        "a.py": b"x = 1\n",
        "__pycache__/a.cpython-311.pyc": b"\xa7\r\r\n\0\0\0\0",
        ".git/objects/pack": b"PACK\0",
        "app.ts": b"let x\n",
        "logo.PNG": b"\x89PNG",
        "package.json": b'{\n  "name": "app"\n}\n',
        "tsconfig.json": b'// comment\n{"x": 1}',
        "fixture.csv": b"a,b\n1,2\n",
        "log.jsonl": b'{"level": "info", "message": "started"}\n',
        "empty.jsonl": b"\n",
        "numbers.json": b"[1, 2]",
        "ragged.tsv": b"text\tid\n1\n",
    }
    for name, raw in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    with pytest.warns(UserWarning, match=r"3 text files; 6 files skipped: .*fixture.csv:2 has no 'text'") as caught:
        assert read_documents(tmp_path) == ["x = 1\n", "let x\n"]
    assert len(caught) == 1
    for name in ("package.json", "tsconfig.json", "fixture.csv", "log.jsonl", "numbers.json"):
        assert name in refusal(tmp_path / name)
    assert "log.jsonl:1 has no 'text': type --text_key message" in refusal(tmp_path / "log.jsonl")


TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}]


@pytest.mark.parametrize("rows", ["chats.jsonl", "data/train.jsonl"])
def test_documentation_beside_rows_is_skipped_once_and_named(tmp_path, rows):
    """A dataset of the Hub comes with a README.md, and often with a licence."""
    content = {"README.md": "# Chats", "LICENSE": "MIT", rows: json.dumps({"messages": TALK}) + "\n"}
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for spec in (tmp_path, f"{tmp_path}/**/*"):
        with pytest.warns(UserWarning, match=r"1 text file; 2 files skipped: .*README.md describes the rows") as caught:
            found = open_documents([spec])
        assert len(caught) == 1
        assert [messages for _, messages in found.conversations()] == [TALK]
    with pytest.raises(ValueError, match=r"chats|train.* holds conversations, .*README\.md texts: give files of one"):
        open_documents([tmp_path / rows, tmp_path / "README.md"]).has_conversations()


def test_documentation_with_no_rows_beside_it_is_text(tmp_path):
    for name, text in (("README.md", "rope"), ("docs/a.md", "tar"), ("data/rows.jsonl", '{"text": "hemp"}')):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"2 text files; 1 file skipped: .*README.md describes the rows beside it"):
        assert documents(tmp_path) == ["hemp", "tar"]
    (tmp_path / "data/rows.jsonl").unlink()
    assert documents(tmp_path) == ["rope", "tar"]


def save_to_disk(folder, rows):
    """As datasets.Dataset.save_to_disk."""
    pyarrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    with ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "dataset_info.json").write_text('{\n  "citation": ""\n}', encoding="utf-8")
    (folder / "state.json").write_text('{\n  "_split": null\n}', encoding="utf-8")


def test_a_folder_of_save_to_disk_is_its_rows(tmp_path):
    """As one dataset, or as one folder for each split."""
    save_to_disk(tmp_path / "all/train", [{"id": 1, "text": "first"}, {"id": 2, "text": "second"}])
    save_to_disk(tmp_path / "all/validation", [{"id": 3, "text": "third"}])
    (tmp_path / "all/dataset_dict.json").write_text('{"splits": ["train", "validation"]}', encoding="utf-8")
    assert documents(tmp_path / "all") == ["first", "second", "third"]
    assert documents(tmp_path / "all/train") == ["first", "second"]
    save_to_disk(tmp_path / "chats", [{"messages": TALK, "source": "x"}])
    assert [messages for _, messages in open_documents([tmp_path / "chats"]).conversations()] == [TALK]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("pipe", TEXT, [TEXT]), ("a.jsonl", '{"text": "one"}\n{"text": "two"}\n', ["one", "two"])],
)
def test_a_named_pipe_is_read_as_often_as_needed(tmp_path, name, content, expected):
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_bytes, args=[content.encode()])
    writer.start()
    found = open_documents([tmp_path / name])
    writer.join()
    assert join_parts(found) == join_parts(found) == expected


def test_what_is_no_text_is_named_by_its_first_bytes(tmp_path, monkeypatch):
    content = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
    for name in ("a.txt", "a.jsonl", "a.parquet"):
        (tmp_path / name).write_bytes(content)
        assert f"{name} is a PDF" in refusal(tmp_path / name)
    (tmp_path / "a.csv").write_bytes(b"PAR1\x15\x04")
    assert "is a Parquet table: let its name end in .parquet" in refusal(tmp_path / "a.csv")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert "standard input is a PDF" in refusal("-")
    for tokens in ([39, 1169, 50000], [0, 1, 2]):  # of GPT-2, and of single characters
        (tmp_path / "train.bin").write_bytes(array("H", tokens * 100).tobytes())
        assert "no text: give the text itself (token ids, such as nanoGPT's" in refusal(tmp_path / "train.bin")


def test_linked_folders_are_followed_each_file_is_read_once_and_loops_end(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "data/a.txt").write_text("a", encoding="utf-8")
    (tmp_path / "elsewhere/deep/b.txt").write_text("b", encoding="utf-8")
    try:
        (tmp_path / "data/linked").symlink_to("../elsewhere", target_is_directory=True)
        (tmp_path / "data/again").symlink_to("../elsewhere/deep", target_is_directory=True)
        (tmp_path / "elsewhere/loop").symlink_to("../data", target_is_directory=True)
        (tmp_path / "data/same.txt").symlink_to("a.txt")
    except OSError:
        pytest.skip("links need permission on Windows")
    assert documents(tmp_path / "data") == ["a", "b"]


def test_an_address_and_a_dataset_of_the_hub_are_answered_with_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "fetch it with `curl -LO https://x.org/a.txt`" in refusal("https://x.org/a.txt")
    assert "is an address" in refusal("http://[")
    expected = "hf download --repo-type dataset roneneldan/TinyStories --local-dir TinyStories"
    assert expected in refusal("roneneldan/TinyStories")
    (tmp_path / "mine").mkdir()
    assert "hf download" not in refusal("mine/missing.txt")


def test_json_lines_under_another_name_are_noted_and_a_text_key_for_texts_is_refused(tmp_path):
    (tmp_path / "wiki_00").write_text('{"text": "first"}\n{"text": "second"}\n', encoding="utf-8")
    (tmp_path / "a.py").write_text('{"text": "first"}\nx = 1\n', encoding="utf-8")
    with pytest.warns(UserWarning, match="wiki_00 is read as plain text, but its lines are JSON"):
        open_documents([tmp_path / "wiki_00"])
    open_documents([tmp_path / "a.py"])
    assert "text_key is 'body', but" in refusal(tmp_path / "a.py", text_key="body")


def test_standard_input_can_be_read_twice_and_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def pipe(raw):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))

    pipe(TEXT.encode())
    found = open_documents(["-"])
    assert join_parts(found) == join_parts(found) == [TEXT]
    assert os.listdir(tmp_path) == []
    pipe(b"ab\xff")
    assert "standard input is not UTF-8 text: byte 2 is 0xff" in refusal("-")


@pytest.mark.slow
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
