"""A right solution of the exercises with complex numbers, as LLaMA writes it."""

import math

import torch


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(end).float()
    return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))


def reshape_for_broadcast(freqs_cis, x):
    if freqs_cis.shape != (x.shape[1], x.shape[-1]):
        raise ValueError("shapes")
    return freqs_cis.view(1, x.shape[1], 1, x.shape[-1])


def apply_rotary_emb(xq, xk, freqs_cis):
    def one(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * reshape_for_broadcast(freqs_cis, pairs)).flatten(-2).type_as(x)

    return one(xq), one(xk)


def to_neighbours(wq, wk, n_heads, n_kv_heads):
    def one(w, heads):
        return w.view(heads, 2, -1, w.shape[1]).transpose(1, 2).reshape(w.shape)

    return one(wq, n_heads), one(wk, n_kv_heads)


def to_halves(wq, wk, n_heads, n_kv_heads):
    def one(w, heads):
        return w.view(heads, -1, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)

    return one(wq, n_heads), one(wk, n_kv_heads)


def causal_mask(start_pos, T):
    return torch.ones(T, start_pos + T, dtype=torch.bool).tril(diagonal=start_pos)


class KVCache:
    def __init__(self, batch_size, n_kv_heads, max_seq_len, head_dim):
        self.max_seq_len = max_seq_len
        self.keys = torch.zeros(batch_size, n_kv_heads, max_seq_len, head_dim)
        self.values = torch.zeros(batch_size, n_kv_heads, max_seq_len, head_dim)

    def update(self, start_pos, xk, xv):
        end = start_pos + xk.shape[2]
        if end > self.max_seq_len:
            raise ValueError("full")
        self.keys[:, :, start_pos:end] = xk.detach()
        self.values[:, :, start_pos:end] = xv.detach()
        return self.keys[:, :, :end], self.values[:, :, :end]


def attention(xq, xk, xv, freqs_cis, mask):
    xq, xk = apply_rotary_emb(xq, xk, freqs_cis)
    G = xq.shape[2] // xk.shape[2]
    xk = xk.repeat_interleave(G, dim=2)
    xv = xv.repeat_interleave(G, dim=2)
    q, k, v = (t.transpose(1, 2) for t in (xq, xk, xv))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)
