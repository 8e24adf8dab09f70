"""The reader's functions in a trained model: its loss, the text that it writes, and its speed, beside ours."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.attention import Attention
from model.cache import KVCache, LayerCache
from model.config import ModelArgs
from model.transformer import Transformer
from model.weights.layout import is_rotated, to_halves

from ..topic import Table, losses_of, open_model, open_windows
from .calls import Caller, parameters
from .judge import PARAMETERS, Conventions, takes_args, version
from .probes import COMPLEX, Raised, read_table, write_table
from .reader import reader_of

WINDOWS, LENGTH, NEW_TOKENS = 4, 128, 60


class Mine(NamedTuple):
    """The functions of the reader, and the form and layout in which they rotate."""

    calls: dict[str, Caller]
    form: str
    layout: str


class ReadersAttention(Attention):
    """The attention layer with the reader's functions in place of ours."""

    def __init__(self, args: ModelArgs, mine: Mine) -> None:
        super().__init__(args)
        self.mine = mine

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        calls = self.mine.calls
        B, T, _ = x.shape
        xq, xk, xv = (w(x).view(B, T, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        xq, xk = self.q_norm(xq), self.k_norm(xk)
        table = write_table(self.mine.form, freqs_cis)
        if "causal_mask" in calls:
            mask = calls["causal_mask"](start_pos, T)
        attention = calls.get("attention")
        if attention is not None and "freqs_cis" in attention.names and cache is None:  # it rotates, too
            causal = torch.ones(T, T, dtype=torch.bool).tril() if mask is None else mask
            return self.wo(attention(xq, xk, xv, table, causal).reshape(B, T, -1))

        rotate = calls.get("apply_rotary_emb")
        ours = version("apply_rotary_emb", (), self.mine.layout)
        xq, xk = rotate(xq, xk, table) if rotate else ours(xq, xk, freqs_cis)
        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))  # (B, H or K, T, D)
        if cache is not None:
            xk, xv = cache.update(start_pos, xk, xv)  # (B, K, S, D)
        if attention is not None and "freqs_cis" not in attention.names and mask is not None:
            out = attention(xq, xk, xv, mask)
        else:
            out = self.attend(xq, xk, xv, mask)
        return self.wo(out.transpose(1, 2).flatten(2))


class Caches(NamedTuple):
    """Caches of the reader, one for each layer, in place of a ``KVCache``."""

    layers: Sequence[Any]
    max_seq_len: int
    batch_size: int = 1


def in_model(
    files: Sequence[Path], names: Sequence[str], conventions: Conventions, path: Path | None, prompt: str
) -> Table:
    """The model at ``path`` as it is, and with the functions of these names in the files.

    Raises ValueError if one of them raises an exception or returns something of another shape.
    """
    network, tokenizer = open_model(path)
    functions = reader_of(files).functions()
    calls = {
        name: Caller(function, ("xq", "xk", "xv", "mask"), file)
        if name == "attention" and len(parameters(function)) == 4
        else Caller(function, PARAMETERS[name], file)
        for name, (function, file) in functions.items()
        if name in names
    }
    mine = Mine(calls, conventions.table or COMPLEX, conventions.layout)
    try:
        texts, source = open_windows(path, (), tokenizer, WINDOWS, min(LENGTH, network.args.max_seq_len) + 1)
    except ValueError:  # a published model has no text here
        ids = written(network, KVCache(network.args), tokenizer.encode(prompt))
        texts, source = torch.tensor([ids]), "what the model itself writes"
    rows = []
    try:
        changed = with_functions(network, mine)
        for name, each in (("the model", network), ("with your functions", changed)):
            with torch.no_grad():
                loss = float(losses_of(each, texts[:, :-1], texts[:, 1:], rows=WINDOWS).mean())
            cache = caches_of(mine, network.args) if each is changed else KVCache(network.args)
            start = time.perf_counter()
            ids = written(each, cache, tokenizer.encode(prompt))
            speed = NEW_TOKENS / (time.perf_counter() - start)
            rows.append((name, f"{loss:.3f}", f"{speed:.0f}", repr(tokenizer.decode(ids))[:120]))
    except (Raised, RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"the model does not run with your functions: {' '.join(str(error).split())}") from error
    notes = [f"yours: {', '.join(calls)}. The other functions are the model's.", f"loss: nats per token of {source}."]
    return Table("In a model", ("", "loss", "tokens/s", "text"), rows, notes)


def with_functions(network: Transformer, mine: Mine) -> Transformer:
    """The network with these functions; the rows of W_q and W_k are in the order of their layout."""
    args = network.args
    changed = Transformer(args)
    for layer in changed.layers:
        layer.attention = ReadersAttention(args, mine)
    weights = network.state_dict()
    if mine.layout == "halves":
        weights |= {name: to_halves(x, args.head_dim) for name, x in weights.items() if is_rotated(name)}
    changed.load_state_dict(weights)
    changed.freqs_cis = network.freqs_cis
    if "precompute_freqs_cis" in mine.calls and args.rope_scaling is None:
        raw = mine.calls["precompute_freqs_cis"](args.head_dim, args.max_seq_len, args.rope_theta)
        table = read_table(raw, args.head_dim // 2)
        if not torch.is_tensor(table) or table.shape != network.freqs_cis.shape:
            raise Raised(f"precompute_freqs_cis returns no table of {tuple(network.freqs_cis.shape)}")
        changed.freqs_cis = table.to(torch.complex64)
    return changed.eval()


def caches_of(mine: Mine, args: ModelArgs) -> Any:
    """The reader's cache, if there is one, for one text."""
    call = mine.calls.get("KVCache")
    if call is None:
        return KVCache(args)
    if takes_args(call):
        made = Caller(call.function, ("args", "batch_size"), call.path)(args, 1)
        return Caches(made.layers, args.max_seq_len)
    sizes = (1, args.n_kv_heads, args.max_seq_len, args.head_dim)
    return Caches([call(*sizes) for _ in range(args.n_layers)], args.max_seq_len)


@torch.no_grad()
def written(network: Transformer, cache: Any, prompt: list[int]) -> list[int]:
    """The prompt and the likeliest next tokens."""
    ids, start = list(prompt), 0
    while len(ids) < len(prompt) + NEW_TOKENS and len(ids) < network.args.max_seq_len:
        logits = network(torch.tensor([ids[start:]]), start, cache)[0, -1]
        start = len(ids)
        ids.append(int(logits.argmax()))
    return ids
