"""A right solution of the exercises in the half-split layout, as Hugging Face writes it; it converts no weights."""

import torch


def precompute_freqs_cis(dim, end, theta=10000.0):
    inv_freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    freqs = torch.outer(torch.arange(end, dtype=torch.float32), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos(), emb.sin()


def reshape_for_broadcast(freqs_cis, x):
    if freqs_cis.shape != (x.shape[1], x.shape[3]):
        raise ValueError(f"a table of {freqs_cis.shape} for x of {x.shape}")
    return freqs_cis[None, :, None, :]


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_emb(xq, xk, freqs_cis):
    cos, sin = (reshape_for_broadcast(part, xq) for part in freqs_cis)
    q, k = xq * cos + rotate_half(xq) * sin, xk * cos + rotate_half(xk) * sin
    return q.type_as(xq), k.type_as(xk)


def causal_mask(start_pos, T):
    queries = torch.arange(start_pos, start_pos + T)[:, None]
    return torch.arange(start_pos + T)[None, :] <= queries


class KVCache:
    def __init__(self, batch, heads, slots, width):
        self.cached = torch.empty(batch, heads, slots, width), torch.empty(batch, heads, slots, width)

    @torch.no_grad()
    def update(self, start, k_new, v_new):
        k, v = self.cached
        end = start + k_new.size(2)
        if not end <= k.size(2):
            raise ValueError("full")
        k[:, :, start:end].copy_(k_new)
        v[:, :, start:end].copy_(v_new)
        return k.narrow(2, 0, end), v.narrow(2, 0, end)


def attention(xq, xk, xv, freqs_cis, mask):
    xq, xk = apply_rotary_emb(xq, xk, freqs_cis)
    q, k, v = (t.permute(0, 2, 1, 3) for t in (xq, xk, xv))
    groups = q.size(1) // k.size(1)
    k, v = (t[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for t in (k, v))
    scores = torch.where(mask, q @ k.mT * q.size(-1) ** -0.5, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ v).permute(0, 2, 1, 3)
