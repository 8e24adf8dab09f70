"""All functions together: each may be right alone, and yet they may not fit each other."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...config import ModelArgs
from .attention import Case, attend, in_heads, recipe_in
from .calls import Caller
from .counterparts import counterparts
from .forms import FORMS, Conventions, Form
from .rotation import Probe, call_with
from .verdict import Property, Verdict

TOGETHER = "all together"
B, T, H, K, D = 2, 6, 4, 2, 8
CHUNK = 4  # tokens of the first of two chunks; T - CHUNK are in the second
ARGS = ModelArgs(dim=H * D, n_layers=2, n_heads=H, n_kv_heads=K, vocab_size=7, max_seq_len=T)
LOOK = "Each is right alone, so what one gives is not what the next one takes: look at the form and the layout."
TOLERANCE = 2e-2  # a table in bfloat16 is fine


def judge_together(names: dict[str, Callable[..., Any]], conventions: Conventions, caller: Caller) -> Verdict:
    """``names`` are the reader's functions, each right alone; ours stand in for those that are missing."""
    if "apply_rotary_emb" in names and conventions.attention_layout not in ("", conventions.layout):
        measured = Property(
            "attention and apply_rotary_emb rotate the same pairs of channels",
            f"{conventions.attention_layout} and {conventions.layout}",
            f"{conventions.layout} and {conventions.layout}",
        )
        return Verdict(TOGETHER, "wrong", str(measured), look=LOOK)
    form = conventions.table or FORMS[0]
    functions = counterparts(form, conventions.layout) | names
    generator = torch.Generator().manual_seed(2)
    xq, xk, xv = (torch.randn(B, T, heads, D, generator=generator, dtype=torch.float32) for heads in (H, K, K))

    def in_one_go() -> Any:
        rows = rows_of(functions["precompute_freqs_cis"](D, T), form, 0, T)
        return functions["attention"](xq.clone(), xk.clone(), xv.clone(), rows, functions["causal_mask"](0, T))

    def in_two_chunks() -> Any:
        """The keys that the cache gives back for the second chunk, and what its mask lets through."""
        cache = functions["KVCache"](ARGS, batch_size=B)
        table = functions["precompute_freqs_cis"](D, T)
        rotation = call_with(functions["apply_rotary_emb"], form)
        for start, end in ((0, CHUNK), (CHUNK, T)):
            chunk = slice(start, end)
            q, k = rotation(xq[:, chunk].clone(), xk[:, chunk].clone(), rows_of(table, form, start, end))
            keys, values = cache.update(1, start, k.transpose(1, 2), xv[:, chunk].transpose(1, 2))
            mask = functions["causal_mask"](start, end - start)
        return attend_cached(q.transpose(1, 2), keys, values, mask)

    case = Case(Probe(xq, xk, 0, 10000.0), xv, torch.ones(T, T, dtype=torch.bool).tril())
    right = attend(case, recipe_in(conventions.layout))
    ways = [("all tokens at once, attention(xq, xk, xv, table[0:6], mask)", in_one_go, right)]
    ways.append(("in two chunks with the cache", in_two_chunks, right[:, CHUNK:]))
    for way, call, expected in ways:
        trial = caller.trial(call, ())
        if trial.error is not None:
            return Verdict(TOGETHER, "stopped", f"{way}: {trial.problem}")
        failing = next(
            (each for each in properties(way, in_heads(trial.value, case), expected) if not each.holds()), None
        )
        if failing:
            return Verdict(TOGETHER, "wrong", str(failing), look=LOOK)
    return Verdict(TOGETHER, "right")


def rows_of(table: Any, form: Form, start: int, end: int) -> Any:
    """The rows of positions start .. end - 1 of a table in this form."""
    if isinstance(table, tuple | list):
        return tuple(part.narrow(form.before, start, end - start) for part in table)
    axis = form.before + 1 if form.container == "stack" else form.before
    return table.narrow(axis, start, end - start)


def attend_cached(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """q (B, H, T, D), keys and values (B, K, S, D), mask (T, S) -> (B, T, H, D)."""
    keys, values = keys.repeat_interleave(H // K, 1).double(), values.repeat_interleave(H // K, 1).double()
    scores = q.double() @ keys.mT / math.sqrt(D)
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values).transpose(1, 2)


def properties(way: str, found: Any, expected: Tensor) -> Iterator[Property]:
    shape = str(tuple(found.shape)) if isinstance(found, Tensor) else type(found).__name__
    yield Property(f"{way}: the shape", shape, str(tuple(expected.shape)))
    gap = float((found.double() - expected).abs().max())
    yield Property(f"{way}: the largest difference from attention in one formula", gap, 0.0, tolerance=TOLERANCE)
