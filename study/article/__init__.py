"""`python -m study article`: the walk as web pages, with live figures that run a trained model, offline.

Each page of ``PAGES`` is made from its Markdown in docs/. The first page of the walk has a live figure in place of each
picture in ``FIGURES``, and the model inside; readers without JavaScript see the picture. article.html, article.css and
the modules of ``SCRIPT`` are joined into every page that has figures. base.css and the modules of page/ are those of
`python -m study page`, which is written beside the article.
"""

import base64
import html
import json
import re
from pathlib import Path
from typing import Annotated, Any

from model.cli.files import write_text

from ..layouts import example
from ..page import (
    Packed,
    Steps,
    fill,
    joined_modules,
    pack_checkpoint,
    read_source,
    security_policy,
    write_page,
)
from ..topic import ModelPath, Report, Table, is_wide, open_windows

SCRIPT = (
    "page/draw", "page/model", "page/weights", "page/rotation", "article/strings", "article/widgets",
    "article/problem", "article/clocks", "article/layouts", "article/head", "article/guess", "article/article",
)  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"
WALK = {"en": ("rope.md", "rope-models.md"), "zh": ("rope.zh.md", "rope-models.zh.md")}
PAGES = {  # the Markdown file in docs/: the page, without its ending
    "rope.md": "index",
    "rope.zh.md": "zh",
    "rope-models.md": "models",
    "rope-models.zh.md": "models.zh",
    "encodings.md": "encodings",
    "encodings.zh.md": "encodings.zh",
}
FIGURES = {"order": "problem", "clocks": "clocks", "layouts": "layouts", "lookback": "head", "whatif": "guess"}
MICROSCOPE = "page.html"
MICROSCOPE_NAME = {"en": "the model under a microscope", "zh": "模型显微镜"}


def article(
    model: ModelPath = None,
    out: Annotated[Path, "the directory to write into"] = Path("site"),
    prompt: Annotated[str, "the first prompt of page.html"] = "Return the number of",
) -> Report:
    """The walk as web pages with live figures that run a trained model, and the page of `python -m study page`.

    Raises ValueError for a model or tokenizer that the page cannot run.
    """
    packed = pack_checkpoint(model)
    tokenizer = packed.checkpoint.tokenizer()
    texts, _ = open_windows(model, tokenizer, packed.args.max_seq_len + 1, 1)
    facts = packed.facts | {"tokens": texts[0].tolist(), "layouts": example()}
    out.mkdir(parents=True, exist_ok=True)
    table = Table(f"{out}: open index.html in a browser; it needs no server and no internet", ("page", "bytes"))
    for source, name in PAGES.items():
        file = out / f"{name}.html"
        write_text(file, page_text(source, facts, packed))
        table.rows.append((file.name, file.stat().st_size))
    write_page(packed, out / MICROSCOPE, prompt, tokenizer, walk_steps())
    table.rows.append((MICROSCOPE, (out / MICROSCOPE).stat().st_size))
    return Report([table])


def page_text(source: str, facts: dict[str, Any], packed: Packed) -> str:
    """One Markdown file of docs/ as a page; with the figures and the model if it has a picture of ``FIGURES``."""
    text = (DOCS / source).read_text(encoding="utf-8")
    language = "zh" if ".zh." in source else "en"
    body = render(text)
    is_live = "data-figure" in body
    script = joined_modules(SCRIPT) if is_live else ""
    style = read_source("page/base.css") + read_source("article/article.css")
    values = {
        "lang": {"en": "en", "zh": "zh-Hans"}[language],
        "policy": security_policy(script, style),
        "title": html.escape(text.partition("\n")[0].removeprefix("# ")),
        "style": style,
        "links": f'<a href="{MICROSCOPE}#language={language}">{MICROSCOPE_NAME[language]}</a>',
        "body": body,
        "facts": json.dumps(facts | {"language": language}).replace("<", "\\u003c") if is_live else "{}",
        "weights": packed.weights if is_live else "",
        "script": script,
    }
    return fill(read_source("article/article.html"), values)


def render(text: str) -> str:
    """Markdown as HTML, with the anchors that GitHub gives to headings, and pictures inside the page.

    Raises ValueError for a link to a file that is not in ``PAGES``.
    """
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise ValueError("the article needs markdown-it-py: pip install markdown-it-py") from None
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[i + 1].content))
        children = token.children or []
        for before, child, after in zip(children, children[1:], children[2:]):
            if child.type == "softbreak" and is_wide(before.content[-1:]) and is_wide(after.content[:1]):
                child.type = "text"  # an empty one; a line break would be shown as a space
        for child in children:
            if child.type == "link_open":
                child.attrSet("href", page_address(str(child.attrGet("href"))))
            if child.type == "image":
                picture = DOCS / str(child.attrGet("src"))
                child.attrSet("data-picture", picture.name.partition(".")[0])
                child.attrSet("src", data_address(picture))
    body = str(markdown.renderer.render(tokens, markdown.options, {}))
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    return re.sub(r'<p>(<img [^>]*?data-picture="(\w+)"[^>]*>)</p>', figure, body)


def figure(picture: re.Match[str]) -> str:
    """A picture as a figure, which article.mjs replaces if it has a live one."""
    name = FIGURES.get(picture[2])
    return f'<figure data-figure="{name}">{picture[1]}</figure>' if name else f"<figure>{picture[1]}</figure>"


def page_address(target: str) -> str:
    """The page for a link in docs/: addresses outside and anchors stay as they are."""
    file, hash_sign, place = target.partition("#")
    if not file or file.startswith(("https:", "http:")):
        return target
    if file not in PAGES:
        raise ValueError(f"docs/ links to {file}, which is not a page of the article")
    return f"{PAGES[file]}.html{hash_sign}{place}"


def data_address(file: Path) -> str:
    """A picture as a data: address."""
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()


def walk_steps() -> Steps:
    """The numbered headings of the walk, with links to them."""
    steps: Steps = {}
    for language, files in WALK.items():
        steps[language] = []
        for file in files:
            text = (DOCS / file).read_text(encoding="utf-8")
            for heading in re.findall(r"^## (\d+\. .*)$", text, flags=re.MULTILINE):
                steps[language].append((heading, f"{PAGES[file]}.html#{anchor(heading)}"))
    return steps


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
