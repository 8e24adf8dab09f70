"""For study only: the other ways to tell a transformer where a token is. LLaMA needs none of this.

    form.py             what a way of writing RoPE is: pairs and angles
    forms.py            RoPE itself, in every way it gets written
    chatglm.py          and in the ways of the ChatGLM models
    tables.py           what else fits the rotation table: nothing, half a head, a grid, learned frequencies
    embeddings.py       added to the embedding: sinusoids, a learned vector for each position
    biases.py           added to the scores: T5's buckets, ALiBi's slopes
    scores.py           the slot of the last four: scores that see positions
    shaw.py  transformer_xl.py  tupe.py  deberta.py
    files.py            on disk, since a Llama config has no words for them

Each scheme fills one slot that the network has anyway: the table ``freqs_cis``, ``embed``, ``mask``, or ``attend``.
"""

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..cli.settings import nearest
from ..config import ModelArgs
from ..rope_scaling import RopeScaling, Type

if TYPE_CHECKING:
    from ..transformer import Transformer


class Scheme(NamedTuple):
    """Where a scheme lives, the slot it fills, and whether weights trained at one length can run at another."""

    module: str
    name: str
    slot: str
    any_length: bool = True


SCHEMES = {
    "rope": Scheme("..transformer", "Transformer", "table"),
    "linear": Scheme("..transformer", "Transformer", "table"),
    "ntk": Scheme("..transformer", "Transformer", "table"),
    "yarn": Scheme("..transformer", "Transformer", "table"),
    "partial": Scheme(".tables", "PartialRope", "table"),
    "2d": Scheme(".tables", "GridRope", "table"),
    "learnable": Scheme(".tables", "LearnableRope", "table"),
    "none": Scheme(".tables", "NoPositions", "table"),
    "sinusoidal": Scheme(".embeddings", "Sinusoidal", "embedding"),
    "learned": Scheme(".embeddings", "Learned", "embedding", any_length=False),
    "t5": Scheme(".biases", "T5", "bias"),
    "alibi": Scheme(".biases", "Alibi", "bias"),
    "shaw": Scheme(".shaw", "Shaw", "score"),
    "transformer_xl": Scheme(".transformer_xl", "TransformerXL", "score"),
    "tupe": Scheme(".tupe", "Tupe", "score", any_length=False),
    "deberta": Scheme(".deberta", "Deberta", "score"),
}
SCALINGS = ("linear", "ntk", "yarn")  # RoPE's own table, for a context ``factor`` times as long


def build_model(args: ModelArgs, scheme: str, factor: float = 1.0, **options: Any) -> "Transformer":
    """A network with random weights that knows positions by ``scheme``; ``options`` are the scheme's own.

    ``factor`` is for linear, ntk and yarn: how many times longer ``args.max_seq_len`` is than what the weights were
    trained on. Raises ValueError for a scheme that is not there, and for sizes that it cannot have.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}{nearest(scheme, SCHEMES)}")
    if scheme in SCALINGS:
        # At factor 1 all three are plain RoPE; yarn asks for the trained length, from which it counts turns.
        original = max(1, round(args.max_seq_len / factor))
        args = replace(args, rope_scaling=RopeScaling(cast(Type, scheme), factor, original))
    elif scheme != "rope" and args.rope_scaling is not None:
        raise ValueError(f"rope_scaling is {args.rope_scaling.type}: scheme {scheme} has no such table, leave it out")
    where = SCHEMES[scheme]
    cls = getattr(importlib.import_module(where.module, __name__), where.name)
    return cls(args, **options)
