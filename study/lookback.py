"""How a head looks a fixed number of tokens back: W_q and W_k turn q and k of every pair apart by the right angle.

``lookback`` builds such a head by hand; ``angles`` finds the angles that a trained head has learned.
"""

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from model.config import Range
from model.rope import apply_rotary_emb, precompute_freqs_cis

from .clocks import frequencies
from .positions.rope_forms import block_diagonal
from .topic import BLUE, ORANGE, ModelPath, Report, Table, open_model, open_windows

D = 128  # width of the head that is built by hand
BASE = 10000.0
KEYS = 64  # keys that share the softmax weight in the second table
FAST_PAIRS = 8  # of the head that uses its fastest pairs only
LONG = 30.0  # the longer of the two lengths of q and k
DISTANCES = (0, 1, 4, 16, 32, 64, 128)  # of the scores of a trained head


def lookback(
    distance: Annotated[int, "how far the head looks back, in tokens", Range(0, 10_000)] = 5,
) -> Report:
    """A head that looks five tokens back: its W_q and W_k, and its score over distance."""
    freqs = frequencies(D, BASE)  # (D/2,)
    rotation = precompute_freqs_cis(D, distance + 1, BASE)[distance]  # (D/2,)
    wk = torch.eye(D)  # (D, D)
    wq = block_diagonal(rotation.conj()[None])[0] @ wk  # (D, D): pair i of q is at -distance theta_i from that of k
    longest = max(4 * distance, 16)
    scores = {"W_q = W_k": scores_by_distance(wk, wk, longest)}  # (longest + 1,) each
    scores[f"alpha_i = -{distance} theta_i"] = scores_by_distance(wq, wk, longest)
    near = range(max(distance - 2, 0), distance + 3)
    by_distance = Table(
        f"Score by distance, head of {D}, base {BASE:g}; 1 is the largest score that vectors of this norm have",
        ("distance", *scores),
        [(n, *(f"{curve[n]:.2f}" for curve in scores.values())) for n in sorted({0, 1, *near, 2 * distance, longest})],
    )
    return Report([by_distance, sharpness(freqs, distance)], lambda figure: draw(figure, scores, distance))


def sharpness(freqs: Tensor, distance: int) -> Table:
    """The softmax weight of the key ``distance`` back, for two lengths of q and k and for few fast pairs."""
    keys = max(KEYS, 2 * distance)
    table = Table(
        f"Softmax weight of the key {distance} back among {keys} keys at distances 0 to {keys - 1}",
        ("pairs used", "length of q and k", "its score / sqrt(D)", "its weight"),
    )
    usual = math.sqrt(2 * len(freqs))  # of a vector of ones
    for pairs, length in ((len(freqs), usual), (len(freqs), LONG), (min(FAST_PAIRS, len(freqs)), usual)):
        t = torch.arange(keys) - distance  # (keys,)
        cosines = torch.outer(t, freqs[:pairs]).cos().mean(1)  # (keys,): all pairs used have the same length
        scores = length**2 * cosines / usual  # usual is also sqrt(D)
        name = f"all {pairs}" if pairs == len(freqs) else f"the fastest {pairs}"
        table.rows.append((name, f"{length:.2f}", f"{scores[distance]:.2f}", f"{scores.softmax(0)[distance]:.2f}"))
    return table


def angles(
    model: ModelPath = None,
    layer: Annotated[int, "layer of the head", Range(0)] = 1,
    head: Annotated[int, "query head", Range(0)] = 0,
) -> Report:
    """The angles from the mean key to the mean query of a trained head, beside -theta_i."""
    network, tokenizer = open_model(model)
    args = network.args
    if layer >= args.n_layers or head >= args.n_heads:
        raise ValueError(f"layer {layer}, head {head}: the model has {args.n_layers} layers of {args.n_heads} heads")
    texts, name = open_windows(model, tokenizer, args.max_seq_len)
    attention: Any = network.layers[layer].attention
    inputs: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    with torch.no_grad():
        network(texts)
        xq, xk = (w(inputs[0]).unflatten(-1, (-1, args.head_dim)) for w in (attention.wq, attention.wk))
        projected = attention.q_norm(xq), attention.k_norm(xk)  # (windows, T, H or K, D), as they are rotated
    hook.remove()
    queries, keys = projected[0][:, :, head], projected[1][:, :, head * args.n_kv_heads // args.n_heads]
    q, k = (torch.view_as_complex(x.mean((0, 1)).view(-1, 2)) for x in (queries, keys))  # (D/2,) each
    lengths = [float(mean.norm() / x.norm(dim=-1).mean()) for mean, x in ((q, queries), (k, keys))]
    freqs = frequencies(args.head_dim, args.rope_theta, args.rope_scaling)  # (D/2,)
    alpha = (q * k.conj()).angle()  # (D/2,)
    table = Table(
        f"Layer {layer}, head {head}: mean query against mean key, before the rotation",
        ("pair i", "-theta_i", "alpha_i", "|q_i| |k_i|"),
        [(i, f"{-freqs[i]:.2f}", f"{alpha[i]:.2f}", f"{(q[i] * k[i]).abs():.2f}") for i in range(len(freqs))],
        [f"means over {len(texts)} texts of {args.max_seq_len} tokens from {name}."],
    )
    turns = args.max_seq_len * freqs / (2 * math.pi)  # (D/2,), in the context
    context = f"in {args.max_seq_len} tokens"
    parts = {f"a turn or more {context}": turns >= 1, f"less than a turn {context}": turns < 1, "all": turns >= 0}
    scores = Table(
        "Score of the mean query and the mean key by distance, / sqrt(D), and the part of fast and of slow pairs in it",
        ("pairs", *map(str, DISTANCES)),
        notes=[
            f"length of the mean query {lengths[0]:.2f}, of the mean key {lengths[1]:.2f}: 1 is that of an average one."
        ],
    )
    for part, used in parts.items():
        products = (q * k.conj())[used]  # of these pairs
        row = [
            (products * torch.polar(torch.ones(len(products)), (d * freqs[used]).float())).real.sum() for d in DISTANCES
        ]
        scores.rows.append((part, *(f"{float(score) / math.sqrt(args.head_dim):+.2f}" for score in row)))
    return Report([table, scores])


def scores_by_distance(wq: Tensor, wk: Tensor, longest: int) -> Tensor:
    """Scores of a query at ``longest`` with keys at distances 0 .. longest: (longest + 1,), relative to |q| |k|.

    Every token is the same vector x, so the scores depend on the positions alone.
    """
    x = torch.ones(D)
    xq, xk = ((w @ x).expand(1, longest + 1, 1, D) for w in (wq, wk))  # (1, longest + 1, 1, D) each
    xq, xk = apply_rotary_emb(xq, xk, precompute_freqs_cis(D, longest + 1, BASE))
    scores = xk[0, :, 0] @ xq[0, -1, 0]  # (longest + 1,): by position of the key
    return scores.flip(0) / D  # D is |q| |k|


def draw(figure: Any, scores: dict[str, Tensor], distance: int) -> None:
    axes = figure.subplots()
    for (name, curve), color, dash in zip(scores.items(), (ORANGE, BLUE), ("--", "-")):
        axes.plot(curve, color=color, linestyle=dash, marker="o", markersize=3, label=name)
    axes.axvline(distance, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="distance m - n, in tokens", ylabel="score, relative to |q| |k|")
    axes.set_title(f"the score is largest {distance} tokens back")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
