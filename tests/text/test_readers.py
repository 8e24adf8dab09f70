"""One file to documents: its ending is its format, its first bytes say what else it is, and every error is one line."""

import csv
import gzip
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import join_chunks, read_documents

from model.text.readers import split_documents
from model.text.tokenizer import split_text


def refusal(path, **options):
    with pytest.raises(ValueError, match=path.name) as error:
        read_documents(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path, ending):
    write = gzip.compress if ending.endswith("gz") else bytes
    file = tmp_path / f"a{ending}"
    for position in (0, 5, (2 << 20) + 3):
        raw = b"x" * position
        file.write_bytes(write(raw + b"\xe9t\xe9"))
        assert f"byte {position} is 0xe9; if it is text, convert it with iconv" in refusal(file)
        file.write_bytes(write(raw + "日".encode()[:2]))
        assert f"byte {position} is 0xe6" in refusal(file)
        file.write_bytes(write("é".encode() + raw + b"\0"))
        assert "contains zero bytes" in refusal(file)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    complete = gzip.compress(os.urandom(100_000).hex().encode())
    for content in (complete[:-9], b"no gzip at all", complete[:500] + b"\0\0\0\0" + complete[504:]):
        (tmp_path / "a.txt.gz").write_bytes(content)
        assert "a.txt.gz is not a complete gzip file" in refusal(tmp_path / "a.txt.gz")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PAR1\x15\0\x15", "a Parquet file"),
        (b"PK\3\4\x14\0\6\0", "a zip archive or an Office document"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "a PDF"),
        (b"\x28\xb5\x2f\xfd\4X", "zstd -d"),
        (b"\xfd7zXZ\0\0\4", "unxz"),
        (b"BZh91AY&SY\xb1", "bunzip2"),
        (gzip.compress(b"text", mtime=0), "a name that ends in .gz"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"a.txt" + bytes(252) + b"ustar  \0", "a tar archive"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.gz"])
def test_a_file_that_is_not_text_is_named_by_its_first_bytes(tmp_path, start, kind, name):
    (tmp_path / name).write_bytes(gzip.compress(start) if name == "a.gz" else start)
    message = refusal(tmp_path / name)
    assert kind in message
    assert ("iconv" in message) == ("UTF-16" in kind)


@pytest.mark.parametrize("separator", ["<|endoftext|>", None])
@pytest.mark.parametrize("padding", range(0, 60, 7))
def test_of_a_long_document_only_a_part_is_held_in_memory(monkeypatch, padding, separator):
    monkeypatch.setattr("model.text.readers.LONG_DOCUMENT", 500)
    first, second = "\n  one two\n" * 90 + padding * "x", "three" * 190
    text = f"{first}<|endoftext|>\n{second}\n<|endoftext|>\nfour"
    consumed = 0

    def blocks():
        nonlocal consumed
        for start in range(0, len(text), 10):
            consumed += 1
            yield text[start : start + 10]

    chunks = split_documents(blocks(), separator, size=64)
    beginning = next(chunks)
    assert consumed < 60
    expected = [first, second, "four"] if separator else [text]
    assert [part.rstrip("\n") for part in join_chunks([beginning, *chunks])] == [part.rstrip("\n") for part in expected]


def test_a_text_is_cut_between_words_and_a_run_of_spaces_is_not_cut():
    for size in (97, 98, 99, 100):
        assert all(chunk.startswith(" ") for chunk in list(split_text("a b " * 999, size))[1:])
        assert all(chunk.startswith("  a") for chunk in list(split_text("ab  " * 99, size))[1:])


# --- tables -----------------------------------------------------------------------------------------------------------

STORIES = ['A rope,\nlong and "thin".', "日本 😀", "", "the end\r\n"]
EXPECTED = [story for story in STORIES if story]


@pytest.mark.parametrize(
    ("name", "delimiter", "line_end"),
    [("a.csv", ",", "\r\n"), ("A.CSV.GZ", ";", "\n"), ("a.csv", "\t", "\r"), ("a.csv", "|", "\n")],
)
def test_documents_are_a_column_of_a_csv_file(tmp_path, name, delimiter, line_end):
    file = tmp_path / name
    with file.open("w", newline="", encoding="utf-8-sig") as opened:
        rows = csv.writer(opened, delimiter=delimiter, lineterminator=line_end)
        rows.writerow(["id", "story", "text"])
        rows.writerows([number, story, f"no {number}"] for number, story in enumerate(STORIES))
    if name.endswith(".GZ"):
        file.write_bytes(gzip.compress(file.read_bytes()))
    assert read_documents(file, text_key="story") == EXPECTED
    assert read_documents(tmp_path) == read_documents(file) == ["no 0", "no 1", "no 2", "no 3"]


@pytest.mark.parametrize(
    ("header", "text_key"),
    [('"name, first, last";text', "text"), ("text,a;b;c;d", "text"), ('"two\nlines",text', "text"), ("text", "text")],
)
def test_the_delimiter_gives_the_header_the_named_column(tmp_path, header, text_key):
    (tmp_path / "a.csv").write_text(f"{header}\n{header}\n", encoding="utf-8")
    assert read_documents(tmp_path / "a.csv", text_key=text_key) == [text_key]


@given(st.lists(st.text(st.characters(exclude_characters="\t\r\n\0", codec="utf-8"), min_size=1), min_size=1))
def test_a_quote_in_a_tsv_file_is_text(tmp_path_factory, texts):
    file = tmp_path_factory.mktemp("tsv") / "a.tsv"
    lines = ["id\ttext", *(f"{number}\t{text}" for number, text in enumerate(texts))]
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert read_documents(file) == texts


@pytest.mark.parametrize("rows", [['"Bring tar, he said.', 'We need it."'], ['"', '"'], ['a "quoted" word', '""']])
def test_rows_of_a_tsv_file_with_quotes_are_not_merged(tmp_path, rows):
    lines = ["text\tid", *(f"{row}\t{number}" for number, row in enumerate(["The rope broke.", *rows, "They left."]))]
    (tmp_path / "a.tsv").write_text("\n".join(lines), encoding="utf-8")
    assert read_documents(tmp_path / "a.tsv") == ["The rope broke.", *rows, "They left."]


@pytest.mark.parametrize("indent", [None, 2])
def test_documents_are_the_objects_or_strings_of_a_json_array(tmp_path, indent):
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"story": story, "n": [1, {}]} for story in STORIES], indent=indent), encoding="utf-8")
    assert read_documents(file, text_key="story") == EXPECTED
    array = "\ufeff \n" + json.dumps(STORIES, indent=indent, ensure_ascii=False)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(array.encode()))
    assert read_documents(tmp_path / "a.json.gz") == EXPECTED


@pytest.mark.parametrize("name", ["a.json", "a.ndjson", "a.JSONL", "a.jsonl.gz"])
def test_documents_are_the_objects_of_json_lines(tmp_path, name):
    content = "\n".join(json.dumps({"text": story, "body": f"<{story}>"}) + "\r\n" for story in STORIES).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_documents(tmp_path / name) == EXPECTED
    assert read_documents(tmp_path / name, text_key="body") == [f"<{story}>" for story in STORIES]


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.text"])
def test_in_a_file_with_any_other_ending_json_is_text(tmp_path, name):
    (tmp_path / name).write_text('{"text": "x"}\n{"text": "y"}\n', encoding="utf-8")
    assert read_documents(tmp_path / name) == ['{"text": "x"}\n{"text": "y"}\n']


CONVERSATION = [{"role": "user", "content": "A rope?"}, {"role": "assistant", "content": "Yes."}]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"messages": CONVERSATION}, "is a conversation, but the first row is none"),
        ({"text": CONVERSATION, "id": "a"}, "has a conversation under 'text': rename that to 'messages'"),
        ({"conversations": [{"from": "human", "value": "Hi"}], "tools": "[]"}, "has turns with 'from' and 'value'"),
        ({"instruction": "Say hi", "input": "", "output": "Hi"}, "has an instruction and an output: rename them"),
        (
            {"text": ["a", "b"], "id": "x"},
            "has [\"a\", \"b\"], which is no text, under 'text': give text_key one of 'id'",
        ),
        ({"body": "x", "n": 3}, "has no text under 'text': give text_key one of 'body'"),
        ({"n": 3}, "has no text under 'text': give rows with a text"),
        (3, "has 3, which is no text, under 'text'"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_row_without_a_text_says_what_it_has(tmp_path, row, complaint, name):
    rows = [{"text": "good"}, row]
    content = json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(content, encoding="utf-8")
    message = refusal(tmp_path / name)
    assert message.startswith(f"{tmp_path / name}{', element ' if name == 'a.json' else ':'}2 ")
    assert complaint in message


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv"])
def test_rows_with_null_are_skipped_and_counted(tmp_path, name):
    if name.endswith("sv"):
        mark = "\t" if name == "a.tsv" else ","
        content = "".join(f"{mark.join(row)}\n" for row in (["id", "text"], ["1", "one"], ["2"], ["3", "three"]))
    else:
        rows = [{"id": "1", "text": "one"}, {"id": "2", "text": None}, {"id": "3", "text": "three"}]
        content = json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.warns(UserWarning, match=rf"{name}: 1 row without text under 'text' skipped$"):
        assert read_documents(tmp_path / name) == ["one", "three"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "id,story\n1,x\n", "a.csv has no column 'text': give text_key one of 'id', 'story', leave"),
        ("a.tsv", "id\tname, first\tlast\n", "give text_key one of 'id', 'name, first', 'last', leave"),
        ("a.csv", "\n\n", "a.csv has no column 'text'"),
        ("a.csv", 'text,id\n"open,1\n', "a.csv, line 2 of the table, is not valid"),
        ("a.csv", "text,id\nx,1\na, b,2\n", "a.csv, line 3 of the table, is not valid (3 fields for 2 columns)"),
        ("a.json", '["x", "y', "a.json is not valid JSON"),
        ("a.json", '["x", "\\ud800"]', "a.json, element 2 is not valid JSON text"),
        ("a.json", '{\n"a": 1\n}\n', "a.json:1 is not valid JSON"),
        ("a.jsonl", '{"text": "good"}\n\n{"text": "cut\n', "a.jsonl:3 is not valid JSON"),
        ("a.jsonl", '{"text": "good"}\n{"text": "\\ud800"}\n', "a.jsonl:2 is not valid JSON text"),
        ("a.jsonl", b'{"text": "good"}\n{"text": "\xe9"}\n', "a.jsonl is not UTF-8 text: byte 27 is 0xe9"),
    ],
)
def test_an_error_names_the_line_or_element_and_the_fix(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complaint in refusal(tmp_path / name)
