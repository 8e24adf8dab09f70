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
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch

from model.attention import Attention, attention
from model.cli.files import write_text
from model.config import ModelArgs
from model.text.dataset import start_text
from model.text.tokenizer import Tokenizer
from model.training.estimate import count_parameters
from model.transformer import Transformer
from model.weights import Checkpoint

from ..topic import Report, Table, open_rope_checkpoint
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
# An arrow that is turned, as the pages' icon
ICON = (
    "data:image/svg+xml;base64,"
    + base64.b64encode(
        b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
        b'<circle cx="16" cy="16" r="14" fill="#fff" stroke="#1b5fae"'
        b' stroke-width="3"/><path d="M16 16L24 8" stroke="#1b5fae" stroke-width="4" stroke-linecap="round"/></svg>'
    ).decode()
)
Steps = dict[str, list[tuple[str, str]]]  # for each language, the headings of the walk and their addresses


class Packed(NamedTuple):
    """A model as it is stored in a page."""

    checkpoint: Checkpoint
    args: ModelArgs
    facts: dict[str, Any]  # the architecture, the names and shapes of the weights, and their dtype
    weights: str  # in base64


def pack_checkpoint(model: Path | None) -> Packed:
    """Open a model, the newest run by default. Raises ValueError if it is too large, before reading its weights."""
    checkpoint = open_rope_checkpoint(model)
    count = count_parameters(checkpoint.args).total
    if count > LARGEST_MODEL:
        raise ValueError(
            f"{checkpoint.path} has {count:,} parameters, but the page runs models of up to {LARGEST_MODEL:,}; "
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
    """One HTML file that runs a model in a browser, with its rotations, scores and cache.

    Raises ValueError for a model that the page cannot run.
    """
    if not out.parent.is_dir() or out.is_dir():
        raise ValueError(f"out is {out}: name a file in a directory that exists")
    packed = pack_checkpoint(model)
    write_page(packed, out, prompt, packed.checkpoint.tokenizer(), {"en": [], "zh": []})
    count = count_parameters(packed.args).total
    table = Table(
        f"{out}: open it in a browser; it needs no server and no internet",
        ("parameters", "dtype", "bytes"),
        [(f"{count:,}", packed.facts["dtype"], out.stat().st_size)],
    )
    return Report([table])


def write_page(packed: Packed, out: Path, prompt: str, tokenizer: Tokenizer, steps: Steps, meta: str = "") -> None:
    """Write the page of a packed model. ``steps`` are its links to the steps of the walk, if that is beside it."""
    path = packed.checkpoint.path
    facts = {
        "name": path.resolve().name,
        "prompt": prompt,
        "startText": start_text(path),  # replaces an empty prompt, as in generate.py
        **packed.facts,
        "tokenizer": vocabulary(tokenizer, prompt),
        "steps": steps,
        "lines": code_lines(Attention.forward, attention),
    }
    write_text(out, page_text(facts, packed.weights, meta))


def page_text(facts: dict[str, Any], weights: str, meta: str = "") -> str:
    """page.html with its placeholders filled in."""
    script = joined_modules(PAGE)
    style = read_source("page/base.css") + read_source("page/page.css")
    values = {
        "policy": security_policy(script, style),
        "title": html.escape(facts["name"]),
        "icon": ICON,
        "meta": meta,
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
        "args": in_camel_case(asdict(model.args)),
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


def in_camel_case(values: dict[str, Any]) -> dict[str, Any]:
    """The values under names in camel case, also those of the dictionaries among them."""
    renamed = {}
    for name, value in values.items():
        camel = re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)
        renamed[camel] = in_camel_case(value) if isinstance(value, dict) else value
    return renamed


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
