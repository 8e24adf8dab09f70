"""For study only: the other position encodings, by name. LLaMA needs none of this.

    encodings.py    another rotation table: none, part of the head, a grid, learned frequencies;
                    what is added to the embedding: sinusoids, a learned vector for each position
    scores.py       scores computed from positions: T5, ALiBi, Shaw, Transformer-XL, TUPE, DeBERTa
    rope_forms.py   RoPE itself, in every form in which it is written, ChatGLM's among them

Each scheme changes one place of the network: the table ``freqs_cis``, the input of the first block (``embedding``), or
``Attention.attend`` (``bias`` where a number is added to each score, ``score`` for all else).
Here a network is built with one of them, saved, and loaded again.
"""

import inspect
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..cli.files import read_json, write_json
from ..cli.settings import from_settings, from_table, suggest_name
from ..config import ModelArgs
from ..rope_scaling import RopeScaling, Type
from ..transformer import Transformer
from ..weights.layout import check_context
from ..weights.tensors import load_tensors, save_tensors
from .encodings import GridRope, LearnableRope, Learned, NoPositions, PartialRope, Sinusoidal
from .scores import T5, Alibi, Deberta, Shaw, TransformerXL, Tupe


class Scheme(NamedTuple):
    """The network of a scheme, the slot it fills, and whether weights trained at one length can run at another."""

    network: type[Transformer]
    slot: str
    any_length: bool = True


SCHEMES = {
    "rope": Scheme(Transformer, "table"),
    "linear": Scheme(Transformer, "table"),
    "ntk": Scheme(Transformer, "table"),
    "yarn": Scheme(Transformer, "table"),
    "partial": Scheme(PartialRope, "table"),
    "2d": Scheme(GridRope, "table"),
    "learnable": Scheme(LearnableRope, "table"),
    "none": Scheme(NoPositions, "table"),
    "sinusoidal": Scheme(Sinusoidal, "embedding"),
    "learned": Scheme(Learned, "embedding", any_length=False),
    "t5": Scheme(T5, "bias"),
    "alibi": Scheme(Alibi, "bias"),
    "shaw": Scheme(Shaw, "score"),
    "transformer_xl": Scheme(TransformerXL, "score"),
    "tupe": Scheme(Tupe, "score", any_length=False),
    "deberta": Scheme(Deberta, "score"),
}
SCALINGS = ("linear", "ntk", "yarn")  # RoPE's own table, for a context ``factor`` times as long
LARGEST_OPTION = 2**20  # of an option: more distances than any text here has
STUDY_WEIGHTS, NOTE = "weights.safetensors", "study.json"


def check_scheme(scheme: Any) -> str:
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}{suggest_name(str(scheme), SCHEMES)}")
    return scheme


def build_scheme(args: ModelArgs, scheme: str, factor: float = 1.0, **options: Any) -> Transformer:
    """A network with random weights whose position encoding is ``scheme``; ``options`` are the scheme's own.

    ``factor`` is for linear, ntk and yarn: how many times longer ``args.max_seq_len`` is than what the weights were
    trained on. Raises ValueError for a scheme or an option that is not there, and for sizes that it cannot have.
    """
    network = SCHEMES[check_scheme(scheme)].network
    known = list(inspect.signature(network).parameters)[1:]
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"scheme {scheme} has no option {name!r}{suggest_name(name, known) if known else ''}")
        if type(value) is not int:
            raise ValueError(f"{name} is {value!r}: give a whole number")
        if value > LARGEST_OPTION:
            raise ValueError(f"{name} is {value}: give at most {LARGEST_OPTION}")
    if scheme in SCALINGS:
        if not (isinstance(factor, int | float) and 1 <= factor <= args.max_seq_len):
            raise ValueError(f"factor is {factor!r}: give a number from 1 to max_seq_len {args.max_seq_len}")
        # At factor 1 all three are plain RoPE; yarn alone asks for the trained length, from which it counts rotations.
        original = {"original_max_seq_len": max(1, round(args.max_seq_len / factor))} if scheme == "yarn" else {}
        args = replace(args, rope_scaling=RopeScaling(cast(Type, scheme), float(factor), **original))
    elif factor != 1:
        raise ValueError(f"factor is {factor!r}: it is for {', '.join(SCALINGS)}, leave it out for {scheme}")
    elif scheme != "rope" and args.rope_scaling is not None:
        raise ValueError(f"rope_scaling is {args.rope_scaling.type}: scheme {scheme} has no such table, leave it out")
    return network(args, **options)


def save_study(model: Transformer, scheme: str, directory: Path, **options: Any) -> None:
    """Write what ``load_study`` needs. ``options`` are those that ``build_scheme`` was given.

    A Llama config cannot express a scheme, so it is in a file of its own, which is written last. ``save_model`` cannot
    write it either: it rebuilds a network from ModelArgs alone, and a scheme may have ``options``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_tensors(directory / STUDY_WEIGHTS, model.state_dict())
    write_json(directory / NOTE, {"scheme": scheme, "options": options, "args": asdict(model.args)})


def read_note(directory: Path) -> dict[str, Any]:
    """``scheme``, its ``options``, and ``args`` as ModelArgs. Raises ValueError that names the file and the entry."""
    path = directory / NOTE
    note = read_json(path)
    try:
        for name, kind in (("scheme", str), ("options", dict), ("args", dict)):
            if not isinstance(note.get(name), kind):
                raise ValueError(f"{name} is {note.get(name)!r}: a {kind.__name__} is needed")
        scheme = check_scheme(note["scheme"])
        values = without_none(note["args"])
        if scheme in SCALINGS:  # made anew from the scheme and its factor
            values.pop("rope_scaling", None)
        args = from_settings(ModelArgs, from_table(values, ModelArgs))
        return {"scheme": scheme, "options": note["options"], "args": args}
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore the file") from None


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """A table as TOML would have it: what has no value is left out."""
    found = {name: without_none(value) if isinstance(value, dict) else value for name, value in table.items()}
    return {name: value for name, value in found.items() if value is not None}


def load_study(directory: Path, max_seq_len: int | None = None) -> Transformer:
    """The model again, with room for ``max_seq_len`` positions if its scheme can have more than it was trained on.

    Raises ValueError for a scheme that is not there, a length that it cannot reach, or weights of another network.
    """
    note = read_note(directory)
    args, tensors = note["args"], load_tensors(directory / STUDY_WEIGHTS)
    check_sizes(args, tensors, directory / NOTE)
    check_length(note["scheme"], args.max_seq_len, max_seq_len or args.max_seq_len)
    args = replace(args, max_seq_len=max_seq_len or args.max_seq_len)
    check_context(args, directory / NOTE)
    model = build_scheme(args, note["scheme"], **note["options"])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise ValueError(f"{directory / STUDY_WEIGHTS} is not what {NOTE} says: {first[0].strip()}") from None
    return model


def check_sizes(args: ModelArgs, tensors: dict[str, Any], note: Path) -> None:
    """Raises ValueError, before a network is built, where the note's sizes are not those of the weights."""
    layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    expected = {
        "tok_embeddings.weight": (args.vocab_size, args.dim),
        "layers.0.attention.wq.weight": (args.n_heads * args.head_dim, args.dim),
        "layers.0.feed_forward.w1.weight": (args.hidden_dim, args.dim),
    }
    if layers != args.n_layers:
        raise ValueError(f"{note}: n_layers is {args.n_layers}, but the weights have {layers}; restore the file")
    for name, shape in expected.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ValueError(f"{note}: args say {name} is {shape}, but the weights have {found}; restore the file")


def check_length(scheme: str, trained: int, wanted: int) -> None:
    """Raises ValueError where weights for ``trained`` positions cannot serve ``wanted``."""
    if wanted != trained and not SCHEMES[scheme].any_length:
        raise ValueError(f"scheme {scheme} has one vector for each of {trained} positions: it cannot encode {wanted}")
