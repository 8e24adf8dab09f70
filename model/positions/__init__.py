"""For study only: the other position encodings. LLaMA needs none of this.

    schemes.py      all of them by name: build a network with one of them, save it, load it again
    encodings.py    another rotation table: none, part of the head, a grid, learned frequencies;
                    what is added to the embedding: sinusoids, a learned vector for each position;
                    and what is added to the scores: T5's buckets, ALiBi's slopes
    scores.py       scores computed from positions: Shaw, Transformer-XL, TUPE, DeBERTa
    rope_forms.py   RoPE itself, in every form in which it is written, ChatGLM's among them

Each scheme fills one slot that the network has anyway: the table ``freqs_cis``, ``embed``, ``mask``, or ``attend``.
"""

from .schemes import NOTE, SCALINGS, SCHEMES, build_model, check_length, check_scheme, load_study, read_note, save_study

__all__ = [
    "NOTE",
    "SCALINGS",
    "SCHEMES",
    "build_model",
    "check_length",
    "check_scheme",
    "load_study",
    "read_note",
    "save_study",
]
