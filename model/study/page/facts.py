"""What the page needs to know of the model, as JSON: sizes, pieces, lines of code, steps of the docs."""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from ...config import ModelArgs
from ...text.tokenizer import SPACE, SentencePieceTokenizer, Tokenizer

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {"en": "rope.md", "zh": "rope.zh.md"}


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


def architecture(args: ModelArgs) -> dict[str, Any]:
    """ModelArgs under JavaScript's spelling of its names."""
    values = {camel(field.name): getattr(args, field.name) for field in fields(args)}
    if args.rope_scaling is not None:
        values["ropeScaling"] = {camel(f.name): getattr(args.rope_scaling, f.name) for f in fields(args.rope_scaling)}
    return values


def vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """Pieces, their kinds and the scores of the merged ones.

    Raises ValueError for a tokenizer whose text the page would not encode to the same ids.
    """
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise ValueError(f"{tokenizer.path} is no SentencePiece model: name the tokenizer.model with --tokenizer")
    model = SentencePieceProcessor(model_file=str(tokenizer.path))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    kinds = "".join(kind(model, i) for i in range(len(pieces)))
    known = {piece for piece, letter in zip(pieces, kinds) if letter == "n"}
    merged = {piece for piece in known if len(piece) > 1}
    apart = [p for p in merged if not any(p[:i] in known and p[i:] in known for i in range(1, len(p)))]
    scores = [model.get_score(i) for i in range(len(pieces))]
    if apart or "x" in kinds or not all(scores[i].is_integer() for i, p in enumerate(pieces) if p in merged):
        raise ValueError(f"{tokenizer.path} is neither a BPE nor a character model: the page encodes only these")
    probe = " ﬁ  Ａ½\t\u3000b "  # what normalizers change
    wanted = (SPACE if tokenizer.adds_space else "") + probe.replace(" ", SPACE)
    if model.normalize(probe) != wanted:
        raise ValueError(f"{tokenizer.path} normalizes its text: the page encodes text as it is; train an identity one")
    return {
        "kind": "BPE" if merged else "characters",
        "pieces": pieces,
        "kinds": kinds,
        "scores": [int(score) if piece in merged else 0 for piece, score in zip(pieces, scores)],
        "bosId": tokenizer.bos_id,
        "eosIds": list(tokenizer.eos_ids),
        "addsSpace": tokenizer.adds_space,
        "spellsSign": not tokenizer.adds_space and kinds.count("b") == 256,
    }


def kind(model: SentencePieceProcessor, token: int) -> str:
    """u unknown, c control, b byte, x unused, n normal."""
    tests = {"u": model.is_unknown, "c": model.is_control, "b": model.is_byte, "x": model.is_unused}
    return next((letter for letter, test in tests.items() if test(token)), "n")


def lines(*functions: Callable[..., Any]) -> list[tuple[int, str]]:
    """Number and text of each line of code of the functions, without docstrings and blank lines."""
    found = []
    for function in functions:
        source, start = inspect.getsourcelines(function)
        body = re.sub(r'""".*?"""', lambda text: "\n" * text[0].count("\n"), "".join(source), flags=re.DOTALL)
        found += [(start + i, line.rstrip()) for i, line in enumerate(body.splitlines()) if line.strip()]
    return found


def steps(out: Path) -> dict[str, list[tuple[str, str]]]:
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
