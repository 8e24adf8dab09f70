"""Meta's params.json <-> ModelArgs."""

from typing import Any

from ..config import DERIVED, ModelArgs
from ..rope_scaling import RopeScaling

PARAMS = {"dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier", "norm_eps"}
PARAMS |= {"rope_theta", "use_scaled_rope", "rope_scaling_factor", "max_seq_len", "max_batch_size"}
SCALED_ORIGINAL = 8192  # positions


def hidden_dim(dim: int, multiple_of: int, ffn_dim_multiplier: float | None) -> int:
    """Meta's rule: two thirds of 4 dim, times the multiplier, rounded up."""
    hidden = int(2 * (4 * dim) / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * -(-hidden // multiple_of)


def args_from(params: dict[str, Any]) -> ModelArgs:
    """params.json -> ModelArgs. Unknown fields are refused, since they may matter."""
    strange, missing = params.keys() - PARAMS, {"dim", "n_layers", "n_heads", "multiple_of", "norm_eps"} - params.keys()
    if strange or missing:
        raise ValueError(
            f"unknown: {sorted(strange)}, missing: {sorted(missing)}: not the parameters of a Llama 1 to 3"
        )
    theta, scaling = params.get("rope_theta", 10000.0), None
    if params.get("use_scaled_rope"):
        # The factor is not in the file: Llama 3.2, told by its sizes, was published with 32, Llama 3.1 and 3.3 with 8.
        factor = 32.0 if (params["dim"], params["n_layers"]) in ((2048, 16), (3072, 28)) else 8.0
        factor = params.get("rope_scaling_factor") or factor
        scaling = RopeScaling("llama3", factor, SCALED_ORIGINAL, 1.0, 4.0)
    return ModelArgs(
        dim=params["dim"],
        n_layers=params["n_layers"],
        n_heads=params["n_heads"],
        n_kv_heads=params.get("n_kv_heads", DERIVED),
        hidden_dim=hidden_dim(params["dim"], params["multiple_of"], params.get("ffn_dim_multiplier")),
        vocab_size=params["vocab_size"],
        max_seq_len=params.get("max_seq_len", context(theta, scaling)),
        norm_eps=params["norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
    )


def context(theta: float, scaling: RopeScaling | None) -> int:
    """What the format leaves unsaid: that of Llama 3.1 with scaling, of Llama 3, and the safe one of Llama 1."""
    if scaling is not None:
        return 131072
    return 8192 if theta >= 5e5 else 2048


def params_from(args: ModelArgs) -> dict[str, Any]:
    """ModelArgs -> params.json. Raises ValueError on what it has no words for."""
    if args.n_heads * args.head_dim != args.dim:
        raise ValueError(f"head_dim is {args.head_dim}, not dim / n_heads: Meta's format cannot say so")
    scaling = args.rope_scaling
    if scaling is not None and scaling != RopeScaling("llama3", scaling.factor, SCALED_ORIGINAL, 1.0, 4.0):
        raise ValueError(f"rope_scaling is {scaling}: Meta's format knows only that of Llama 3.1")
    plain = hidden_dim(args.dim, 1, None)
    multiplier = None if plain <= args.hidden_dim else args.hidden_dim / plain
    fits = [m for m in (256, 128, 64, 32, args.hidden_dim) if hidden_dim(args.dim, m, multiplier) == args.hidden_dim]
    params: dict[str, Any] = {
        "dim": args.dim,
        "n_layers": args.n_layers,
        "n_heads": args.n_heads,
        "n_kv_heads": args.n_kv_heads,
        "vocab_size": args.vocab_size,
        "multiple_of": fits[0],
        "norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
    }
    if multiplier is not None:
        params["ffn_dim_multiplier"] = multiplier
    if scaling is not None:
        params |= {"use_scaled_rope": True, "rope_scaling_factor": scaling.factor}
    return params
