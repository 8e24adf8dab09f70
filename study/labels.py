"""The labels of a picture in Chinese, for the pages that are."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LABELS = Path(__file__).with_name("labels.zh.toml")
# One of these is on most machines; the first in the list is that of the pictures in docs/.
FONTS = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "SimHei")


def translate(figure: Any) -> None:
    """Replace every label of a matplotlib figure that labels.zh.toml has. Raises ValueError without a Chinese font."""
    from matplotlib.font_manager import get_font_names
    from matplotlib.text import Text

    installed = get_font_names()
    font = next((name for name in FONTS if name in installed), None)
    if font is None:
        raise ValueError(f"a picture in Chinese needs a Chinese font: install one of {', '.join(FONTS)}")
    labels = tomllib.loads(LABELS.read_text(encoding="utf-8"))
    for axes in figure.findobj(lambda artist: hasattr(artist, "get_xaxis")):
        for axis in (axes.get_xaxis(), axes.get_yaxis()):
            names = [label.get_text() for label in axis.get_ticklabels()]
            if any(in_chinese(name, labels) != name for name in names):  # else they are numbers, written when drawn
                axis.set_ticks(axis.get_majorticklocs(), [in_chinese(name, labels) for name in names])
    for text in figure.findobj(Text):
        text.set_text(in_chinese(text.get_text(), labels))
        text.set_fontfamily(["DejaVu Sans", font])


def in_chinese(label: str, labels: Mapping[str, str]) -> str:
    """The Chinese label; the label itself if it is not in the list, as numbers, formulas and names are not."""
    for english, chinese in labels.items():
        pattern = re.escape(english).replace(r"\{\}", "(.+)")
        if match := re.fullmatch(pattern, label):
            return chinese.format(*match.groups())
    return label
