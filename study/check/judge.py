"""Judge one function of the reader's files, or all of them together."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from model.attention import attention
from model.cache import KVCache
from model.config import ModelArgs

from . import attention as attentions
from . import cache, mask, reshape, rotation, table
from .calls import Caller, Raised, Unwritten
from .forms import FORMS, Conventions, angles, unit
from .reader import Reader
from .verdict import Finding, Verdict

TOGETHER = "all together"


def measure_cache(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    for names in (("args", "batch_size"), cache.VALUES[1:5]):  # of the constructor
        yield from Caller(call.function, names, call.path).order_finding("KVCache")
    yield from cache.measure(call, conventions)


Measure = Callable[[Caller, Conventions], Iterator[Finding | str]]
MEASURES: dict[str, tuple[Measure, tuple[str, ...], int]] = {
    "precompute_freqs_cis": (table.measure, table.ARGUMENTS, 4),
    "reshape_for_broadcast": (reshape.measure, reshape.ARGUMENTS, 6),
    "apply_rotary_emb": (rotation.measure, rotation.ARGUMENTS, 5),
    "causal_mask": (mask.measure, mask.ARGUMENTS, 8),
    "KVCache": (measure_cache, (), 8),
    "attention": (attentions.measure, attentions.ARGUMENTS, 7),
}


def judge(function: str, reader: Reader, conventions: Conventions) -> Verdict:
    """The verdict on one function or on all TOGETHER; what it shows is added to the conventions.

    Functions of the reader that are not right are replaced by ours, so that each mistake is reported once.
    """
    if function == TOGETHER:
        verdict, found = Verdict(TOGETHER, "right", step=6), measure_together(reader, conventions)
    else:
        measure, names, step = MEASURES[function]
        written, path = reader.functions()[function]
        reader.replace(counterparts(conventions), {function, *conventions.right})
        verdict, found = Verdict(function, "right", step=step), measure(Caller(written, names, path), conventions)
    try:
        for each in found:
            if isinstance(each, str):
                verdict.remarks.append(each)
            else:
                verdict.findings.append(each)
    except Unwritten:
        return Verdict(function, "unwritten")
    except Raised as raised:
        verdict.problem = str(raised)
    except Exception as error:  # raised here, by a result of an unexpected type
        problem = f"its result cannot be judged: {type(error).__name__}: {error}"
        return Verdict(function, "stopped", " ".join(problem.split())[:300])
    if verdict.findings:
        verdict.outcome = "wrong"
    elif verdict.problem:
        verdict.outcome = "raised"
    else:
        conventions.right.add(function)
        layout = {"apply_rotary_emb": conventions.layout, "attention": conventions.attention_layout}.get(function)
        verdict.outcome = "half-split" if layout == "halves" else "right"
    return verdict


def counterparts(conventions: Conventions) -> dict[str, Callable[..., Any]]:
    """Right functions in the reader's form and layout."""
    form, layout = conventions.table or FORMS[0], conventions.layout

    def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Any:
        return form.write(unit(angles(dim, end, theta)))

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *table: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = (*table, *named.values())
        angle = form.read(parts[0] if len(parts) == 1 else parts).angle()
        if not xq.shape[1] == xk.shape[1] == len(angle):
            shapes = f"xq {tuple(xq.shape)}, xk {tuple(xk.shape)} and a table of {len(angle)} rows"
            needed = "(B, T, H, D), (B, T, K, D) and a table of T rows"
            raise ValueError(f"apply_rotary_emb is called with {shapes}: it needs {needed}")
        return rotation.rotated(xq, angle, layout).type_as(xq), rotation.rotated(xk, angle, layout).type_as(xk)

    def attend(xq: Tensor, xk: Tensor, xv: Tensor, freqs_cis: Any, mask: Tensor) -> Tensor:
        q, k = apply_rotary_emb(xq, xk, freqs_cis)
        return attention(q.transpose(1, 2), k.transpose(1, 2), xv.transpose(1, 2), mask).transpose(1, 2)

    return {
        "precompute_freqs_cis": precompute_freqs_cis,
        "reshape_for_broadcast": reshape.for_broadcast,
        "apply_rotary_emb": apply_rotary_emb,
        "causal_mask": mask.visible,
        "KVCache": KVCache,
        "attention": attend,
    }


B, T, H, K, D = 2, 6, 4, 2, 8
ARGS = ModelArgs(dim=H * D, n_layers=2, n_heads=H, n_kv_heads=K, vocab_size=7, max_seq_len=T)
CHUNK = 4  # tokens of the first of two chunks; the second has T - CHUNK
DISAGREE = "Each function is right alone, so two of them disagree: look at the form of the table and at the layout."


def measure_together(reader: Reader, conventions: Conventions) -> Iterator[Finding | str]:
    """All functions that are right alone, with ours in place of the missing ones: a text at once and in two chunks."""
    layouts = [conventions.attention_layout or conventions.layout, conventions.layout]
    if {"apply_rotary_emb", "attention"} <= conventions.right and layouts[0] != layouts[1]:
        sentence = "attention and apply_rotary_emb rotate the same pairs of channels"
        yield Finding(sentence, " and ".join(layouts), f"{layouts[1]} and {layouts[1]}")
        yield DISAGREE
        return
    form, ours, path = conventions.table or FORMS[0], counterparts(conventions), next(iter(reader.modules))
    functions = ours | {name: function for name, (function, _) in reader.functions().items()}
    table = functions["precompute_freqs_cis"](D, T)
    generator = torch.Generator().manual_seed(2)
    xq, xk, xv = (torch.randn(B, T, heads, D, generator=generator) for heads in (H, K, K))
    right = ours["attention"](xq, xk, xv, form.write(unit(angles(D, T, 10000.0))), mask.visible(0, T))

    def at_once() -> Any:
        return functions["attention"](xq, xk, xv, form.rows(table, 0, T), functions["causal_mask"](0, T))

    def in_chunks() -> Any:
        """Attention of the second chunk to the keys that the cache returns, with the reader's mask."""
        caches = cache.Caches(functions["KVCache"], Caller(functions["KVCache"], (), path), ARGS)
        rotate = rotation.with_table(functions["apply_rotary_emb"], form)
        for start, end in ((0, CHUNK), (CHUNK, T)):
            q, k = rotate(xq[:, start:end], xk[:, start:end], form.rows(table, start, end))
            keys, values = caches.update(1, start, k.transpose(1, 2), xv[:, start:end].transpose(1, 2))
        visible = functions["causal_mask"](CHUNK, T - CHUNK)
        return attention(q.transpose(1, 2), keys, values, visible).transpose(1, 2)

    for way, compute, expected in (
        ("All tokens at once, attention(xq, xk, xv, table[0:6], mask)", at_once, right),
        ("In two chunks with the cache", in_chunks, right[:, CHUNK:]),
    ):
        difference = float((Caller(compute, (), path)().reshape(expected.shape) - expected).abs().max())
        if difference > 2e-2:  # allows a table in bfloat16
            yield Finding(f"{way}, the largest difference from the formula", f"{difference:.4g}", "0")
            yield DISAGREE
            return
