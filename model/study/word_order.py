"""The problem that positions solve: attention alone gives a word the same output whatever the order of the others."""

import cmath
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ..attention import attention
from ..rope import apply_rotary_emb, precompute_freqs_cis
from .arrows import arc, arrow, plane
from .topic import BLUE, ORANGE, Report, Table, check_options, short


@dataclass(frozen=True)
class Order:
    """Without positions a word attends alike in "dog bites man" and "man bites dog"; with RoPE it does not."""

    words: Annotated[tuple[str, ...], "a sentence, which is also read backwards"] = ("dog", "bites", "man")
    seed: Annotated[int, "of the random vectors and matrices"] = 0


D = 8  # width of the one head
FRAMES = 5
APART = 2  # positions from the key to the query in the picture
TURN = 0.5  # radians a position in the picture


def attend(words: tuple[str, ...], order: list[int], seed: int, rotate: bool) -> tuple[Tensor, Tensor]:
    """Weights (T, T) and outputs (T, D) of the words in this order, both put back into the order of ``words``.

    Every word has one random vector, whichever place it has. Each word sees all words: there is no causal mask.
    """
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(words), D, generator=generator)  # (T, D)
    wq, wk, wv = torch.randn(3, D, D, generator=generator) / D**0.5  # (D, D) each
    x = vectors[order]  # (T, D)
    q, k, v = ((x @ w.T)[None, :, None] for w in (wq, wk, wv))  # (1, T, 1, D) each
    if rotate:
        q, k = apply_rotary_emb(q, k, precompute_freqs_cis(D, len(words)))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (1, 1, T, D) each
    everything = torch.ones(len(words), len(words), dtype=torch.bool)
    identity = torch.eye(len(words))[None, None]  # as values, it makes the output the weights themselves
    back = torch.tensor(order).argsort()  # (T,)
    weights = attention(q, k, identity, everything)[0, 0]  # (T, T)
    return weights[back][:, back], attention(q, k, v, everything)[0, 0][back]


def run(options: Order) -> Report:
    words = options.words
    check_options(options, 0, "seed")
    if len(words) < 2 or len(set(words)) < len(words):
        raise ValueError(f"words is {' '.join(words)!r}: give at least two, each of them once")
    middle = len(words) // 2
    table = Table(
        f'Attention of the word "{words[middle]}": its weight on each word, and the first two numbers of its output',
        ("positions", "sentence", *words, "output"),
    )
    forth = list(range(len(words)))
    for name, rotate in (("none", False), ("RoPE", True)):
        outputs = []
        for order in (forth, forth[::-1]):
            weights, output = attend(words, order, options.seed, rotate)
            outputs.append(output)
            numbers = " ".join(f"{value:+.4f}" for value in output[middle, :2].tolist())
            sentence = " ".join(words[i] for i in order)
            table.rows.append((name, sentence, *(f"{weight:.4f}" for weight in weights[middle].tolist()), numbers))
        gap = float((outputs[0] - outputs[1]).abs().max())
        table.notes.append(f"{name}: the outputs of any word differ by at most {short(gap)} between the two sentences.")
    return Report([table], draw)


def draw(figure: Any) -> None:
    """Two arrows that turn together while a text moves along: the angle between them stays."""
    figure.set_size_inches(9, 2.6)
    q, k = cmath.rect(1, 1.0), cmath.rect(0.8, -0.6)
    for n, axes in enumerate(figure.subplots(1, FRAMES)):
        turned_q, turned_k = q * cmath.rect(1, (n + APART) * TURN), k * cmath.rect(1, n * TURN)
        plane(axes, 1.3)
        arrow(axes, turned_q, BLUE, width=0.025)
        arrow(axes, turned_k, ORANGE, width=0.025)
        start, end = cmath.phase(k) + n * TURN, cmath.phase(q) + (n + APART) * TURN
        arc(axes, start, end, 0.4, "black")
        for tip, name, color in ((turned_q, "q", BLUE), (turned_k, "k", ORANGE)):
            axes.text(1.15 * tip.real, 1.15 * tip.imag, name, color=color, ha="center", va="center", fontweight="bold")
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"key at {n}, query at {n + APART}", fontsize=9)
    figure.suptitle(
        "the same two tokens, further and further on in the text: the angle between them stays", fontsize=11
    )
