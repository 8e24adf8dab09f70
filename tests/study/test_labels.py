"""The labels of pictures in Chinese."""

import re

import pytest

from study import labels
from study.positions import SCHEMES
from study.topics import run

# Words that are the same in Chinese: of the field, of code and of formulas
KEPT = {"token", "query", "head", "cache", "embedding", "forward", "loss", "nats", "bits", "byte", "attention"}
KEPT |= {"prefill", "decode", "chunk", "start", "transformers", "rotate", "half", "view", "complex", "alpha", "theta"}
KEPT |= {"mathdefault", *SCHEMES, *"_".join(SCHEMES).split("_"), "linear"}
DRAWN = ("order", "rotate", "layouts", "clocks", "decay", "lookback", "cache", "compare")


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("topic", DRAWN)
def test_every_label_of_a_picture_has_its_chinese(topic, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    monkeypatch.setattr(labels, "FONTS", ("DejaVu Sans",))  # whatever fonts this machine has
    run(topic, **({"dry": True} if topic == "compare" else {})).draw(figure)
    labels.translate(figure)
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert any(re.search(r"[\u4e00-\u9fff]", text) for text in texts)
    assert [text for text in texts if {*re.findall(r"\b[a-z]{4,}", text)} - KEPT] == []


def test_without_a_chinese_font_a_picture_in_chinese_is_refused(monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    monkeypatch.setattr(labels, "FONTS", ("No Such Font",))
    with pytest.raises(ValueError, match="needs a Chinese font: install one of No Such Font"):
        labels.translate(figure)
