"""The network's tensors: their names and shapes, what Hugging Face calls them, and the two orders of a head's rows."""

from collections.abc import Mapping

from torch import Tensor

from ..config import ModelArgs

Shapes = dict[str, tuple[int, ...]]

_TOP = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}


def shapes(args: ModelArgs) -> Shapes:
    """The state dict of ``Transformer(args)``, without building it."""
    queries, keys = args.n_heads * args.head_dim, args.n_kv_heads * args.head_dim
    layer = {
        "attention.wq.weight": (queries, args.dim),
        "attention.wk.weight": (keys, args.dim),
        "attention.wv.weight": (keys, args.dim),
        "attention.wo.weight": (args.dim, queries),
        "feed_forward.w1.weight": (args.hidden_dim, args.dim),
        "feed_forward.w2.weight": (args.dim, args.hidden_dim),
        "feed_forward.w3.weight": (args.hidden_dim, args.dim),
        "attention_norm.weight": (args.dim,),
        "ffn_norm.weight": (args.dim,),
    }
    found: Shapes = {"tok_embeddings.weight": (args.vocab_size, args.dim)}
    found |= {f"layers.{i}.{name}": shape for i in range(args.n_layers) for name, shape in layer.items()}
    found["norm.weight"] = (args.dim,)
    if not args.tie_embeddings:
        found["output.weight"] = (args.vocab_size, args.dim)
    return found


def hugging_face_name(name: str) -> str:
    """Meta's name of a tensor -> Hugging Face's."""
    if name in _TOP:
        return _TOP[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER[rest]}"


def compare(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Raise ValueError that lists missing, surplus and wrongly shaped tensors; nothing is skipped or made up."""
    both = expected.keys() & found.keys()
    wrong = [f"{name} is {found[name]}, not {expected[name]}" for name in sorted(both) if found[name] != expected[name]]
    problems = {
        "missing": [f"{name} {expected[name]}" for name in sorted(expected.keys() - found.keys())],
        "not of this architecture": [f"{name} {found[name]}" for name in sorted(found.keys() - expected.keys())],
        "wrong shape": wrong,
    }
    if any(problems.values()):
        lists = "; ".join(f"{title}: {_some(names)}" for title, names in problems.items() if names)
        raise ValueError(f"{where} does not fit its configuration: {lists}")


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# Both layouts rotate the same D/2 planes of a head; they differ in which two numbers are a plane. Meta's, and this
# network's, takes neighbours (2i, 2i + 1), so that two reals are one complex number. Hugging Face's takes (i, i + D/2),
# so that "rotate half" is two slices. Who moves row 2i of a head's query and key projections to row i, and row 2i + 1
# to row i + D/2, gets the same numbers in the other places, and since queries and keys move alike, the same scores.
# Values and wo are never rotated and stay. Under GQA each key head is permuted by itself, as each query head is.


def to_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of wq or wk, (heads * D, dim), from Meta's pairs to Hugging Face's halves."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)  # (heads * D, dim)


def to_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """The way back."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)  # (heads * D, dim)


def is_rotated(name: str) -> bool:
    return name.endswith(("wq.weight", "wk.weight"))
