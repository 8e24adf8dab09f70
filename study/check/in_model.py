"""The reader's functions in a trained model: its loss, the text that it writes, and its speed, beside ours."""

import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import Attention
from model.cache import KVCache, LayerCache
from model.generation import decode
from model.transformer import Transformer

from ..topic import Table, losses_of, open_model, open_windows
from ..what_if import in_halves
from . import kv_cache, rope
from .compare import UNSUITABLE, View
from .judge import ROTATE, TABLE, Solution, cache_of
from .reader import Raised
from .rope import HALVES

WINDOWS, LENGTH, NEW_TOKENS = 4, 128, 60
TURNS = 3  # generations that are timed, of both models in turn, after one that is not


class ReadersAttention(Attention):
    """The attention layer with the reader's functions in place of ours. Theirs for attention has no cache."""

    functions: dict[str, View]

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        B, T, _ = x.shape
        xq, xk, xv = (w(x).view(B, T, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        xq, xk = self.q_norm(xq), self.k_norm(xk)
        mask = self.functions["causal_mask"](start_pos, T)
        if "attention" in self.functions and cache is None:
            return self.wo(self.functions["attention"](xq, xk, xv, freqs_cis, mask).reshape(B, T, -1))
        xq, xk = self.functions["apply_rotary_emb"](xq, xk, freqs_cis)
        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
        if cache is not None:
            xk, xv = cache.update(start_pos, xk, xv)  # (B, K, S, D)
            # A wrong cache or mask may have other keys: more are all seen, fewer are the last.
            more = xk.shape[2] - mask.shape[-1]
            mask = F.pad(mask, (min(more, 0), max(more, 0)), value=True)
        return self.wo(self.attend(xq, xk, xv, mask).transpose(1, 2).flatten(2))


def in_model(solution: Solution, path: Path, prompt: str) -> Table:
    """The model at ``path`` as it is, and with the reader's functions that ran; what it raises with them is a note."""
    model, tokenizer = open_model(path)
    start_ids = tokenizer.encode(prompt)
    texts, source = open_windows(path, tokenizer, min(LENGTH, model.args.max_seq_len) + 1, WINDOWS)
    count = min(NEW_TOKENS, model.args.max_seq_len - len(start_ids))
    used = [name for name in solution.calls if name not in ("to_neighbours", "to_halves")]
    notes = [
        f"yours: {', '.join(used)}. The other functions are the model's.",
        f"loss: nats per token, on {texts[:, 1:].numel():,} tokens of {source}.",
    ]
    table = Table("In a model", ("", "loss", "tokens/s", "text"), [], notes)

    def cache_for(network: Transformer) -> KVCache:
        cache = KVCache(network.args)
        if network is not model and "KVCache" in solution.calls:
            cache.layers = cache_of(solution.calls["KVCache"], network.args, 1).layers
        return cache

    def write(network: Transformer) -> tuple[list[int], float]:
        """The new tokens, and how many a second."""
        cache, start = cache_for(network), time.perf_counter()
        new = [int(token) for token in decode(network, torch.tensor([start_ids]), count, likeliest, cache)]
        return new, len(new) / (time.perf_counter() - start)

    def loss(network: Transformer) -> float:
        with torch.no_grad():
            return float(losses_of(network, texts[:, :-1], texts[:, 1:], rows=WINDOWS).mean())

    networks, losses = {"the model": model}, {"the model": loss(model)}
    write(model)  # not timed, because the first text of a process takes longer
    try:
        changed = with_functions(model, solution)
        losses["with your functions"] = loss(changed)
        write(changed)
        networks["with your functions"] = changed
    except (Raised, *UNSUITABLE) as error:
        notes.append(f"the model does not run with your functions: {' '.join(str(error).split())}")
    turns = [{name: write(network) for name, network in networks.items()} for _ in range(TURNS)]
    for name in networks:
        speed = statistics.median(turn[name][1] for turn in turns)
        text = repr(tokenizer.decode(start_ids + turns[0][name][0]))[:120]
        table.rows.append((name, f"{losses[name]:.3f}", f"{speed:.0f}", text))
    return table


def with_functions(network: Transformer, solution: Solution) -> Transformer:
    """The network with these functions; the rows of W_q and W_k are in the order of their layout."""
    args = network.args
    functions: dict[str, View] = {ROTATE: rope.right(solution.layout), "causal_mask": kv_cache.right_mask}
    functions |= solution.views
    changed = Transformer(args)
    for layer in changed.layers:
        attention = ReadersAttention(args)
        attention.functions, layer.attention = functions, attention
    changed.load_state_dict((in_halves(network) if solution.layout == HALVES else network).state_dict())
    changed.freqs_cis = network.freqs_cis
    if TABLE in functions and args.rope_scaling is None:
        table = functions[TABLE](args.head_dim, args.max_seq_len, args.rope_theta)
        if not torch.is_tensor(table) or table.shape != network.freqs_cis.shape:
            raise Raised(f"{TABLE} returns no table of {tuple(network.freqs_cis.shape)}")
        changed.freqs_cis = table.to(torch.complex64)
    return changed.eval()


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row, (B, V) -> (B, 1)."""
    return logits.argmax(-1, keepdim=True)
