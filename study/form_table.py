"""The forms of RoPE in study/positions/rope_forms.py: how exact they are, and which channels are a pair."""

from typing import Annotated

import torch

from .positions.rope_forms import RopeForm, chatglm_family, chatglm_ids, half_pairs, neighbour_pairs, plain_forms
from .topic import Report, Table

HEAD_DIM, LENGTH, HEADS = 64, 512, 12
PROMPT = 128  # tokens of ChatGLM's prompt, at the beginning of LENGTH


def forms(
    chatglm: Annotated[bool, "measure the rotations of ChatGLM instead, which have other angles"] = False,
) -> Report:
    """The published forms of RoPE, side by side: deviation and permutation."""
    x = torch.randn(1, LENGTH, HEADS, HEAD_DIM, generator=torch.manual_seed(0))  # (1, T, H, D)
    table = Table(
        f"RoPE on {LENGTH} positions, {HEADS} heads of {HEAD_DIM}, float32",
        ("form", "off by", "to LLaMA's order"),
        notes=[
            "off by: largest deviation from the same rotation in float64.",
            "to LLaMA's order: x[..., order] puts pairs where LLaMA has them; shown: order's first four and last.",
        ],
    )
    for form in chatglm_family(HEAD_DIM, LENGTH, PROMPT) if chatglm else plain_forms(HEAD_DIM, LENGTH):
        deviation = float((form.rotate(x).double() - form.in_float64(x)).abs().max())
        table.rows.append((form.name, f"{deviation:.1e}", channel_order(form)))
    return Report([table, id_table()] if chatglm else [table])


def id_table() -> Table:
    """The two position ids of ChatGLM-6B around the end of the prompt."""
    places = [0, 1, *range(PROMPT - 2, PROMPT + 3), LENGTH - 1]
    ids = chatglm_ids(LENGTH, PROMPT)  # (2, T)
    return Table(
        f"ChatGLM-6B's two ids of each token: a prompt of {PROMPT} tokens, the last one the mask, "
        "then generated tokens",
        ("token", *map(str, places)),
        [("first id", *ids[0, places].tolist()), ("second id", *ids[1, places].tolist())],
    )


def channel_order(form: RopeForm) -> str:
    if torch.equal(form.pairs, neighbour_pairs(HEAD_DIM)):
        return "none needed"
    permutation = form.pairs.flatten().tolist()
    kind = "halves" if torch.equal(form.pairs, half_pairs(HEAD_DIM)) else "halves of each half"
    return f"{kind}: {', '.join(map(str, permutation[:4]))} .. {permutation[-1]}"
