"""Other position encodings, by name, for study only. LLaMA needs none of this.

    encodings.py    other rotation tables: no rotation, rotation of a part of the head, positions in a grid, learned
                    frequencies;
                    positions added to the embedding: sinusoids, or a learned vector for each position
    scores.py       attention scores that depend on positions: T5, ALiBi, Shaw, Transformer-XL, TUPE, DeBERTa
    rope_forms.py   the published forms of RoPE, including ChatGLM's

Each scheme replaces RoPE in one part of the network: ``table`` is the rotation table ``freqs_cis``, ``embedding`` the
input of the first block, ``bias`` a number added to each attention score, ``score`` another formula for the attention.
Except for ``table``, the rotation is switched off.
This file builds a network with one of the schemes, saves it, and loads it.
"""

import inspect
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from model.cli.files import read_json, write_json
from model.cli.settings import from_settings, from_table, suggest_name
from model.config import ModelArgs
from model.rope_scaling import RopeScaling, Type
from model.transformer import Transformer
from model.weights.layout import check_context
from model.weights.tensors import load_tensors, save_tensors

from .encodings import GridRope, LearnableRope, Learned, NoPositions, PartialRope, Sinusoidal
from .scores import T5, Alibi, Deberta, Shaw, TransformerXL, Tupe


class Scheme(NamedTuple):
    network: type[Transformer]
    changes: str  # the part of the network that it changes: table, embedding, bias or score
    any_length: bool = True  # whether weights trained at one length can run at another


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
SCALINGS = ("linear", "ntk", "yarn")  # RoPE's table, scaled for a context ``factor`` times as long
LARGEST_OPTION = 2**20  # more than the length of any text here
STUDY_WEIGHTS, STUDY_FILE = "weights.safetensors", "study.json"


def check_scheme(scheme: Any) -> str:
    """Return the name of a scheme. Raises ValueError if it is unknown."""
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}{suggest_name(str(scheme), SCHEMES)}")
    return scheme


def build_scheme(args: ModelArgs, scheme: str, factor: float = 1.0, **options: Any) -> Transformer:
    """Build a network with random weights and the position encoding ``scheme``.

    ``options`` are arguments of the scheme's class. ``factor`` is for linear, ntk and yarn only: ``args.max_seq_len``
    divided by the length that the weights were trained on. Raises ValueError for an unknown scheme or option, or for
    a value that the scheme does not support.
    """
    network = SCHEMES[check_scheme(scheme)].network
    option_names = list(inspect.signature(network).parameters)[1:]  # without args
    for name, value in options.items():
        if name not in option_names:
            hint = suggest_name(name, option_names) if option_names else ""
            raise ValueError(f"scheme {scheme} has no option {name!r}{hint}")
        if type(value) is not int:
            raise ValueError(f"{name} is {value!r}: give a whole number")
        if value > LARGEST_OPTION:
            raise ValueError(f"{name} is {value}: give at most {LARGEST_OPTION}")
    if scheme in SCALINGS:
        if not (isinstance(factor, int | float) and 1 <= factor <= args.max_seq_len):
            raise ValueError(f"factor is {factor!r}: give a number from 1 to max_seq_len {args.max_seq_len}")
        # At factor 1 all three are plain RoPE. Only yarn needs the trained length, because it treats each pair by its
        # number of turns within that length.
        original = {"original_max_seq_len": max(1, round(args.max_seq_len / factor))} if scheme == "yarn" else {}
        args = replace(args, rope_scaling=RopeScaling(cast(Type, scheme), float(factor), **original))
    elif factor != 1:
        raise ValueError(f"factor is {factor!r}: only {', '.join(SCALINGS)} take a factor, leave it out for {scheme}")
    elif scheme != "rope" and args.rope_scaling is not None:
        raise ValueError(f"rope_scaling is {args.rope_scaling.type}: scheme {scheme} does not use it, leave it out")
    return network(args, **options)


def save_study(model: Transformer, scheme: str, directory: Path, **options: Any) -> None:
    """Write the weights and study.json. ``options`` are those passed to ``build_scheme``.

    ``save_model`` cannot be used here, because its config.json has no place for a scheme's options. study.json is
    written last, so a directory that has it is complete.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_tensors(directory / STUDY_WEIGHTS, model.state_dict())
    write_json(directory / STUDY_FILE, {"scheme": scheme, "options": options, "args": asdict(model.args)})


class StudySettings(NamedTuple):
    """The content of study.json. ``options`` are arguments of the scheme's class."""

    scheme: str
    options: dict[str, Any]
    args: ModelArgs


def read_study(directory: Path) -> StudySettings:
    """Read study.json. Raises ValueError that names the file and the entry."""
    path = directory / STUDY_FILE
    content = read_json(path)
    try:
        for name, kind in (("scheme", str), ("options", dict), ("args", dict)):
            if not isinstance(content.get(name), kind):
                raise ValueError(f"{name} is {content.get(name)!r}: it must be a {kind.__name__}")
        scheme = check_scheme(content["scheme"])
        values = without_none(content["args"])
        if scheme in SCALINGS:  # build_scheme computes it from the scheme and its factor
            values.pop("rope_scaling", None)
        args = from_settings(ModelArgs, from_table(values, ModelArgs))
        return StudySettings(scheme, content["options"], args)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore the file") from None


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Remove entries that are None, because ``from_table`` expects tables as in TOML, which has no None."""
    remaining: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            remaining[name] = without_none(value)
        elif value is not None:
            remaining[name] = value
    return remaining


def build_study(settings: StudySettings, max_seq_len: int) -> Transformer:
    """Build a network with random weights as ``settings`` describe it, but with ``max_seq_len`` positions.

    Raises ValueError if the scheme does not support that length.
    """
    scheme, options, args = settings
    check_length(scheme, args.max_seq_len, max_seq_len)
    factor = options.get("factor", 1.0)
    if scheme == "yarn" and isinstance(factor, int | float):  # any other type is refused by build_scheme
        # The trained length stays the same, so the factor grows with max_seq_len.
        options = {**options, "factor": factor * max_seq_len / args.max_seq_len}
    return build_scheme(replace(args, max_seq_len=max_seq_len), scheme, **options)


def load_study(directory: Path, max_seq_len: int | None = None) -> Transformer:
    """Load what ``save_study`` wrote, with ``max_seq_len`` positions instead of the trained number if it is given.

    Raises ValueError for an unknown scheme, a length that the scheme does not support, or weights that do not match.
    """
    settings = read_study(directory)
    tensors = load_tensors(directory / STUDY_WEIGHTS)
    check_sizes(settings.args, tensors, directory / STUDY_FILE)
    max_seq_len = max_seq_len or settings.args.max_seq_len
    check_context(replace(settings.args, max_seq_len=max_seq_len), directory / STUDY_FILE)
    model = build_study(settings, max_seq_len)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise ValueError(f"{directory / STUDY_WEIGHTS} does not match {STUDY_FILE}: {first[0].strip()}") from None
    return model


def check_sizes(args: ModelArgs, tensors: dict[str, Tensor], study_file: Path) -> None:
    """Raise ValueError if the sizes in study.json are not those of the weights, before a network is allocated."""
    layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    expected = {
        "tok_embeddings.weight": (args.vocab_size, args.dim),
        "layers.0.attention.wq.weight": (args.n_heads * args.head_dim, args.dim),
        "layers.0.feed_forward.w1.weight": (args.hidden_dim, args.dim),
    }
    if layers != args.n_layers:
        raise ValueError(
            f"{study_file}: n_layers is {args.n_layers}, but the weights have {layers} layers; restore the file"
        )
    for name, shape in expected.items():
        stored_shape = tuple(tensors[name].shape) if name in tensors else None
        if stored_shape != shape:
            raise ValueError(
                f"{study_file}: args gives {name} the shape {shape}, but the stored tensor has {stored_shape}; "
                "restore the file"
            )


def check_length(scheme: str, trained_length: int, new_length: int) -> None:
    """Raise ValueError if weights trained at one length cannot run at the other."""
    if new_length != trained_length and not SCHEMES[scheme].any_length:
        raise ValueError(
            f"scheme {scheme} has one vector for each of {trained_length} positions: it cannot encode {new_length}"
        )
