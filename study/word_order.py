"""Why attention needs positions: without them, the output of a word does not depend on the word order."""

import cmath
from typing import Annotated, Any

import torch
from torch import Tensor

from model.attention import attention
from model.rope import apply_rotary_emb, precompute_freqs_cis

from .arrows import arc, arrow, plane
from .topic import BLUE, ORANGE, Report, Table, short

D = 8  # width of the one head
DISTANCE = 5  # positions from the key to the query in the picture
FREQUENCY = 1.0  # radians per position in the picture, that of pair 0
QUERY, KEY = complex(0.5, 0.8), complex(0.9, 0.2)  # one pair of "bites" and of "dog", the example of the walk


def attend(places: list[int], *, rotate: bool) -> tuple[Tensor, Tensor]:
    """Attention weights (T, T) and outputs (T, D) of words in the order ``places``, returned in their first order.

    Every word has one random vector, wherever it stands. There is no causal mask: each word sees all words.
    """
    T = len(places)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(T, D, generator=generator)  # (T, D)
    wq, wk, wv = torch.randn(3, D, D, generator=generator) / D**0.5  # (D, D) each
    x = vectors[places]  # (T, D)
    q, k, v = ((x @ w.T)[None, :, None] for w in (wq, wk, wv))  # (1, T, 1, D) each
    if rotate:
        q, k = apply_rotary_emb(q, k, precompute_freqs_cis(D, T))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (1, 1, T, D) each
    no_mask = torch.ones(T, T, dtype=torch.bool)
    identity = torch.eye(T)[None, None]  # with these values, the output is the weights
    original = torch.tensor(places).argsort()  # (T,)
    weights = attention(q, k, identity, no_mask)[0, 0]  # (T, T)
    output = attention(q, k, v, no_mask)[0, 0]  # (T, D)
    return weights[original][:, original], output[original]


def order(
    words: Annotated[tuple[str, ...], "at least three different words; the second one's attention is shown"] = (
        "dog",
        "bites",
        "man",
    ),
) -> Report:
    """Attention without positions ignores the word order; with RoPE it does not."""
    if not 3 <= len(set(words)) == len(words):
        raise ValueError(f"words are {' '.join(words)}: give at least three different words")
    forwards = list(range(len(words)))
    table = Table(
        f'Attention of the word "{words[1]}": its weight on each word, and the first two numbers of its output',
        ("positions", "sentence", *words, "output"),
    )
    for name, rotate in (("without", False), ("RoPE", True)):
        outputs = []
        for places in (forwards, forwards[::-1]):
            weights, output = attend(places, rotate=rotate)
            outputs.append(output)
            numbers = " ".join(f"{value:+.4f}" for value in output[1, :2].tolist())
            sentence = " ".join(words[i] for i in places)
            table.rows.append((name, sentence, *(f"{weight:.4f}" for weight in weights[1].tolist()), numbers))
        gap = float((outputs[0] - outputs[1]).abs().max())
        table.notes.append(f"{name}: the outputs of any word differ by at most {short(gap)} between the two sentences.")
    return Report([table, ideas()], draw)


def ideas() -> Table:
    """The score of the example's query and key at three places of a text, with three ideas of a position encoding."""

    def dot(a: complex, b: complex) -> float:
        return (a * b.conjugate()).real

    table = Table(
        f"Score of q = ({QUERY.real:g}, {QUERY.imag:g}) and k = ({KEY.real:g}, {KEY.imag:g}), {DISTANCE} apart",
        ("k at", "add the position", "add sines", "of which sines only", "rotate"),
    )
    for n in (0, 100, 1000):
        m = n + DISTANCE
        sines = cmath.rect(1, m * FREQUENCY), cmath.rect(1, n * FREQUENCY)
        scores = (
            dot(QUERY + complex(m, m), KEY + complex(n, n)),
            dot(QUERY + sines[0], KEY + sines[1]),
            dot(*sines),
            dot(QUERY * sines[0], KEY * sines[1]),  # multiplied by e^(jm) and e^(jn): rotated
        )
        table.rows.append((n, f"{scores[0]:.2f}", *(f"{score:.4f}" for score in scores[1:])))
    return table


def draw(figure: Any) -> None:
    """A query and a key at fixed distance, further and further on in the text: the angle between them is constant."""
    figure.set_size_inches(6, 4)
    for frame, axes in enumerate(figure.subplots(2, 3).flat):
        n = 2 * frame
        m = n + DISTANCE
        rotated_q, rotated_k = QUERY * cmath.rect(1, m * FREQUENCY), KEY * cmath.rect(1, n * FREQUENCY)
        plane(axes, 1.3)
        arrow(axes, rotated_q, BLUE, width=0.025)
        arrow(axes, rotated_k, ORANGE, width=0.025)
        arc(axes, cmath.phase(rotated_k), cmath.phase(rotated_k) + cmath.phase(rotated_q / rotated_k), 0.4, "black")
        for tip, name, color in ((rotated_q, "q", BLUE), (rotated_k, "k", ORANGE)):
            axes.text(1.15 * tip.real, 1.15 * tip.imag, name, color=color, ha="center", va="center", fontweight="bold")
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"k at {n}, q at {m}")
