"""Documents in fields: CSV, TSV, JSON lines and JSON arrays; errors are one line."""

import csv
import gzip
import json

import pytest
from text_helpers import read_documents

STORIES = ['A rope,\nlong and "thin".', "日本 😀", "", "the end\r\n"]
EXPECTED = [story for story in STORIES if story]


@pytest.mark.parametrize(
    ("name", "delimiter", "line_end"),
    [("a.csv", ",", "\r\n"), ("A.CSV.GZ", ";", "\n"), ("a.tsv", "\t", "\r"), ("a.csv", "|", "\n")],
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
    [
        ("id\ttext, cleaned, again", "text, cleaned, again"),
        ('"name, first, last";text', "text"),
        ("text,a;b;c;d", "text"),
        ('"two\nlines",text', "text"),
        ("text", "text"),
    ],
)
def test_the_delimiter_gives_the_header_the_named_column(tmp_path, header, text_key):
    (tmp_path / "a.csv").write_text(f"{header}\n{header}\n", encoding="utf-8")
    assert read_documents(tmp_path / "a.csv", text_key=text_key) == [text_key]


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


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "id,story\n1,x\n", "a.csv has no column 'text': give text_key one of 'id', 'story', or copy"),
        ("a.tsv", "id\tname, first\tlast\n", "give text_key one of 'id', 'name, first', 'last', or"),
        ("a.csv", "\n\n", "a.csv has no column 'text'"),
        ("a.csv", 'text,id\n"open,1\n', "a.csv, line 2 of the table, is not valid CSV"),
        ("a.csv", "text,id\nx,1\na, b,2\n", "a.csv, line 3 of the table, is not valid CSV (3 fields for 2 columns)"),
        ("a.json", '[{"n": 3, "a": "x", "b": "y"}]', "element 1 has no text under 'text': give text_key one of 'a'"),
        ("a.json", '[{"text": "x"}, 3]', "a.json, element 2 has no text under 'text': it has no text at all"),
        ("a.json", '["x", "y', "a.json is not valid JSON"),
        ("a.json", '["x", "\\ud800"]', "a.json, element 2 is not valid JSON text"),
        ("a.jsonl", '{"text": "good"}\n\n{"text": "cut\n', "a.jsonl:3 is not valid JSON"),
        ("a.jsonl", '{"text": "good"}\n{"text": "\\ud800"}\n', "a.jsonl:2 is not valid JSON text"),
        ("a.jsonl", '{"text": "good"}\n{"body": "x"}', "a.jsonl:2 has no text under 'text': give text_key one of 'bo"),
        ("a.jsonl", '{"text": "good"}\n{"text": null}', "a.jsonl:2 has no text under 'text': it has no text at all"),
        ("a.jsonl", '{"text": "good"}\n["text"]', "a.jsonl:2 has no text under 'text': it has no text at all"),
        ("a.jsonl", b'{"text": "good"}\n{"text": "\xe9"}\n', "a.jsonl is not UTF-8 text: byte 27 is 0xe9"),
    ],
)
def test_an_error_names_the_line_or_element_and_the_fix(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="a\\.") as error:
        read_documents(tmp_path / name)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '{"a": [1]}'),
        ("a.json", '{\n"a": 1}\n'),
        ("a.json", "[1, 2]"),
        ("a.json", "[Enter a king]\n"),
        ("a.txt", '{"text": "x"}\n{"text": "y"}\n'),
        ("a.txt", '[{"text": "x"}]\n'),
    ],
)
def test_other_json_is_read_as_plain_text_with_a_warning(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.warns(UserWarning, match=rf"{name} is read as plain text.* ends in \.jsonl, or an array .* \.json$"):
        assert read_documents(tmp_path / name) == [content]


def test_tables_without_the_key_are_plain_text_beside_other_texts(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n", encoding="utf-8")
    (tmp_path / "b.json").write_text('[{"x": 1}]', encoding="utf-8")
    (tmp_path / "c.csv").write_text("n,text\n1,row\n", encoding="utf-8")
    with pytest.warns(
        UserWarning, match=r"3 text files; 2 without a field 'text', read as plain text \(for example .*a.csv\)$"
    ):
        assert read_documents(tmp_path) == ["x,y\n1,2\n", '[{"x": 1}]', "row"]
    with pytest.raises(ValueError, match=r"a.csv has no column 'text'"):
        read_documents(tmp_path / "[ab].*")


@pytest.mark.parametrize("name", ["b.jsonl", "b.NDJSON.GZ"])
def test_json_lines_without_the_key_are_refused_beside_other_texts_too(tmp_path, name):
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    content = b'{"body": "x"}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".GZ") else content)
    with pytest.raises(ValueError, match=rf"{name}:1 has no text under 'text': give text_key one of 'body'$"):
        read_documents(tmp_path)
