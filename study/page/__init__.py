"""`python -m study page`: one HTML file that contains a model and runs it in a browser, offline.

The sources of the page are beside this file: page.html, base.css, page.css and the modules in ``PAGE``. They are
joined into one file here, with the weights in base64 and other facts about the model as JSON. model.mjs is the network
of ``model/`` in JavaScript, with the same names in the same order.

    vocabulary.py  a tokenizer as JSON; refuses tokenizers for which the page would give other ids
"""

import base64
import hashlib
import html
import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import torch

from model.attention import Attention, attention
from model.cli.files import write_text
from model.config import ModelArgs
from model.text.tokenizer import Tokenizer
from model.training.config import read_run_settings
from model.training.estimate import count_parameters
from model.transformer import Transformer
from model.weights import Checkpoint
from model.weights.checkpoint import newest_run

from ..topic import Report, Table
from .vocabulary import vocabulary

STUDY = Path(__file__).parents[1]
# The modules of the script, joined in this order. A module comes after those that its top-level code uses.
PAGE = (
    "page/strings", "page/tokenizer", "page/model", "page/weights", "page/sampling", "page/draw", "page/rotation",
    "page/state", "page/tokens", "page/rotation_view", "page/score_view", "page/maps", "page/cache", "page/frame",
    "page/generation", "page/language", "page/controls", "page/page",
)  # fmt: skip
LARGEST_MODEL = 20_000_000  # parameters; larger models load and run too slowly
HALF_ABOVE = 1_000_000  # parameters; larger models are stored in float16
Steps = dict[str, list[tuple[str, str]]]  # for each language, the headings of the walk and their addresses
DOCS = Path(__file__).parents[2] / "docs"
DOCS_PAGES = {"en": ("rope.md", "rope-models.md"), "zh": ("rope.zh.md", "rope-models.zh.md")}


class Packed(NamedTuple):
    """A model as it is stored in a page."""

    checkpoint: Checkpoint
    args: ModelArgs
    facts: dict[str, Any]  # the architecture, the names and shapes of the weights, and their dtype
    weights: str  # in base64


def pack_checkpoint(model: Path | None) -> Packed:
    """Open a model, the newest run by default. Raises ValueError if it is too large, before reading its weights."""
    path = model or newest_run()
    checkpoint = Checkpoint(path)
    count = count_parameters(checkpoint.args).total
    if count > LARGEST_MODEL:
        raise ValueError(
            f"{path} has {count:,} parameters, but the page runs models of up to {LARGEST_MODEL:,}; "
            "train a smaller model (--dim, --n_layers, --vocab_size) and give its run"
        )
    network = checkpoint.model()
    facts, weights = pack_network(network, torch.float16 if count > HALF_ABOVE else torch.float32)
    return Packed(checkpoint, network.args, facts, base64.b64encode(weights).decode())


def page(
    model: Annotated[Path | None, "a trained model of up to 20M parameters (default: the newest run)"] = None,
    out: Annotated[Path, "the file to write"] = Path("page.html"),
    prompt: Annotated[str, "the first prompt of the page"] = "Return the number of",
) -> Report:
    """One HTML file that runs the model in a browser, and shows its rotations, attention scores and cache.

    Raises ValueError for a model that the page cannot run.
    """
    if not out.parent.is_dir() or out.is_dir():
        raise ValueError(f"out is {out}: name a file in a directory that exists")
    packed = pack_checkpoint(model)
    return write_page(packed, out, prompt, packed.checkpoint.tokenizer(), docs_steps(out))


def write_page(packed: Packed, out: Path, prompt: str, tokenizer: Tokenizer, steps: Steps) -> Report:
    """Write the page of a packed model. ``steps`` are its links to the steps of the walk."""
    path = packed.checkpoint.path
    facts = {
        "name": path.resolve().name,
        "prompt": prompt,
        "startText": read_run_settings(path).get("start_text", ""),  # replaces an empty prompt, as in generate.py
        **packed.facts,
        "tokenizer": vocabulary(tokenizer, prompt),
        "steps": steps,
        "lines": code_lines(Attention.forward, attention),
    }
    write_text(out, page_text(facts, packed.weights))
    count = count_parameters(packed.args).total
    table = Table(
        f"{out}: open it in a browser; it needs no server and no internet",
        ("part", "what", "bytes"),
        [
            ("weights", f"{count:,} parameters in {packed.facts['dtype']}", len(packed.weights) * 3 // 4),
            ("tokenizer", f"{tokenizer.vocab_size} tokens", len(json.dumps(facts["tokenizer"]))),
            ("whole file", "", out.stat().st_size),
        ],
    )
    return Report([table])


def page_text(facts: dict[str, Any], weights: str) -> str:
    """page.html with its placeholders filled in."""
    script = joined_modules(PAGE)
    style = read_source("page/base.css") + read_source("page/page.css")
    values = {
        "policy": security_policy(script, style),
        "title": html.escape(facts["name"]),
        "style": style,
        "facts": json.dumps(facts).replace("<", "\\u003c"),  # so that no text in it can end the element
        "weights": weights,
        "script": script,
    }
    return fill(read_source("page/page.html"), values)


def fill(template: str, values: dict[str, str]) -> str:
    """The template with each {{name}} replaced by its value."""
    return re.sub(r"\{\{(\w+)\}\}", lambda placeholder: values[placeholder[1]], template)


def pack_network(model: Transformer, dtype: torch.dtype) -> tuple[dict[str, Any], bytes]:
    """The arguments of the model with the names and shapes of its weights, and the weights as bytes.

    The dtype is float32 if a weight overflows the given one.
    """
    state = model.state_dict()
    flat = torch.cat([weight.float().flatten() for weight in state.values()])
    if flat.abs().max() <= torch.finfo(dtype).max:
        flat = flat.to(dtype)
    facts = {
        "args": architecture(model.args),
        "dtype": str(flat.dtype).removeprefix("torch."),
        "shapes": [(name, *torch.atleast_2d(weight).shape) for name, weight in state.items()],  # a norm is one row
    }
    return facts, flat.numpy().tobytes()


def read_source(file: str) -> str:
    return (STUDY / file).read_text(encoding="utf-8")


def joined_modules(modules: Iterable[str]) -> str:
    """The modules as one script, without imports and exports because all names are in one scope."""
    source = "\n".join(read_source(f"{module}.mjs") for module in modules)
    return '"use strict";\n' + re.sub(r"^import .*?;\n|^export (?=\w)", "", source, flags=re.MULTILINE | re.DOTALL)


def security_policy(script: str, style: str) -> str:
    """A Content-Security-Policy for this script and style sheet, and pictures inside the page."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


def architecture(args: ModelArgs) -> dict[str, Any]:
    """ModelArgs with its names in camel case."""
    values = {camel(field.name): getattr(args, field.name) for field in fields(args)}
    if args.rope_scaling is not None:
        values["ropeScaling"] = {camel(f.name): getattr(args.rope_scaling, f.name) for f in fields(args.rope_scaling)}
    return values


def code_lines(*functions: Callable[..., Any]) -> list[tuple[int, str]]:
    """Number and text of each line of code of the functions, dedented, without docstrings and blank lines."""
    lines = []
    for function in functions:
        source, start = inspect.getsourcelines(function)
        # Docstrings become blank lines, so that the numbers of later lines stay the same.
        code = textwrap.dedent("".join(source))
        code = re.sub(r'""".*?"""', lambda text: "\n" * text[0].count("\n"), code, flags=re.DOTALL)
        lines += [(start + i, line.rstrip()) for i, line in enumerate(code.splitlines()) if line.strip()]
    return lines


def docs_steps(out: Path) -> Steps:
    """Links to the steps of the walk in docs/, relative to ``out``; none if docs/ is not found."""

    def address(file: Path) -> str:
        try:
            return quote(Path(os.path.relpath(file, out.resolve().parent)).as_posix())
        except ValueError:  # on another Windows drive
            return file.as_uri()

    return walk_steps(address)


def walk_steps(address: Callable[[Path], str]) -> Steps:
    """The numbered headings of the walk, with links below the address of each file."""
    steps: Steps = {}
    for language, names in DOCS_PAGES.items():
        steps[language] = []
        for file in (DOCS / name for name in names):
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            headings = re.findall(r"^## (\d+\. .*)$", text, flags=re.MULTILINE)
            steps[language] += [(heading, f"{address(file)}#{anchor(heading)}") for heading in headings]
    return steps


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
