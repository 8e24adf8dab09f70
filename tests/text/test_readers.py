"""One file to documents: its ending is its format, and every error is one line."""

import csv
import gzip
import io
import itertools
import json
import os
import re
import sys
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from text_helpers import join_parts, read_documents, refusal

from model.text.readers import PART, split_documents
from model.text.sources import open_documents
from model.text.tokenizer import split_text


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_bytes_that_are_not_utf8_are_refused_with_their_position(tmp_path, ending):
    write = partial(gzip.compress, compresslevel=0) if ending.endswith("gz") else bytes
    file = tmp_path / f"a{ending}"
    for position in (0, 5, (2 << 20) + 3):
        raw = b"x" * position
        file.write_bytes(write(raw + b"\xe9t\xe9"))
        assert f"byte {position} is 0xe9; convert it" in refusal(file)
        file.write_bytes(write(raw + "日".encode()[:2]))
        assert f"byte {position} is 0xe6" in refusal(file)


NOISE = gzip.compress(os.urandom(50_000).hex().encode())


# --- documents inside a text ------------------------------------------------------------------------------------------

SEPARATORS = st.none() | st.text("\n\ta ", min_size=1, max_size=2) | st.sampled_from(["\n%\n", "<|endoftext|>"])
PIECES = st.sampled_from(["\n", "\n%\n", "  ", "\t", "a", "é", "two\nlines ", "%", "<|endoftext|>"])


def taken_from(blocks):
    while blocks:
        yield blocks.pop()


@given(st.lists(PIECES).map("".join), SEPARATORS, st.integers(1, 30), st.sampled_from([1, 20]))
def test_documents_are_split_at_the_separator_for_any_block_size(text, separator, block_size, times):
    """Of a long document only a few parts are held in memory, if white space in it is shorter than a part."""
    text *= times
    assume(times == 1 or not re.search(r"\s{30}", text))
    size = PART if times == 1 else 80
    first, *others = text.split(separator) if separator else [text]
    for number, document in enumerate(others):
        while document.partition("\n")[1] and not document.partition("\n")[0].strip():
            document = document.partition("\n")[2]
        others[number] = document
    expected = [document.rstrip() if separator else document for document in [first, *others]]
    remaining = [text[i : i + block_size] for i in range(0, len(text), block_size)][::-1]
    parts = []
    for part in split_documents(taken_from(remaining), separator, size):
        parts.append(part)
        returned = sum(len(part.text) for part in parts)
        assert separator or len(text) - len("".join(remaining)) - returned < 2 * size + block_size
    assert join_parts(parts) == [document for document in expected if document]


def test_a_line_end_in_the_separator_may_be_crlf():
    for separator in ("\n%\n", "\r\n%\r\n"):
        assert join_parts(split_documents(["one\n%\ntwo\r\n%\r", "\nthree"], separator)) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("Once upon a time.\n  <|endoftext|> \r\nA rope.", "<|endoftext|>"),
        ("A story.<|endoftext|>", ""),
        ("Each text ends in the <|endoftext|> token.\n", ""),
        ("x" * 1_000_000 + "\n<|endoftext|>\n", ""),
    ],
)
def test_a_tag_alone_on_a_line_near_the_beginning_is_recognized(tmp_path, text, tag):
    (tmp_path / "a.txt").write_text("A rope.", encoding="utf-8")
    (tmp_path / "b.txt").write_text(text, encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "<|endoftext|>"}', encoding="utf-8")
    assert open_documents([tmp_path], doc_separator=None).separator == tag


def test_a_text_is_cut_at_line_ends_else_between_words_and_a_run_of_spaces_is_not_cut():
    for size in (97, 98, 99, 100):
        lines = list(split_text("a rope\n\n  laid\n" * 99, size))
        assert all(part[0].isalpha() and before.endswith("\n") for before, part in itertools.pairwise(lines))
        assert all(part.startswith(" ") for part in list(split_text("a b " * 999, size))[1:])
        assert all(part.startswith("  a") for part in list(split_text("ab  " * 99, size))[1:])
        assert {len(part) for part in split_text("ACGT" * 99, size)} <= {size, 396 % size}


# --- tables -----------------------------------------------------------------------------------------------------------

TEXTS = st.text('"a, \n\t') | st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.just("rope " * 50_000)


def rows_of(name, texts, key):
    """The content of a file with these texts: in tables in the second column, and null for an empty one."""
    name = name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        pyarrow, stream = pytest.importorskip("pyarrow"), io.BytesIO()
        column = pyarrow.array([text or None for text in texts], pyarrow.string())
        table = pyarrow.table({"id": list(range(len(texts))), key: column})
        pytest.importorskip("pyarrow.parquet").write_table(table, stream, row_group_size=2)
        return stream.getvalue()
    if name.endswith("sv"):
        stream = io.StringIO()
        rows = [["two\nlines", key, "id"], *([number, text, "x"] for number, text in enumerate(texts))]
        options = {"lineterminator": "\n", "quoting": csv.QUOTE_ALL} if name == "b.csv" else {}
        csv.writer(stream, dialect="excel-tab" if name.endswith(".tsv") else "excel", **options).writerows(rows)
        return ("\ufeff" + stream.getvalue()).encode()
    rows = [*({key: text or None, "n": [1, {}]} for text in texts), *texts]
    lines = json.dumps(rows, indent=2) if name == "array.json" else "\r\n\n".join(map(json.dumps, rows))
    return ("\ufeff\n" + lines).encode()


@pytest.mark.parametrize(
    "name",
    ["a.csv", "B.CSV.GZ", "a.tsv", "a.parquet", "array.json", "array.json.gz", "a.json", "A.JSONL", "a.ndjson.gz"],
)
@given(st.lists(TEXTS, max_size=5), st.sampled_from(["text", "story"]))
def test_documents_are_the_texts_of_rows(tmp_path_factory, name, texts, key):
    """Quoted line ends and quotes in tables are text. Empty texts and null are left out."""
    file = tmp_path_factory.mktemp("rows") / name
    raw = rows_of(name, texts, key)
    file.write_bytes(gzip.compress(raw) if name.lower().endswith(".gz") else raw)
    expected = [text for text in texts if text]
    assert read_documents(file, text_key=key) == (expected * 2 if "js" in name.lower() else expected)


TABLE = "id,text\n1,The rope broke.\n"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "id,story\n1,The rope.\n", "a.csv:2 has no 'text': type --text_key story, or another field ('id'), "),
        ("a.jsonl", '{"message": "The rope."}\n', "a.jsonl:1 has no 'text': type --text_key message, or write a conv"),
        ("a.csv", f"{TABLE}2\n3,We need tar.\n", "a.csv:3 has 1 column, but the first line 2: correct it"),
        ("a.csv", f"{TABLE}a, b,2\n", "a.csv:3 has 3 columns, but the first line 2"),
        ("a.tsv", TABLE.replace(",", "\t") + "2\n", "a.tsv:3 has 1 column, but the first line 2"),
        ("a.csv", 'text,id\n"open,1\nnext,2\n', "a.csv:2 has a quote that is not closed"),
        ("a.csv", f'{TABLE}2,"open\n3,We need tar.\n', "a.csv:3 has a quote that is not closed"),
        ("a.csv", TABLE + r'2,"He said \"tar\" and left"', "a.csv:3 has a quote that is not closed, or not doubled"),
        ("a.csv", f'{TABLE}2,"Tar," he said.', "a.csv:3 has a quote that is not closed, or not doubled"),
        ("a.csv", f"{TABLE}2,\xe9\n".encode("cp1252"), "a.csv is not UTF-8 text: byte 28 is 0xe9; convert it with"),
        ("a.parquet", b"PAR1 and then no table PAR1", "a.parquet is not valid after row 0 ("),
        ("a.parquet", "no table", "a.parquet is not valid after row 0 ("),
        ("numbers.parquet", None, "numbers.parquet, row 1 has 3 under 'text': a text is needed"),
    ],
)
def test_an_error_in_a_table_names_the_row(tmp_path, name, content, complaint):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    file = tmp_path / name
    if content is None:
        pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").table({"text": [3]}), file)
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complaint in refusal(file)


SENTENCES = [f"Sentence {number} is here." for number in range(300)]
SENTENCES[100] = '"Sentence 100 begins a quotation.'
SENTENCES[150] = '"No," he said.'
SENTENCES[299] = 'Sentence 299 ends "it."'


def read_table(file, rows, delimiter="\t", key="text", **options):
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=delimiter, lineterminator="\n", **options).writerows(rows)
    return read_documents(file, text_key=key)


RAW = {"quoting": csv.QUOTE_NONE, "quotechar": None}
QUOTED = ['He said "tar".', '"Quoted," he said.', "two\nlines", "a\ttab", "both\n\tof them", "", "plain"]


@pytest.mark.parametrize("columns", [["text", "id"], ["id", "text"], ["id", "text", "lang"]])
def test_quotes_in_a_raw_tsv_are_characters_and_in_a_quoted_one_they_are_not(tmp_path, columns):
    """Corpora of sentences are raw; pandas and Python's csv module quote."""

    def rows(texts):
        return [
            columns,
            *([text if name == "text" else number for name in columns] for number, text in enumerate(texts)),
        ]

    assert read_table(tmp_path / "a.tsv", rows(SENTENCES), **RAW) == SENTENCES
    for texts in ([*QUOTED, *SENTENCES], SENTENCES):
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
            assert read_table(tmp_path / "b.tsv", rows(texts), quoting=quoting) == list(filter(None, texts))


def test_quoted_texts_with_a_tab_in_every_line_are_whole(tmp_path):
    """Code, for example: each line has as many tabs as the first one of the file."""
    code = ['def pull():\n\treturn "rope"', "if rope:\n\tlay()"]
    rows = [["id", "text"], *([number, text] for number, text in enumerate(code))]
    assert read_table(tmp_path / "a.tsv", rows) == code


def test_two_columns_of_a_raw_tsv_that_share_a_quotation_stay_apart(tmp_path):
    rows = [["text", "de"], ['"Come here.', 'Komm her."'], ["Go.", "Geh."]]
    assert read_table(tmp_path / "a.tsv", rows, **RAW) == ['"Come here.', "Go."]


@pytest.mark.parametrize("delimiter", list(",;|\t"))
def test_the_delimiter_of_a_csv_is_the_one_of_its_first_line(tmp_path, delimiter):
    rows = [["id", "text"], [1, "a, b; c | d\te"], [2, 'two\n"lines"']]
    assert read_table(tmp_path / "a.csv", rows, delimiter) == ["a, b; c | d\te", 'two\n"lines"']


def test_a_csv_of_one_column_needs_no_delimiter(tmp_path):
    assert read_table(tmp_path / "a.csv", [["text"], ["one"], ["a, b"]], ",") == ["one", "a, b"]


def write_parquet(file, rows):
    pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), file)


def write_arrow_file(file, rows):
    table, ipc = pytest.importorskip("pyarrow").Table.from_pylist(rows), pytest.importorskip("pyarrow.ipc")
    with ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_arrow_stream(file, rows):
    """As datasets.save_to_disk writes."""
    table, ipc = pytest.importorskip("pyarrow").Table.from_pylist(rows), pytest.importorskip("pyarrow.ipc")
    with ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_json_lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


WRITERS = {
    "a.jsonl": write_json_lines,
    "a.parquet": write_parquet,
    "stream.arrow": write_arrow_stream,
    "file.arrow": write_arrow_file,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_may_be_the_field_of_a_field(tmp_path, name):
    rows = [{"id": i, "translation": {"en": f"rope {i}", "de": f"Seil {i}"}, "text": f"text {i}"} for i in range(5)]
    WRITERS[name](tmp_path / name, rows)
    assert read_documents(tmp_path / name, text_key="translation.de") == [f"Seil {i}" for i in range(5)]
    assert read_documents(tmp_path / name) == [f"text {i}" for i in range(5)]
    complaint = refusal(tmp_path / name, text_key="translation.fr")
    assert re.search(r"1 has no 'translation\.fr': type --text_key (text|translation\.en), or another field", complaint)


def test_a_field_whose_name_has_a_point_is_found_first(tmp_path):
    write_json_lines(tmp_path / "a.jsonl", [{"a.b": "right", "a": {"b": "wrong"}}, {"a.b": "too"}])
    assert read_documents(tmp_path / "a.jsonl", text_key="a.b") == ["right", "too"]


def test_a_field_to_type_is_quoted_for_the_shell(tmp_path):
    write_json_lines(tmp_path / "a.jsonl", [{"id": "12", "the body": "A long text."}])
    assert "a.jsonl:1 has no 'text': type --text_key 'the body', or" in refusal(tmp_path / "a.jsonl")


def test_a_table_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15\x04")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "a.parquet needs the extra data: pip install pyarrow, or save it as" in refusal(tmp_path / "a.parquet")


NO_TEXT = "has no 'text':"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", '["x", "y', "a.json is not valid JSON"),
        ("a.json", '["x", "\\ud800"]', "a.json, element 2 is not UTF-8"),
        ("a.json", '{\n"a": 1\n}\n', "a.json is JSON over several lines: write a list of rows"),
        ("a.jsonl", '[\n{"text": "x"}\n]\n', "a.jsonl is JSON over several lines: write a list of rows"),
        (
            "a.json",
            '["x", {"text": ["a", "b"], "id": "x"}]',
            'element 2 has ["a", "b"] under \'text\': a text is needed',
        ),
        ("a.json", '["x", 3]', "a.json, element 2 has 3 under 'text': a text is needed"),
        ("a.json", '["x", {"body": "y", "id": 3}]', f"a.json, element 2 {NO_TEXT} type --text_key body, or"),
        ("a.jsonl", '"x"\n{"messages": []}', f"a.jsonl:2 {NO_TEXT} it has no field with a text, or"),
        ("a.jsonl", '{"text": "good"}\n\n{"text": "cut\n', "a.jsonl:3 alone is not valid JSON"),
        ("a.jsonl", b'{"text": "good"}\n{"text": "\xe9"}\n', "a.jsonl is not UTF-8 text: byte 27 is 0xe9"),
        ("a.txt.gz", b"no gzip at all", "a.txt.gz is not a complete gzip file"),
        ("a.txt.gz", NOISE[:-9], "a.txt.gz is not a complete gzip file"),
        ("a.txt.gz", NOISE[:500] + b"\0\0\0\0" + NOISE[504:], "a.txt.gz is not a complete gzip file"),
    ],
)
def test_an_error_names_the_line_or_element_and_the_fix(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complaint in refusal(tmp_path / name)
