"""Separators of documents are recognized if they are certain; texts without separators are not split."""

import gzip
import random

import pytest
from text_helpers import join_chunks

from model.text.readers import split_documents
from model.text.separators import recognize
from model.text.sources import open_documents


def stories(count, seed=1):
    """Short texts of a few sentences and lines, which differ in length."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        name = draw.choice(["Lily", "Tom", "Anna"])
        sentences = draw.choices(["He ran.", 'She said, "Come!"', "It was a long day."], k=draw.randint(2, 5))
        texts.append(f"Once upon a time there was a child, {name}.\n{' '.join(sentences)}\nThen {name} went home.")
    return texts


def documents(text, separator, block_size=7):
    blocks = [text[i : i + block_size] for i in range(0, len(text), block_size)]
    return join_chunks(split_documents(blocks, separator or None))


@pytest.mark.parametrize(
    ("between", "end", "separator"),
    [
        ("\n<|endoftext|>\n", "\n<|endoftext|>\n", "<|endoftext|>"),
        ("\r\n<|endoftext|>\r\n", "\r\n<|endoftext|>", "<|endoftext|>"),
        ("<|endoftext|>", "", "<|endoftext|>"),
        (" </s>\n", "", "</s>"),
        ("\n<eos>\n\n", "", "<eos>"),
        ("</s><s>", "", "</s>"),
        ("</s>\n<s> ", "</s>\n", "</s>"),
        ("\n\f\n", "", "\f"),
        ("\f", "\f", "\f"),
        ("\n%\n", "\n%\n", "\n%\n"),
        ("\r\n%\r\n", "\r\n%", "\n%\n"),
        ("\n\n====================\n\n", "", "\n====================\n"),
        ("\n----------\n", "\n----------\n", "\n----------\n"),
    ],
)
def test_known_separators_are_recognized_without_the_white_space_around_them(between, end, separator):
    texts = stories(30)
    text = between.join(texts) + end
    if "<s>" in between:
        text = "<s>" + text
    found = recognize([text])
    assert found.separator == separator
    assert documents(text, found.separator) == documents(text, between) == texts
    assert f"{text.count(separator.strip() or separator)} times" in found.note


@pytest.mark.parametrize(
    ("separator", "text", "expected"),
    [
        ("\n%\n", "%\none\n%\n  two\n%", ["one", "  two"]),
        ("\n%\n", "one\n%\n%\n%\n\n \ntwo\n\n%", ["one", "two"]),
        ("\n%\n", "5%\n%d\n%%\n% \n %\n%", ["5%\n%d\n%%\n% \n %"]),
        ("\r\n%\r\n", "one\r\n%\r\ntwo\n%\r\n%\nthree\r\n", ["one", "two", "three"]),
        ("\n\n----------\n", "----------\none\n----------\n-----------\n", ["one", "-----------"]),
        ("\n-\n=\n", "one\n-\n=\ntwo\n-\nthree", ["one", "two\n-\nthree"]),
        (
            "\n<|endoftext|>\n",
            "one\n<|endoftext|>\n<|endoftext|>\n two<|endoftext|> three<|endoftext|>  four\n\n",
            ["one", " two", "three", " four"],
        ),
        ("</s>\n<s>", "<s>one</s>\n<s>two</s><s> three</s>\n<s>\nfour<s></s>\n", ["one", "two", "three", "four<s>"]),
        ("\n\f\n", "\f\none\ftwo\n\f\n\f", ["one", "two"]),
        ("\n\n", "one\n\n\ntwo\nthree\n", ["one", "\ntwo\nthree\n"]),
        (" | ", "one | two|three| four", ["one", "two|three| four"]),
    ],
)
def test_white_space_around_a_tag_or_a_separating_line_belongs_to_no_document(separator, text, expected):
    for block_size in (1, 2, 3, 5, 8, 1000):
        assert documents(text, separator, block_size) == expected


UNDERLINED = "".join(
    f"{title}\n{'=' * len(title)}\n\nSome text on it.\n\n" for title in ("Setup", "Usage", "Other") * 9
)
TEXTS = {
    "plain": "\n\n".join(stories(30)),
    "reStructuredText": UNDERLINED,
    "numpy": "".join(f"Parameters\n----------\nx : int\n    Number {i}.\n\n" for i in range(40)),
    "Markdown": "".join(f"## Part {i}\n\nA sentence.\n\n---\n\n" for i in range(40)),
    "Markdown with long rules": "".join(
        f"## Part {i}\n\nA sentence, and a second one.\n\n{'-' * 20}\n\n" for i in range(40)
    ),
    "tables": "".join(f"-----------\nname  value\n-----------\na     {i}\n-----------\n\n" for i in range(20)),
    "comments": "".join(f"# {'-' * 40}\n# Part {i}.\n# {'-' * 40}\nx = {i}\n" for i in range(20)),
    "signatures": "".join(f"Dear you,\nthis is it.\n-- \nMe {i}\n\n" for i in range(20)),
    "scenes": "\n\n*****\n\n".join(stories(30)),
    "pages": "\f".join(f"  the words run on\nover the end of page {i}\nwhich has no full" for i in range(20)),
    "sections of a program": "\n\f\n".join(f"/* Part {i}. */\nint f{i}(void)\n{{\n}}" for i in range(20)),
    "TeX": "".join(f"%\n% Section {i}.\n%\n\\section{{A}} Some text.\n" for i in range(20)),
    "percentages": "".join(f"It is {i}%\nof all.\n" for i in range(20)),
    "a program about tokens": "".join(f'    token{i} = "<|endoftext|>"\n' for i in range(20)),
    "an article about tokens": "Each text ends in the <|endoftext|> token, and the `<|endoftext|>` token is one.\n" * 9,
    "lines about tokens": "This text ends in <|endoftext|>\n" * 9,
    "HTML": "".join(f"<p><s>{i} euros.</s>\n<s>{i}.50</s>\n half of it</p>\n" for i in range(20)),
    "Chinese": "天下大势，分久必合，合久必分。\n\n　　周末七国分争，并入于秦。\n" * 30,
    "titles": "".join(f"{'=' * 12}\nTitle {i}.\n{'=' * 12}\nText after the title, {i}.\n" for i in range(20)),
    "few constants": "eos=<|endoftext|>\n" * 4,
    "one separator": "\n<|endoftext|>\n".join(stories(2)),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_without_a_certain_separator_are_not_split(kind):
    assert recognize([TEXTS[kind]]).separator == ""


def test_a_separator_in_less_than_half_of_the_files_is_not_certain():
    tagged, plain = "\n<|endoftext|>\n".join(stories(9)), stories(1)[0]
    assert recognize([tagged, plain]).separator == "<|endoftext|>"
    found = recognize([tagged, plain, plain])
    assert found.separator == ""
    assert 'if so, give doc_separator = "<|endoftext|>" in a config' in found.note
    assert "form feeds, 19 times in the first " in recognize([TEXTS["pages"]]).note
    assert recognize([plain]).note is None


def test_only_a_sample_of_the_beginning_is_examined(tmp_path, monkeypatch):
    monkeypatch.setattr("model.text.sources.SAMPLE_CHARACTERS_PER_FILE", 3000)
    text = "\n<|endoftext|>\n".join(stories(60))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.txt").write_text("short", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "a field"}\n', encoding="utf-8")
    documents = open_documents([tmp_path])
    assert documents.beginnings() == [text[:3000], "short"]
    assert " times in the first 3,005 characters" in recognize(documents.beginnings()).note
    monkeypatch.setattr("model.text.sources.SAMPLE_CHARACTERS", 4000)
    assert documents.beginnings() == [text[:2000], "short"]
    monkeypatch.setattr("model.text.sources.SAMPLED_FILES", 1)
    assert documents.beginnings() == [text[:3000]]


@pytest.mark.parametrize(("between", "fewest"), [("\n<|endoftext|>\n", 3), ("<|endoftext|>\n", 5), ("\n%\n", 5)])
def test_fewer_tags_are_enough_if_they_are_alone_on_their_lines(between, fewest):
    for count in (fewest - 1, fewest):
        found = recognize([between.join(stories(count + 1))]).separator
        assert (found.strip() == between.strip()) == bool(found) == (count == fewest)
