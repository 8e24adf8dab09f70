"""The transformer block and the whole network (LLaMA, arXiv:2302.13971, section 2.2)."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, RMSNorm
from .cache import KVCache, LayerCache
from .config import ModelArgs
from .rope import precompute_freqs_cis


class FeedForward(nn.Module):
    """SwiGLU: silu(w1 x) is multiplied by w3 x, and w2 projects the product back to dim (arXiv:2002.05202)."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden_dim, bias=False)
        self.w2 = nn.Linear(args.hidden_dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """Pre-norm residual block: attention, then feed-forward."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention = Attention(args)
        self.feed_forward = FeedForward(args)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask, cache)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """Token ids in, logits out. ``forward`` selects the rotations of RoPE, and each attention layer applies them.

    The network keeps no state between calls: the caller passes the cache.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(TransformerBlock(args) for _ in range(args.n_layers))
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.output: nn.Module | None = None  # the output matrix; None if it is the embedding's
        if not args.tie_embeddings:
            self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        # Not a buffer: `.to(torch.bfloat16)` would cast it and drop the imaginary part.
        self.freqs_cis = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta, args.rope_scaling)
        self.init_weights()

    def init_weights(self) -> None:
        """Normal, std 0.02; wo and w2 get 0.02 / sqrt(2 L), because 2 L of them add to the residual stream (GPT-2)."""
        for name, weight in self.named_parameters():
            if weight.ndim == 1:
                nn.init.constant_(weight, 0 if name.endswith("bias") else 1)
            else:
                into_residual = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * self.args.n_layers) if into_residual else 0.02)

    def forward(
        self, tokens: Tensor, start_pos: int = 0, cache: KVCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """tokens (B, T) at positions start_pos .. start_pos + T - 1 -> logits (B, T, V).

        Without a cache the tokens are the whole sequence. ``mask`` is as in ``attention``; None is causal. Raises
        ValueError past the end of the context.
        """
        self.check_positions(tokens, start_pos, cache)
        T = tokens.shape[1]
        freqs_cis = self.freqs_cis[start_pos : start_pos + T].to(tokens.device)  # (T, D/2)

        h = self.embed(tokens, start_pos)  # (B, T, dim)
        caches = [None] * len(self.layers) if cache is None else cache.layers
        for layer, layer_cache in zip(self.layers, caches):
            h = layer(h, start_pos, freqs_cis, mask, layer_cache)
        h = self.norm(h)
        return F.linear(h, self.tok_embeddings.weight) if self.output is None else self.output(h)  # (B, T, V)

    def embed(self, tokens: Tensor, start_pos: int) -> Tensor:
        """tokens (B, T) -> (B, T, dim). RoPE adds no positions here; a subclass with another encoding may."""
        try:
            return self.tok_embeddings(tokens)
        except IndexError:  # PyTorch names no number
            size = self.args.vocab_size
            raise ValueError(f"tokens are {tokens.min()} to {tokens.max()}: the vocabulary has {size:,}") from None

    def check_positions(self, tokens: Tensor, start_pos: int, cache: KVCache | None) -> None:
        """Raise ValueError for arguments that would be cut to the context, or broadcast over rows, without an error."""
        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else f"a {type(tokens).__name__}"
            raise ValueError(f"tokens are {shape}: give a tensor (B, T), for example torch.tensor([[1, 2, 3]])")
        B, T = tokens.shape
        limit = self.args.max_seq_len if cache is None else cache.max_seq_len
        if start_pos < 0 or T < 1 or start_pos + T > limit:
            raise ValueError(
                f"start_pos {start_pos} with T = {T} new tokens: give at least one token, within the {limit} "
                f"positions of the {'network' if cache is None else 'cache'} (max_seq_len)"
            )
        if cache is None and start_pos:
            raise ValueError(f"start_pos is {start_pos} without a cache: pass the cache that holds the earlier tokens")
        if cache is not None and cache.batch_size != B:
            raise ValueError(f"the cache is for {cache.batch_size} rows, but tokens have {B}: make them equal")
