"""`study.py page`: one HTML file with the reader's model inside, which a browser runs from disk, offline.

The page's sources lie beside this file: page.html, page.css and the modules of ``PAGE`` and ``WORKER``. They are put
into one file here, with what the page needs to know of the model as JSON; model.mjs is the network once more, to be
read beside ``model/``.

    vocabulary.py     what the page needs of a tokenizer to give the same ids; refuses what it could not encode alike
    browser_regex.py  the expressions by which a tokenizer.json splits words, in JavaScript's spelling
"""

import base64
import hashlib
import html
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from ...attention import Attention, attention
from ...cli.files import write_text
from ...config import ModelArgs
from ...decoding.endless import SINKS
from ...training.estimate import count_parameters
from ...transformer import Transformer
from ...weights import open_checkpoint
from ...weights.checkpoint import newest_run
from ..topic import Report, Table
from .vocabulary import vocabulary


@dataclass(frozen=True)
class Page:
    """One HTML file with the model inside: type, step, and watch it rotate, score and fill its cache."""

    model: Annotated[Path | None, "a trained model of up to 20M parameters (default: the newest run)"] = None
    out: Annotated[Path, "the file to write"] = Path("page.html")
    prompt: Annotated[str, "text that the page begins with"] = "Return the number of"
    tokenizer: Annotated[
        Path | None, "tokenizer.model, tokenizer.json or tokenizer.bin (default: beside the model)"
    ] = None


WEB = Path(__file__).parent
WORKER = ("model", "sampling", "worker")  # the modules of each script, in the order in which they need each other
PAGE = (
    "strings",
    "tokenizer",
    "tokenizer_json",
    "model",
    "sampling",
    "draw",
    "state",
    "tokens",
    "rotation",
    "score",
    "maps",
    "cache",
    "whatif",
    "frame",
    "overview",
    "text",
    "words",
    "controls",
    "page",
)
LARGEST_MODEL = 20_000_000  # parameters: above it, the file and each token take too long
HALF_ABOVE = 1_000_000  # parameters: above it, weights are written in float16
DOCS = Path(__file__).parents[3] / "docs"
PAGES = {"en": "rope.md", "zh": "rope.zh.md"}


def run(options: Page) -> Report:
    """Write the page. Raises ValueError, before weights are read, for a model or tokenizer that it cannot run."""
    path = options.model or newest_run()
    checkpoint = open_checkpoint(path)
    args = checkpoint.args
    count = count_parameters(args).total
    if count > LARGEST_MODEL:
        raise ValueError(
            f"{path} has {count:,} parameters: the page runs up to {LARGEST_MODEL:,}; train a smaller model "
            "(--dim, --n_layers, --vocab_size) and name its run"
        )
    if not options.out.parent.is_dir() or options.out.is_dir():
        raise ValueError(f"out is {options.out}: name a file in a directory that exists")
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    pieces = vocabulary(tokenizer)  # refuses what the page could not encode
    net = packed_network(checkpoint.model(), stored(count))
    weights = net.pop("weights")
    facts = {"name": path.resolve().name, "prompt": options.prompt, **net, "tokenizer": pieces, "sinks": SINKS}
    facts |= {"steps": docs_steps(options.out), "lines": code_lines(Attention.forward, attention)}
    write_text(options.out, page_text(facts, weights))
    table = Table(
        f"{options.out}: open it in a browser; it needs no server and no network",
        ("part", "what", "bytes"),
        [
            ("weights", f"{count:,} parameters in {net['dtype']}", 3 * len(weights) // 4 - weights[-2:].count("=")),
            ("tokenizer", f"{tokenizer.vocab_size} tokens", len(json.dumps(pieces))),
            ("whole file", "", options.out.stat().st_size),
        ],
    )
    return Report([table])


def stored(count: int) -> torch.dtype:
    return torch.float16 if count > HALF_ABOVE else torch.float32


def page_text(facts: dict[str, Any], weights: str) -> str:
    """The whole page as text: page.html with its blanks filled."""
    main = joined_modules(PAGE)
    style = read_source("page.css")
    blanks = {
        "policy": policy(main, style),
        "title": html.escape(facts["name"]),
        "style": style,
        "facts": json.dumps(facts).replace("<", "\\u003c"),  # so that no text in it can end the element
        "weights": weights,
        "worker": joined_modules(WORKER),
        "script": main,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: blanks[blank[1]], read_source("page.html"))


def packed_network(model: Transformer, dtype: torch.dtype) -> dict[str, Any]:
    """Sizes, names and shapes of the weights, and all of them in base64; in float32 where float16 has no room."""
    state = model.state_dict()
    flat = torch.cat([weight.float().flatten() for weight in state.values()])
    if flat.abs().max() <= torch.finfo(dtype).max:
        flat = flat.to(dtype)
    return {
        "args": architecture(model.args),
        "dtype": str(flat.dtype).removeprefix("torch."),
        "shapes": [(name, *rows_and_columns(weight)) for name, weight in state.items()],
        "weights": base64.b64encode(flat.numpy().tobytes()).decode(),
    }


def rows_and_columns(weight: Tensor) -> tuple[int, int]:
    """A norm's weight (dim,) is one row."""
    return (1, weight.shape[0]) if weight.ndim == 1 else (weight.shape[0], weight.shape[1])


def read_source(file: str) -> str:
    return (WEB / file).read_text(encoding="utf-8")


def joined_modules(modules: Iterable[str]) -> str:
    """The modules as one script: imports go, for all names are in one scope then, and so does the word export."""
    whole = "\n".join(read_source(f"{module}.mjs") for module in modules)
    return '"use strict";\n' + re.sub(r"^import .*?;\n|^export (?=\w)", "", whole, flags=re.MULTILINE | re.DOTALL)


def policy(main: str, style: str) -> str:
    """Nothing from outside: this script, this style and a worker made of the page's own text."""
    return (
        f"default-src 'none'; script-src 'sha256-{digest(main)}'; style-src 'sha256-{digest(style)}'; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


def architecture(args: ModelArgs) -> dict[str, Any]:
    """ModelArgs under JavaScript's spelling of its names."""
    values = {camel(field.name): getattr(args, field.name) for field in fields(args)}
    if args.rope_scaling is not None:
        values["ropeScaling"] = {camel(f.name): getattr(args.rope_scaling, f.name) for f in fields(args.rope_scaling)}
    return values


def code_lines(*functions: Callable[..., Any]) -> list[tuple[int, str]]:
    """Number and text of each line of code of the functions, without docstrings and blank lines."""
    found = []
    for function in functions:
        source, start = inspect.getsourcelines(function)
        body = re.sub(r'""".*?"""', lambda text: "\n" * text[0].count("\n"), "".join(source), flags=re.DOTALL)
        found += [(start + i, line.rstrip()) for i, line in enumerate(body.splitlines()) if line.strip()]
    return found


def docs_steps(out: Path) -> dict[str, list[tuple[str, str]]]:
    """For each language, heading and address of every step of docs/rope.md as seen from the page; none without docs."""
    found: dict[str, list[tuple[str, str]]] = {}
    for language, page in PAGES.items():
        file = DOCS / page
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        address = Path(os.path.relpath(file, out.resolve().parent)).as_posix()
        headings = re.findall(r"^## (\d+\. .*)$", text, flags=re.MULTILINE)
        found[language] = [(heading, f"{address}#{anchor(heading)}") for heading in headings]
    return found


def anchor(heading: str) -> str:
    """How GitHub names a heading in an address."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
