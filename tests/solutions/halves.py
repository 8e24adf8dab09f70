"""A right solution of the exercises in the half-split layout, as Hugging Face writes it."""

import torch
import torch.nn.functional as F


def precompute_freqs_cis(dim, end, theta=10000.0):
    inv_freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    freqs = torch.outer(torch.arange(end, dtype=torch.float32), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos(), emb.sin()


def reshape_for_broadcast(freqs_cis, x):
    cos, sin = freqs_cis
    return cos[None, :, None, :], sin[None, :, None, :]


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_emb(xq, xk, freqs_cis):
    cos, sin = reshape_for_broadcast(freqs_cis, xq)
    return xq * cos + rotate_half(xq) * sin, xk * cos + rotate_half(xk) * sin


def causal_mask(start_pos, T):
    queries = torch.arange(start_pos, start_pos + T)[:, None]
    return torch.arange(start_pos + T)[None, :] <= queries


class KVCache:
    def __init__(self, args, batch_size=1):
        shape = (batch_size, args.n_kv_heads, args.max_seq_len, args.head_dim)
        self.layers = [(torch.empty(shape), torch.empty(shape)) for _ in range(args.n_layers)]

    @torch.no_grad()
    def update(self, layer, start_pos, xk, xv):
        k, v = self.layers[layer]
        end = start_pos + xk.size(2)
        assert end <= k.size(2), "full"
        k[:, :, start_pos:end].copy_(xk)
        v[:, :, start_pos:end].copy_(xv)
        return k.narrow(2, 0, end), v.narrow(2, 0, end)


def attention(xq, xk, xv, freqs_cis, mask):
    xq, xk = apply_rotary_emb(xq, xk, freqs_cis)
    q, k, v = (t.transpose(1, 2) for t in (xq, xk, xv))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
