"""What every format is compared with: the tensors' names and shapes, what Hugging Face calls them, the two orders of a
head's rows, and the architecture as it reads back.
"""

import dataclasses
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ..config import ModelArgs

LARGEST_TABLE = 2**29  # bytes: a million positions of 128-wide heads; that of Llama 3.1 takes 2**26
WEIGHT_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # by safetensors' names
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


def tensor_shapes(args: ModelArgs) -> Shapes:
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


def check_layers(args: ModelArgs, tensors: int, where: object) -> None:
    """Refuse a configuration with more layers than there are tensors, before anything of its size is built."""
    if args.n_layers > tensors:
        raise ValueError(f"{where} does not fit its configuration: {args.n_layers} layers, but {tensors} tensors")


def check_context(args: ModelArgs, where: object) -> None:
    """Refuse a context whose rotations alone would fill the memory: no tensor's shape depends on its length."""
    table = 4 * args.max_seq_len * args.head_dim  # bytes: complex64 (max_seq_len, D/2)
    if table > LARGEST_TABLE:
        size = f"{table >> 20} MB"
        raise ValueError(f"{where} has a context of {args.max_seq_len}, whose rotations take {size}: write a lower one")


def check_read_back(args: ModelArgs, again: ModelArgs, form: str, lost: Collection[str] = ()) -> None:
    """Refuse to write ``args`` where reading gives ``again``; the fields in ``lost`` are known to differ.

    So a field that a format cannot express, or that is added to ``ModelArgs`` later, is never dropped silently.
    """
    for field in dataclasses.fields(ModelArgs):
        before, after = getattr(args, field.name), getattr(again, field.name)
        if before != after and field.name not in lost:
            raise ValueError(f"{field.name} is {before}: {form} cannot say so, it would be read as {after}")


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
