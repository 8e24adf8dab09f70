"""Tensor names and shapes, Hugging Face's names for them, the two orders of a head's rows, and checks."""

import dataclasses
from collections.abc import Mapping

from torch import Tensor, nn

from ..cli import enumerated
from ..config import ModelArgs

LARGEST_TABLE = 2**29  # bytes of rotations, for a million positions of 128-wide heads; Llama 3.1's table has 2**26
MOST_LAYERS = 10_000  # Llama 3.1 405B has 126
Shapes = dict[str, tuple[int, ...]]

# This network's name of a tensor, which is Meta's: Hugging Face's name, and its shape. {} is the number of the layer.
# The order is that of llama2.c's files.
TENSORS: dict[str, tuple[str, ...]] = {
    "tok_embeddings.weight": ("model.embed_tokens.weight", "vocab_size", "dim"),
    "layers.{}.attention_norm.weight": ("model.layers.{}.input_layernorm.weight", "dim"),
    "layers.{}.attention.wq.weight": ("model.layers.{}.self_attn.q_proj.weight", "queries", "dim"),
    "layers.{}.attention.wk.weight": ("model.layers.{}.self_attn.k_proj.weight", "keys", "dim"),
    "layers.{}.attention.wv.weight": ("model.layers.{}.self_attn.v_proj.weight", "keys", "dim"),
    "layers.{}.attention.wo.weight": ("model.layers.{}.self_attn.o_proj.weight", "dim", "queries"),
    "layers.{}.attention.wq.bias": ("model.layers.{}.self_attn.q_proj.bias", "queries"),
    "layers.{}.attention.wk.bias": ("model.layers.{}.self_attn.k_proj.bias", "keys"),
    "layers.{}.attention.wv.bias": ("model.layers.{}.self_attn.v_proj.bias", "keys"),
    "layers.{}.attention.q_norm.weight": ("model.layers.{}.self_attn.q_norm.weight", "head_dim"),
    "layers.{}.attention.k_norm.weight": ("model.layers.{}.self_attn.k_norm.weight", "head_dim"),
    "layers.{}.ffn_norm.weight": ("model.layers.{}.post_attention_layernorm.weight", "dim"),
    "layers.{}.feed_forward.w1.weight": ("model.layers.{}.mlp.gate_proj.weight", "hidden_dim", "dim"),
    "layers.{}.feed_forward.w2.weight": ("model.layers.{}.mlp.down_proj.weight", "dim", "hidden_dim"),
    "layers.{}.feed_forward.w3.weight": ("model.layers.{}.mlp.up_proj.weight", "hidden_dim", "dim"),
    "norm.weight": ("model.norm.weight", "dim"),
    "output.weight": ("lm_head.weight", "vocab_size", "dim"),
}


def tensor_shapes(args: ModelArgs) -> Shapes:
    """The names and shapes in the state dict of ``Transformer(args)``, without building it."""
    sizes = vars(args) | {"queries": args.n_heads * args.head_dim, "keys": args.n_kv_heads * args.head_dim}
    shapes = {}
    for name, (_, *axes) in TENSORS.items():
        if (name.endswith("bias") and not args.qkv_bias) or ("head_dim" in axes and not args.qk_norm):
            continue
        for layer in range(args.n_layers if "{}" in name else 1):
            shapes[name.format(layer)] = tuple(sizes[axis] for axis in axes)
    if args.tie_embeddings:
        del shapes["output.weight"]
    return shapes


def shapes_of(network: nn.Module) -> Shapes:
    """The names and shapes in the state dict of a network."""
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def check_sizes(args: ModelArgs) -> None:
    """Raise ValueError for numbers in a small file that would fill the memory, before anything is allocated.

    Each layer adds names of tensors. The number of positions is in no tensor's shape, so no other check would find it.
    """
    if args.n_layers > MOST_LAYERS:
        raise ValueError(f"{args.n_layers} layers are too many: a file with up to {MOST_LAYERS} can be opened")
    table_size = 4 * args.max_seq_len * args.head_dim  # bytes: complex64 (max_seq_len, D/2)
    if table_size > LARGEST_TABLE:
        raise ValueError(f"a context of {args.max_seq_len} takes a RoPE table of {table_size >> 20} MB: lower it")


def check_read_back(args: ModelArgs, read_back: ModelArgs, format_name: str) -> None:
    """Raise ValueError if ``args``, written and read back, have changed.

    So a field that a format cannot express, or that is added to ``ModelArgs`` later, is never dropped silently.
    """
    for field in dataclasses.fields(ModelArgs):
        before, after = getattr(args, field.name), getattr(read_back, field.name)
        if before != after:
            raise ValueError(
                f"{field.name} is {before}: {format_name} cannot express this, it would be read as {after}"
            )


def hugging_face_name(name: str) -> str:
    """Hugging Face's name of a tensor, from this network's, which is Meta's."""
    first, layer, *rest = name.split(".", 2)
    template = ".".join((first, "{}", *rest)) if first == "layers" else name
    return TENSORS[template][0].format(layer)


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Raise ValueError that lists missing, surplus and wrongly shaped tensors."""
    problems = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            problems.append(f"{name} {expected[name]} is missing")
        elif name not in expected:
            problems.append(f"{name} {found[name]} is not of this architecture")
        elif found[name] != expected[name]:
            problems.append(f"{name} is {found[name]}, not {expected[name]}")
    if problems:
        raise ValueError(f"{where} does not match its configuration: {enumerated(problems)}")


# Both layouts rotate D/2 planes of a head. They differ in which two rows span a plane. Meta's layout, which this
# network has, takes neighbours (2i, 2i + 1), so that two real numbers are one complex number. Hugging Face's takes (i,
# i + D/2), so that "rotate half" is two slices. If row 2i of a head in wq and wk is moved to row i, and row 2i + 1 to
# row i + D/2, queries and keys have the same numbers in other places. Both are permuted alike, so the scores do not
# change. What is added to these numbers (biases of wq and wk) or multiplied by them (weights of q_norm and k_norm) is
# permuted in the same way. wv and wo stay as they are, because values are not rotated. With grouped-query attention
# each key head is permuted separately.


def to_halves(tensor: Tensor, head_dim: int) -> Tensor:
    """Permute rows from Meta's pairs to Hugging Face's halves: (heads * D, ...) -> the same shape."""
    return tensor.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)  # (heads * D, ...)


def to_pairs(tensor: Tensor, head_dim: int) -> Tensor:
    """Permute rows from Hugging Face's halves to Meta's pairs: (heads * D, ...) -> the same shape."""
    return tensor.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)  # (heads * D, ...)


def is_rotated(name: str) -> bool:
    """Whether a tensor, by this network's name, has a row for each number of a query or key."""
    return name.rsplit(".", 2)[-2] in ("wq", "wk", "q_norm", "k_norm")
