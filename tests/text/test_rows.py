"""Conversations: every field of a row is read, or refused with its place, or named."""

import json
import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.text.rows import (
    CONTEXT,
    HISTORY,
    MARKS,
    MESSAGE_LISTS,
    PAIRS,
    ROLES,
    ROW_MARKS,
    SYSTEM,
    TEXT_FIELDS,
    TOOL_CALLS,
    Notes,
    is_learnt,
    read_conversation,
)
from model.text.sources import open_documents

TALK = [{"role": "user", "content": "What is laid?"}, {"role": "assistant", "content": "A rope."}]


def write_rows(file, rows):
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, file)
    return file


def read(file, rows):
    """The conversations of a file, about whose rows there is nothing to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return noted(file, rows)[0]


def noted(file, rows):
    documents = open_documents([write_rows(file, rows)])
    assert documents.has_conversations()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [messages for _, messages in documents.conversations()]
    return found, [str(warning.message).removeprefix(f"{file}: ") for warning in caught]


def system(content):
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TALK},
        {"conversations": [{"from": "human", "value": "What is laid?"}, {"from": "gpt", "value": "A rope."}]},
        {"conversations": TALK},
        {"conversation": TALK, "id": 3},
        {"instruction": "What is laid?", "input": "", "output": "A rope."},
        {"instruction": "What is laid?", "output": "A rope."},
        {"instruction": "What is laid?", "context": "", "response": "A rope.", "category": "open_qa"},
        {"prompt": "What is laid?", "completion": "A rope.", "label": True},
        {"prompt": "What is laid?", "response": "A rope.", "_source": "x", "prompt_id": "y"},
        {"prompt": TALK[:1], "completion": TALK[1:]},
        {"question": "What is laid?", "answer": "A rope.", "url": "x"},
        {"question": "What is laid?", "response": "A rope.", "system_prompt": ""},
        {"messages": TALK, "system": None, "tools": None, "history": []},
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_rows_of_every_published_form_are_conversations(tmp_path, row, name):
    if row.get("history") == [] and name == "a.parquet":
        row = row | {"history": None}
    assert read(tmp_path / name, [row]) == [TALK]


def test_the_columns_of_a_csv_are_the_fields_of_its_rows(tmp_path):
    file = tmp_path / "a.csv"
    lines = ["system;question;answer;train", "Be brief.;What is laid?;A rope.;True", ";What?;Rope.;False"]
    file.write_text("\n".join(lines), encoding="utf-8")
    documents = open_documents([file])
    with pytest.warns(UserWarning, match="1 row left out, because train is false"):
        ((where, messages),) = documents.conversations()
    assert where == f"{file}:2"
    assert messages == [system("Be brief."), *TALK]


@pytest.mark.parametrize("name", ["instruction", "messages", "conversations", "question"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("field", ["system", "system_prompt"])
def test_a_system_field_is_the_first_message_and_a_history_the_earlier_turns(tmp_path, name, ending, field):
    row = {"messages": TALK, "conversations": TALK}
    form = {name: row[name]} if name in row else {name: "What is laid?", "output": "A rope.", "answer": "A rope."}
    form.pop("answer" if name == "instruction" else "output", None)
    rows = [form | {field: "Be brief.", "history": [["Hello?", "Ahoy."]]}, form | {field: None, "history": None}]
    earlier = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Ahoy."}]
    assert read(tmp_path / f"a.{ending}", rows) == [[system("Be brief."), *earlier, *TALK], TALK]


def test_a_system_field_that_repeats_the_system_message_adds_none(tmp_path):
    row = {"messages": [system("Be brief."), *TALK], "system": "Be brief."}
    assert read(tmp_path / "a.jsonl", [row]) == [[system("Be brief."), *TALK]]


def test_what_a_row_is_about_follows_the_question(tmp_path):
    rows = [
        {"instruction": "Translate.", "input": "Seil", "output": "rope"},
        {"instruction": "Translate.", "context": "Seil", "response": "rope"},
        {"question": "Translate.", "context": "Seil", "answer": "rope"},
        {"instruction": "Translate.\n\nSeil", "input": "", "output": "rope"},
        {"instruction": "", "input": "Translate.\n\nSeil", "output": "rope"},
    ]
    assert [messages[0]["content"] for messages in read(tmp_path / "a.jsonl", rows)] == ["Translate.\n\nSeil"] * 5


@pytest.mark.parametrize(("name", "off", "on"), [("weight", 0, 1), ("weight", 0.0, 1.0), ("train", False, True)])
@pytest.mark.parametrize("file", ["a.jsonl", "a.parquet"])
def test_an_answer_that_is_not_to_be_learnt_is_marked(tmp_path, name, off, on, file):
    row = {"messages": [*TALK, TALK[0], TALK[1] | {name: off}, TALK[0], TALK[1] | {name: on}]}
    assert read(tmp_path / file, [row]) == [[*TALK, TALK[0], TALK[1] | {"weight": 0}, *TALK]]


def test_a_message_keeps_its_other_fields_for_the_template(tmp_path):
    thought = TALK[1] | {"reasoning_content": "Hemp is spun first."}
    rows = [{"messages": [TALK[0], thought]}, {"messages": [TALK[0], TALK[1] | {"reasoning_content": None}]}]
    for name in ("a.jsonl", "a.parquet"):
        assert read(tmp_path / name, rows) == [[TALK[0], thought], TALK]


CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "lay", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ({"prompt": "2+2?", "completion": "5", "label": False}, "1 row left out, because label is false"),
        ({"prompt": "2+2?", "completion": "5", "weight": 0}, "1 row left out, because weight is false"),
        ({"messages": TALK, "train": False}, "1 row left out, because train is false"),
        ({"messages": [TALK[0], CALL]}, "1 row left out, because tool_calls is not supported"),
        (
            {"messages": [*TALK, {"role": "assistant", "content": "", "function_call": {"name": "lay"}}]},
            "1 row left out, because function_call is not supported",
        ),
        (
            {"messages": [TALK[0], TALK[1] | {"weight": 0}]},
            "1 row left out, because the weight of every answer is 0",
        ),
    ],
)
def test_a_row_that_is_not_to_be_learnt_is_left_out_and_counted(tmp_path, row, note):
    assert noted(tmp_path / "a.jsonl", [{"messages": TALK}, row]) == ([TALK], [note])
    with pytest.raises(ValueError, match=f"a.jsonl: {note}: no row is left to learn from"):
        noted(tmp_path / "a.jsonl", [row])


def test_fields_that_are_not_read_are_named_once_with_the_number_of_their_rows(tmp_path):
    rows = [
        {"messages": TALK, "tools": [{"name": "lay"}], "score": 0.5},
        {"messages": [TALK[0], TALK[1] | {"mood": "glad"}], "tools": [], "score": 0},
        {"messages": TALK, "weight": 0.5, "id": 7},
        {"prompt": "What?", "chosen": "A rope.", "rejected": "A cat."},
    ]
    found, notes = noted(tmp_path / "a.jsonl", rows)
    assert len(found) == 4
    assert found[1][1] == TALK[1] | {"mood": "glad"}, "a template may read it"
    (note,) = notes
    assert set(re.findall(r"'\w+' \(in \d rows?\)", note)) == {
        "'tools' (in 1 row)", "'score' (in 2 rows)", "'mood' (in 1 row)", "'weight' (in 1 row)",
        "'rejected' (in 1 row)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"messages": [TALK[0], TALK[1] | {"weight": 0.5}]}, "a.jsonl:2, message 2 has 0.5 as its weight: give 0 or 1"),
        ({"messages": [TALK[0], TALK[1] | {"train": "no"}]}, 'message 2 has "no" as its train: give 0 or 1'),
        ({"messages": TALK, "history": ["Hello?"]}, 'a.jsonl:2 has "Hello?" in its history: give [[question, answer],'),
        ({"messages": TALK, "history": "Hello?"}, 'a.jsonl:2 has "Hello?" in its history'),
        ({"messages": TALK, "system": ["Be brief."]}, 'a.jsonl:2, system has ["Be brief."] as its content'),
        ({"messages": [system("Be long."), *TALK], "system": "Be brief."}, "a.jsonl:2 has two system messages"),
        ({"messages": TALK, "system": "Be brief.", "system_prompt": "x"}, "a.jsonl:2 has two system messages"),
        ({"messages": [TALK[0], TALK[1] | {"reasoning_content": "\ud800"}]}, "a.jsonl:2, message 2 is not UTF-8"),
        ({"question": "What?", "context": {"a": 1}, "answer": "x"}, 'a.jsonl:2, message 1 has {"a": 1} as its content'),
        ({"question": 3, "answer": "x"}, "a.jsonl:2, message 1 has 3 as its content: give a text"),
        ({"messages": None}, "a.jsonl:2 is no conversation, but the first row is one"),
        ({"question": "What?"}, "a.jsonl:2 is no conversation, but the first row is one"),
    ],
)
def test_an_invalid_field_is_refused_with_its_place(tmp_path, row, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        noted(tmp_path / "a.jsonl", [{"messages": TALK}, row])


def test_a_row_with_a_text_is_no_conversation(tmp_path):
    row = {"text": "A rope.", "messages": [{"role": "assistant", "content": "A rope."}]}
    for name in ("a.jsonl", "a.parquet"):
        file = write_rows(tmp_path / name, [row])
        assert not open_documents([file]).has_conversations()
        assert open_documents([file], text_key="body").has_conversations()


FIELDS = st.sampled_from(
    [*MESSAGE_LISTS, *(name for pair in PAIRS for name in pair), *CONTEXT, *SYSTEM, HISTORY, *ROW_MARKS, "tools", "id"]
)
MESSAGE_FIELDS = st.sampled_from(["role", "from", "content", "value", *MARKS, *TOOL_CALLS, *TEXT_FIELDS, "name"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just("user")
MESSAGES = st.dictionaries(MESSAGE_FIELDS, VALUES | st.sampled_from(["assistant", "user", "gpt"]), max_size=4)
NESTED = VALUES | st.lists(VALUES | MESSAGES | st.lists(VALUES, max_size=2), max_size=3) | MESSAGES


@given(st.dictionaries(FIELDS, NESTED | st.just(TALK), max_size=5))
def test_a_row_with_any_values_is_read_or_left_out_or_refused(row):
    try:
        messages = read_conversation("a.jsonl:1", row, Notes())
    except ValueError:
        return
    assert messages is None or any(map(is_learnt, messages))
    for message in messages or []:
        assert message["role"] in ROLES
        assert isinstance(message["content"], str)
        assert message.get("weight", 0) == 0
