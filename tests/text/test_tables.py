"""Documents in fields: CSV, TSV, JSON lines and JSON arrays; errors are one line."""

import csv
import gzip
import io
import json

import pytest
from text_helpers import read_documents

from model.text.tables import json_format, texts

STORIES = ['A rope,\nlong and "thin".', "日本 😀", "", "the end\r\n"]


def write_csv(path, delimiter=","):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(["id", "story", "text"])
        rows.writerows([number, story, f"no {number}"] for number, story in enumerate(STORIES))
    return path


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("A.CSV.GZ", ";"), ("a.tsv", "\t"), ("a.csv", "|")])
def test_documents_are_a_column_of_a_csv_file(tmp_path, name, delimiter):
    file = write_csv(tmp_path / name, delimiter)
    if name.endswith(".GZ"):
        file.write_bytes(gzip.compress(file.read_bytes()))
    expected = [story for story in STORIES if story]
    assert read_documents(file, text_key="story") == expected
    assert read_documents(file) == ["no 0", "no 1", "no 2", "no 3"]


@pytest.mark.parametrize(
    ("name", "header", "text_key"),
    [
        ("a.tsv", "id\ttext, cleaned, again", "text, cleaned, again"),
        ("a.csv", '"name, first, last";text', "text"),
        ("a.csv", "id\ttext, b, c", "text, b, c"),
        ("a.csv", "text,a;b;c;d", "text"),
        ("a.csv", "text", "text"),
    ],
)
def test_the_delimiter_gives_the_header_the_named_column(tmp_path, name, header, text_key):
    (tmp_path / name).write_text(f"{header}\n{header}\n", encoding="utf-8")
    assert read_documents(tmp_path / name, text_key=text_key) == [text_key]


@pytest.mark.parametrize("indent", [None, 2])
def test_documents_are_the_objects_or_strings_of_a_json_array(tmp_path, indent):
    expected = [story for story in STORIES if story]
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"story": story, "n": [1, {}]} for story in STORIES], indent=indent), encoding="utf-8")
    assert read_documents(file, text_key="story") == expected
    array = "\ufeff \n" + json.dumps(STORIES, indent=indent, ensure_ascii=False)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(array.encode()))
    assert read_documents(tmp_path / "a.json.gz") == expected


@pytest.mark.parametrize("name", ["a.json", "a.ndjson", "a.JSONL"])
def test_json_lines_may_be_in_a_json_ndjson_or_upper_case_file(tmp_path, name):
    content = "".join(json.dumps({"text": story}) + "\n" for story in STORIES)
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_documents(tmp_path / name) == [story for story in STORIES if story]


@pytest.mark.parametrize(
    ("start", "file_format"),
    [
        ('[{"a": 1', "json array"),
        (' [\n  "a"', "json array"),
        ('{"a": 1}\n{"a": 2}\n', "json lines"),
        ('{"a": 1}', "text"),
        ('{\n"a": 1}\n', "text"),
        ("[1, 2]", "text"),
        ("[]", "text"),
        ("[Enter a king]\n", "text"),
        ("", "text"),
    ],
)
def test_the_format_of_json_is_detected_from_its_first_characters(start, file_format):
    assert json_format(start) == file_format


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "id,story\n1,x\n", "a.csv has no column 'text': give text_key one of 'id', 'story'; or copy"),
        (
            "a.tsv",
            "id\tname, first, last\n",
            "give text_key one of 'id', 'name, first, last'; or",
        ),
        (
            "a.csv",
            '"name, first, last";id\n',
            "give text_key one of 'name, first, last', 'id'; or",
        ),
        ("a.csv", "\n\n", "a.csv has no line with the names of the columns"),
        ("a.csv", 'text,id\n"open,1\n', "a.csv, line 2 of the table, is not valid CSV"),
        ("a.csv", "\n\ntext,id\nx,1\na, b,2\n", "a.csv, line 3 of the table, ends a row of 3 fields, but"),
        (
            "a.json",
            '[{"n": 3, "a": "x", "b": "y"}]',
            "element 1 has no text under 'text': give text_key one of 'a'",
        ),
        ("a.json", '[{"text": "x"}, 3]', "a.json, element 2 has no text under 'text': it has no text at all"),
        ("a.json", '["x", "y', "a.json is not valid JSON"),
        ("a.json", '["x", "\\ud800"]', "a.json, element 2 is not valid JSON text"),
        ("a.json", '["x", ' + "[" * 9999, "a.json is not valid JSON"),
    ],
)
def test_an_error_names_the_line_or_element_and_the_fix(tmp_path, name, content, complaint):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="a\\.") as error:
        read_documents(tmp_path / name)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "warning"),
    [
        ("a.json", '{"a": [1]}', "is neither .* JSON lines: it is read as plain text"),
        ("a.json", "[]", "is neither .* JSON lines: it is read as plain text"),
        ("a.txt", '{"text": "x"}\n{"text": "y"}\n', r"looks like JSON lines, but is read as plain text.*in \.jsonl$"),
        ("a.txt", '[{"text": "x"}]\n', r"looks like JSON array.*in \.json$"),
    ],
)
def test_other_json_is_read_as_plain_text_with_a_warning(tmp_path, name, content, warning):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.warns(UserWarning, match=warning):
        assert read_documents(tmp_path / name) == [content]


def test_tables_without_the_key_are_plain_text_beside_other_texts(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n", encoding="utf-8")
    (tmp_path / "b.json").write_text('[{"x": 1}]', encoding="utf-8")
    (tmp_path / "c.csv").write_text("n,text\n1,row\n", encoding="utf-8")
    with pytest.warns(
        UserWarning, match=r"3 text files; 2 without a field 'text' are read as plain text \(for example .*a.csv\)$"
    ):
        assert read_documents(tmp_path) == ["x,y\n1,2\n", '[{"x": 1}]', "row"]
    with pytest.raises(ValueError, match=r"a.csv has no column 'text'"):
        read_documents(tmp_path / "[ab].*")


def test_a_line_that_is_too_long_is_refused_with_its_number(monkeypatch):
    monkeypatch.setattr("model.text.tables.MAX_LENGTH", 30)
    file = io.StringIO('{"text": "a"}\n{"text": "b"}\n{"text": "' + 30 * "c")
    found = texts(file, "a.jsonl", "json lines", "text")
    assert [next(found), next(found)] == ["a", "b"]
    with pytest.raises(ValueError, match=r"^a\.jsonl:3 is over"):
        next(found)
