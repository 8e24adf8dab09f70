"""All functions together, because functions that are right alone may disagree about the form or the layout."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from model.attention import attention
from model.config import ModelArgs

from .attention import Case, attend, in_heads, recipe_in
from .calls import Caller, Unwritten
from .counterparts import counterparts
from .forms import FORMS, Conventions, Form
from .properties import Property, kind
from .rotation import Probe, call_with
from .verdict import Verdict

TOGETHER = "all together"
B, T, H, K, D = 2, 6, 4, 2, 8
CHUNK = 4  # tokens of the first of two chunks; the second has T - CHUNK
ARGS = ModelArgs(dim=H * D, n_layers=2, n_heads=H, n_kv_heads=K, vocab_size=7, max_seq_len=T)
LOOK = "Each function is right alone, so two of them disagree: look at the form of the table and at the layout."
TOLERANCE = 2e-2  # allows a table in bfloat16


def judge_together(names: dict[str, Callable[..., Any]], conventions: Conventions, caller: Caller) -> Verdict:
    """``names`` are the reader's functions, each right alone; our versions replace the missing ones."""
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

    def in_one_call() -> Any:
        rows = rows_of(functions["precompute_freqs_cis"](D, T), form, 0, T)
        return functions["attention"](xq.clone(), xk.clone(), xv.clone(), rows, functions["causal_mask"](0, T))

    def in_two_chunks() -> Any:
        """Attention of the second chunk to the keys that the cache returns, with the reader's mask."""
        cache = functions["KVCache"](ARGS, batch_size=B)
        table = functions["precompute_freqs_cis"](D, T)
        rotation = call_with(functions["apply_rotary_emb"], form)
        for start, end in ((0, CHUNK), (CHUNK, T)):
            chunk = slice(start, end)
            q, k = rotation(xq[:, chunk].clone(), xk[:, chunk].clone(), rows_of(table, form, start, end))
            keys, values = cache.update(1, start, k.transpose(1, 2), xv[:, chunk].transpose(1, 2))
            mask = functions["causal_mask"](start, end - start)
        q = q.transpose(1, 2)  # (B, H, T - CHUNK, D)
        return attention(q.double(), keys.double(), values.double(), mask).transpose(1, 2)

    case = Case(Probe(xq, xk, 0, 10000.0), xv, torch.ones(T, T, dtype=torch.bool).tril())
    right = attend(case, recipe_in(conventions.layout))
    ways = [
        ("all tokens at once, attention(xq, xk, xv, table[0:6], mask)", in_one_call, right),
        ("in two chunks with the cache", in_two_chunks, right[:, CHUNK:]),
    ]
    for way, call, expected in ways:
        try:
            trial = caller.trial(call, ())
        except Unwritten as error:  # a function that is right alone raises NotImplementedError for these sizes
            return Verdict(TOGETHER, "raised", f"{way}: {error}")
        if trial.error is not None:
            return Verdict(TOGETHER, "raised", f"{way}: {trial.problem}")
        for each in properties(way, in_heads(trial.value, case), expected):
            if not each.holds():
                return Verdict(TOGETHER, "wrong", str(each), look=LOOK)
    return Verdict(TOGETHER, "right")


def rows_of(table: Any, form: Form, start: int, end: int) -> Any:
    """The rows of positions start .. end - 1 of a table in this form."""
    if isinstance(table, tuple | list):
        return tuple(part.narrow(form.before, start, end - start) for part in table)
    axis = form.before + 1 if form.container == "stack" else form.before
    return table.narrow(axis, start, end - start)


def properties(way: str, found: Any, expected: Tensor) -> Iterator[Property]:
    yield Property(f"{way}: the shape", kind(found), str(tuple(expected.shape)))
    difference = float((found.double() - expected).abs().max())
    yield Property(f"{way}: the largest difference from the formula", difference, 0.0, tolerance=TOLERANCE)
