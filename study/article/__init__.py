"""`python -m study article`: the walk as web pages, with live figures that run a trained model, offline.

Each page of ``PAGES`` is made from its Markdown in docs/. The first page of the walk has a live figure in place of each
picture in ``FIGURES``, and the model inside; readers without JavaScript see the picture. article.html, article.css and
the modules of ``SCRIPT`` are joined into every page that has figures. base.css and the modules of page/ are those of
`python -m study page`, which is written beside the article.
"""

import base64
import html
import json
import mimetypes
import re
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from model.cli.files import write_text

from ..layouts import example
from ..notebook import origin
from ..page import (
    ICON,
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
FIGURES = {"clocks": "clocks", "layouts": "layouts", "lookback": "head", "whatif": "guess"}
FIRST = ("rope.svg", "problem")  # the picture at the top of the walk, and the figure in its place
MICROSCOPE = "page.html"
# What messengers and social networks show for a link to a page. They take no SVG: draw it from preview.svg by
# chromium --headless --hide-scrollbars --window-size=1200,630 --screenshot=preview.png preview.svg
PREVIEW = "preview.png"
WORDS = {
    "en": {
        "description": "Rotary position embedding (RoPE) step by step, with a small Llama that runs in this page.",
        "other": "中文",
        "contents": "Contents",
        "microscope": "The model under a microscope",
        "repository": "Code",
        "report": "Report an error",
        "licence": "© 2026 The Ropewalk authors, MIT licence",
        "commands": "The commands",
        "moving": "A query and a key move along the text: both arrows turn, and the angle between them stays",
    },
    "zh": {
        "description": "一步一步看懂旋转位置编码（RoPE），页面里就运行着一个小型 Llama。",
        "other": "English",
        "contents": "目录",
        "microscope": "模型显微镜",
        "repository": "代码",
        "report": "报告错误",
        "licence": "© 2026 The Ropewalk authors，MIT 许可证",
        "commands": "所用的命令",
        "moving": "query 和 key 一起沿文本移动：两个箭头都在转，夹角不变",
    },
}
# A letter with an index, such as W_q, mθ_i or R_(n-m), and a power, such as b^(-2i/D), ζ^m or 10^4
INDEX = re.compile(
    r"(?:(?<![A-Za-z0-9_])[A-Za-z]|[α-ωΣ])_(?:\((?P<long>[^)]+)\)|(?P<short>[A-Za-z0-9]{1,2}(?![A-Za-z0-9_])))"
)
ANCHOR = ' <a class="anchor" href="#{0}" aria-hidden="true" tabindex="-1">#</a>'
POWER = re.compile(r"(?<=[\w)])\^(?:\((?P<long>(?:[^()]|\([^()]*\))+)\)|(?P<short>-?\w+))")


def article(
    model: ModelPath = None,
    out: Annotated[Path, "the directory to write into"] = Path("site"),
    prompt: Annotated[str, "the first prompt of page.html"] = "Return the number of",
    repository: Annotated[str, "address of the code (default: where it was cloned from)"] = "",
    address: Annotated[str, "address that the site will have, for the preview image of its links"] = "",
) -> Report:
    """The walk as web pages, with live figures that run a trained model.

    Raises ValueError for a model or tokenizer that the page cannot run.
    """
    packed = pack_checkpoint(model)
    tokenizer = packed.checkpoint.tokenizer()
    texts, _ = open_windows(model, tokenizer, packed.args.max_seq_len + 1, 1)
    facts = packed.facts | {"tokens": texts[0].tolist(), "layouts": example()}
    if not repository and origin().startswith("https://"):
        repository = origin().removesuffix(".git")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DOCS / "images" / PREVIEW, out / PREVIEW)
    table = Table(f"{out}: open index.html in a browser; it needs no server and no internet", ("page", "bytes"))
    for source, name in PAGES.items():
        file = out / f"{name}.html"
        write_text(file, page_text(source, facts, packed, repository, address))
        table.rows.append((file.name, file.stat().st_size))
    meta = preview("Ropewalk", WORDS["en"]["description"], address)
    write_page(packed, out / MICROSCOPE, prompt, tokenizer, walk_steps(), meta)
    table.rows.append((MICROSCOPE, (out / MICROSCOPE).stat().st_size))
    return Report([table])


def page_text(source: str, facts: dict[str, Any], packed: Packed, repository: str, address: str) -> str:
    """One Markdown file of docs/ as a page; with the model if it has a figure of ``FIGURES``."""
    language = language_of(source)
    words = WORDS[language]
    body = render((DOCS / source).read_text(encoding="utf-8"), language)
    if source == WALK[language][0]:
        body = body.replace("</h1>", f"</h1>\n{first_figure(words['moving'])}", 1)
    is_live = "data-figure" in body
    script = joined_modules(SCRIPT) if is_live else ""
    style = read_source("page/base.css") + read_source("article/article.css")
    sections = re.findall(r'<h2 id="(.*?)">(.*?)<a ', body)
    values = words | {
        "lang": {"en": "en", "zh": "zh-Hans"}[language],
        "policy": security_policy(script, style),
        "title": html.escape(title_of(source)),
        "meta": preview(title_of(source), words["description"], address),
        "icon": ICON,
        "style": style,
        "home": f"{PAGES[WALK[language][0]]}.html",
        "links": "".join(links(source, repository)),
        "sections": "".join(f'<li><a href="#{place}">{heading}</a></li>' for place, heading in sections),
        "body": body,
        "facts": json.dumps(facts | {"language": language}).replace("<", "\\u003c") if is_live else "{}",
        "weights": packed.weights if is_live else "",
        "script": script,
    }
    return fill(read_source("article/article.html"), values)


def language_of(source: str) -> str:
    return "zh" if ".zh." in source else "en"


def title_of(source: str) -> str:
    return (DOCS / source).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def preview(title: str, description: str, address: str) -> str:
    """What is shown for a link to the page (Open Graph). Most readers of these tags need the address of the site."""
    title, description = html.escape(title), html.escape(description)
    image = html.escape(f"{address.rstrip('/')}/{PREVIEW}" if address else PREVIEW)
    return (
        f'<meta name="description" content="{description}">\n<meta property="og:site_name" content="Ropewalk">\n'
        f'<meta property="og:type" content="article">\n<meta property="og:title" content="{title}">\n'
        f'<meta property="og:description" content="{description}">\n<meta property="og:image" content="{image}">\n'
        '<meta name="twitter:card" content="summary_large_image">'
    )


def links(source: str, repository: str) -> Iterator[str]:
    """The links at the top of a page: the microscope, the code, its issues, and the page in the other language."""
    language = language_of(source)
    words = WORDS[language]
    yield f'<a href="{MICROSCOPE}#language={language}">{words["microscope"]}</a>'
    if repository:
        address = html.escape(repository)
        yield f'<a href="{address}">{words["repository"]}</a><a href="{address}/issues">{words["report"]}</a>'
    other = source.replace(".zh.md", ".md") if language == "zh" else source.replace(".md", ".zh.md")
    yield f'<a class="button" href="{PAGES[other]}.html">{words["other"]}</a>'


def first_figure(text: str) -> str:
    """The live figure at the top of the walk, with the moving picture in its place for readers without JavaScript."""
    picture, name = FIRST
    return f'<figure data-figure="{name}"><img src="{data_address(DOCS / "images" / picture)}" alt="{text}"></figure>'


def render(text: str, language: str) -> str:
    """Markdown as HTML, with the anchors that GitHub gives to headings, and pictures inside the page.

    Raises ValueError for a link to a file that is not in ``PAGES``.
    """
    try:
        from markdown_it import MarkdownIt
        from markdown_it.token import Token
    except ImportError:
        raise ValueError("the article needs markdown-it-py: pip install markdown-it-py") from None
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            place = anchor(tokens[i + 1].content)
            token.attrSet("id", place)
            if token.tag != "h1":
                (tokens[i + 1].children or []).append(Token("html_inline", "", 0, content=ANCHOR.format(place)))
        if token.type == "fence" and token.info == "console":
            token.type, token.content = "html_block", session(token.content, WORDS[language]["commands"])
        elif token.type in ("fence", "code_block"):
            token.type, token.content = "html_block", code_block(token.content, is_formula=token.type == "code_block")
        children = token.children or []
        for j, child in enumerate(children):
            before, after = ("".join(each.content for each in part) for part in (children[:j], children[j + 1 :]))
            if child.type == "softbreak" and is_wide(before[-1:]) and is_wide(after[:1]):
                child.type = "text"  # an empty one; a line break would be shown as a space
        for child in children:
            if child.type == "text":
                child.type, child.content = "html_inline", with_indices(html.escape(child.content))
            if child.type == "link_open":
                child.attrSet("href", page_address(str(child.attrGet("href"))))
            if child.type == "image":
                picture = DOCS / str(child.attrGet("src"))
                child.attrSet("data-picture", picture.name.partition(".")[0])
                child.attrSet("src", data_address(picture))
    body = str(markdown.renderer.render(tokens, markdown.options, {}))
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    return re.sub(r'<p>(<img [^>]*?data-picture="(\w+)"[^>]*>)</p>', figure, body)


def with_indices(text: str) -> str:
    """W_q with the q as an index, and b^(-2i/D) with its power above. ``text`` is already HTML."""
    text = POWER.sub(lambda found: f"<sup>{found['long'] or found['short']}</sup>", text)
    return INDEX.sub(lambda found: f"{found[0].partition('_')[0]}<sub>{found['long'] or found['short']}</sub>", text)


def code_block(text: str, *, is_formula: bool = False) -> str:
    """Code, each line in an element of its own, so that a line that wraps on a phone is indented."""
    lines = [f"<span>{html.escape(line)}</span>" for line in text.splitlines(keepends=True)]
    code = "".join(lines)
    return f"<pre><code>{with_indices(code) if is_formula else code}</code></pre>"


def session(text: str, summary: str) -> str:
    """Commands and their outputs: several commands are folded, and the tables of outputs are not wrapped."""
    parts = ""
    for is_command, lines in groupby(text.splitlines(keepends=True), lambda line: line.startswith("$ ")):
        text = "".join(lines)
        kind = "command" if is_command else "output"
        block = f'<div class="{kind}">{code_block(text)}</div>'
        parts += f"<details><summary>{summary}</summary>{block}</details>" if text.count("$ ") > 1 else block
    return parts


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
    kind, _ = mimetypes.guess_type(file.name)
    return f"data:{kind};base64," + base64.b64encode(file.read_bytes()).decode()


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
