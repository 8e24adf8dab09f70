"""Labels of pictures in Chinese. tests/docs compares the tables of all topics with the Chinese pages."""

import re

import pytest

from study import chinese
from study.chinese import in_chinese
from study.positions import SCHEMES
from study.topic import Report, Table, check_plot, width
from study.topics import run

# Words that are the same in Chinese: of the field, of code and of formulas
KEPT = {"alpha", "bits", "byte", "cache", "chunk", "complex", "decode", "embedding", "forward", "half", "head"}
KEPT |= {"prefill", "query", "rotate", "start", "theta", "token", "transformers", "view"}
KEPT |= {*SCHEMES, *"_".join(SCHEMES).split("_")}
DRAWN = ("order", "rotate", "layouts", "clocks", "decay", "lookback", "cache", "compare")


def is_translated(text: str) -> bool:
    return not {word for word in re.findall(r"(?<![^\W\d_])[A-Za-z]{4,}", text) if word.islower()} - KEPT


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("topic", DRAWN)
def test_every_label_of_a_picture_has_its_chinese(topic, matplotlib, monkeypatch):
    figure = matplotlib.figure.Figure(layout="constrained")
    monkeypatch.setattr(chinese, "FONTS", ("DejaVu Sans",))  # whatever fonts this machine has
    run(topic, **({"dry": True} if topic == "compare" else {})).in_chinese().draw(figure)
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert any(re.search(r"[\u4e00-\u9fff]", text) for text in texts)
    assert [text for text in texts if not is_translated(text)] == []


def test_without_a_chinese_font_a_picture_in_chinese_is_refused(matplotlib, monkeypatch, tmp_path):
    monkeypatch.setattr(chinese, "FONTS", ("No Such Font",))
    with pytest.raises(ValueError, match="needs a Chinese font: install one of No Such Font"):
        check_plot(tmp_path / "x.png", chinese=True)
    check_plot(tmp_path / "x.png", chinese=False)


def test_phrases_may_contain_others_and_what_is_not_in_the_list_stays():
    assert in_chinese("2 texts of 64 tokens from the validation text of my.txt.") == (
        "2 段文本，每段 64 个 token，取自 my.txt 的验证集。"
    )
    assert in_chinese("pair 3 rotated") == "第 3 组旋转后"  # not 第 {} 组 with "3 rotated"
    assert in_chinese("nothing that is known") == "nothing that is known"


def test_a_report_in_chinese_has_columns_that_are_aligned_in_a_terminal():
    report = Report([Table("title", ("position", "sentence", "x"), [(1, "without", 2), (10, "RoPE", 30)])], code=1)
    translated = report.in_chinese()
    assert str(translated) == "title\n位置  句子   x\n   1  不加   2\n  10  RoPE  30"
    assert translated.code == 1
    assert width("位置，ab±") == 9
