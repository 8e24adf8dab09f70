"""Other position encodings, by name, for study only. LLaMA needs none of this.

    encodings.py    other rotation tables: no rotation, rotation of a part of the head, positions in a grid, learned
                    frequencies;
                    positions added to the embedding: sinusoids, or a learned vector for each position
    scores.py       attention scores that depend on positions: T5, ALiBi, Shaw, Transformer-XL, TUPE, DeBERTa
    rope_forms.py   the published forms of RoPE, including ChatGLM's

Each scheme replaces RoPE in one part of the network: ``table`` is the rotation table ``freqs_cis``, ``embedding`` the
input of the first block, ``bias`` a number added to each attention score, ``score`` another formula for the attention.
Except for ``table``, the rotation is switched off.
A scheme is a subclass of the network whose constructor takes ``args`` only, and whose options are attributes of the
class: to change one, derive a class. So ``train.py --network study.positions:Alibi`` trains one, and ``save_model`` and
``load_model`` know them all.
"""

from dataclasses import replace
from typing import NamedTuple, cast

from model.cli.settings import suggest_name
from model.config import ModelArgs, RopeScaling, ScalingType
from model.transformer import Transformer

from .encodings import GridRope, LearnableRope, Learned, NoPositions, PartialRope, Sinusoidal
from .scores import T5, Alibi, Deberta, Shaw, TransformerXL, Tupe


class Scheme(NamedTuple):
    network: type[Transformer]
    changes: str  # the part of the network that it changes: table, embedding, bias or score
    any_length: bool = True  # whether weights trained at one length can run at another


SCHEMES = {
    "rope": Scheme(Transformer, "table"),
    "linear": Scheme(Transformer, "table"),  # this one and the next two: rope, until the context is extended
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
SCALINGS = ("linear", "ntk", "yarn")  # RoPE's table, scaled for a longer context


def check_scheme(scheme: str) -> str:
    """Return the name of a scheme. Raises ValueError if it is unknown."""
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}{suggest_name(scheme, SCHEMES)}")
    return scheme


def build_scheme(args: ModelArgs, scheme: str) -> Transformer:
    """Build a network with random weights and the position encoding ``scheme``. Raises ValueError if it is unknown."""
    return SCHEMES[check_scheme(scheme)].network(args)


def scheme_of(model: Transformer) -> str:
    """The scheme of a network; ``rope`` if RoPE is scaled."""
    return next(name for name, scheme in SCHEMES.items() if scheme.network is type(model))


def with_more_positions(model: Transformer, times: int) -> Transformer:
    """The same weights and position encoding, with ``times`` as many positions. Raises ValueError if that cannot be."""
    scheme, trained = scheme_of(model), model.args.max_seq_len
    if times != 1 and not SCHEMES[scheme].any_length:
        raise ValueError(
            f"scheme {scheme} has one vector for each of {trained} positions: it cannot encode {times * trained}"
        )
    return with_weights_of(model, type(model)(replace(model.args, max_seq_len=times * trained)))


def scaled(model: Transformer, scaling: str, times: int) -> Transformer:
    """The same weights with ``times`` as many positions, and RoPE scaled to that length by linear, ntk or yarn."""
    trained = model.args.max_seq_len
    scaling_args = RopeScaling(cast(ScalingType, scaling), float(times), original_max_seq_len=trained)
    longer = replace(model.args, max_seq_len=times * trained, rope_scaling=scaling_args)
    return with_weights_of(model, Transformer(longer))


def with_weights_of(model: Transformer, longer: Transformer) -> Transformer:
    longer.load_state_dict(model.state_dict())
    return longer.eval()
