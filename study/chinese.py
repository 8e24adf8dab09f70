"""Tables and the labels of pictures in Chinese: the phrases of chinese.toml in place of the English ones."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("chinese.toml")
# One of these is on most machines; the first in the list is that of the pictures in docs/.
FONTS = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "SimHei")


@cache  # not when this file is imported, because most outputs are English
def read_phrases(section: str) -> list[tuple[re.Pattern[str], str]]:
    """A pattern for each English phrase, and the Chinese one; the longest first, because it says most exactly what."""
    file = tomllib.loads(FILE.read_text(encoding="utf-8"))
    phrases = {key: value for key, value in file.get(section, file).items() if isinstance(value, str)}
    by_length = sorted(phrases.items(), key=lambda phrase: len(phrase[0]), reverse=True)
    return [(re.compile(re.escape(english).replace(r"\{\}", "(.+)")), chinese) for english, chinese in by_length]


def in_chinese(text: str, section: str = "") -> str:
    """The Chinese phrase, with what stands for its {} in Chinese too; the text itself if the file does not have it.

    ``section`` is a table of the file, such as "check"; "" is what precedes them.
    """
    for pattern, chinese in read_phrases(section):
        if match := pattern.fullmatch(text):
            return chinese.format(*(in_chinese(group, section) for group in match.groups()))
    return text


def chinese_font() -> str:
    """The first of FONTS that is installed. Raises ValueError if there is none."""
    from matplotlib.font_manager import get_font_names

    installed = get_font_names()
    for name in FONTS:
        if name in installed:
            return name
    raise ValueError(f"a picture in Chinese needs a Chinese font: install one of {', '.join(FONTS)}")


def translate_labels(figure: Any) -> None:
    """Put the labels of a matplotlib figure into Chinese. Raises ValueError without a Chinese font."""
    from matplotlib.text import Text

    font = chinese_font()
    for axes in figure.findobj(lambda artist: hasattr(artist, "get_xaxis")):
        for axis in (axes.get_xaxis(), axes.get_yaxis()):
            names = [label.get_text() for label in axis.get_ticklabels()]
            chinese = [in_chinese(name) for name in names]
            if chinese != names:  # else they are numbers, written when drawn
                axis.set_ticks(axis.get_majorticklocs(), chinese)
    for text in figure.findobj(Text):
        text.set_text(in_chinese(text.get_text()))
        text.set_fontfamily(["DejaVu Sans", font])
