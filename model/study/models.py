"""The trained model a topic looks at: anything ``model.weights`` opens, or what ``compare --keep`` left."""

from pathlib import Path

from ..cli.files import read_json
from ..positions.files import NOTE, load_study
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from ..weights import load_model, load_tokenizer
from ..weights.checkpoint import newest_run


def open_model(path: Path | None) -> tuple[Transformer, Tokenizer, str]:
    """The model, its tokenizer, and its scheme. Raises ValueError for what is no model."""
    path = path or newest_run()
    if (path / NOTE).exists():
        return load_study(path).eval(), load_tokenizer(path), read_json(path / NOTE)["scheme"]
    return load_model(path).float().eval(), load_tokenizer(path), "rope"
