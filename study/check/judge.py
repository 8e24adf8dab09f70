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
from .forms import FORMS, Conventions, angles, read_table, unit
from .reader import Reader
from .verdict import Finding, Verdict

TOGETHER = "all together"
MEASURES: dict[str, tuple[Callable[[Caller, Conventions], Iterator[Finding]], tuple[str, ...], int]] = {
    "precompute_freqs_cis": (table.measure, table.ARGUMENTS, 4),
    "reshape_for_broadcast": (reshape.measure, reshape.ARGUMENTS, 6),
    "apply_rotary_emb": (rotation.measure, rotation.ARGUMENTS, 5),
    "causal_mask": (mask.measure, mask.ARGUMENTS, 8),
    "KVCache": (cache.measure, (), 8),
    "attention": (attentions.measure, attentions.ARGUMENTS, 7),
}


def judge(function: str, reader: Reader, conventions: Conventions) -> Verdict:
    """The verdict on one function; its form and layout, and that it is right, are added to the conventions.

    Functions of the reader that are not right are replaced by ours, so that each mistake is reported once.
    """
    measure, names, step = MEASURES[function]
    written, path = reader.find(function)
    caller = Caller(written, names, path)
    findings: list[Finding] = []
    verdict = Verdict(function, "right", findings=findings, step=step)
    try:
        with reader.replaced(counterparts(conventions), {function, *conventions.right}):
            for finding in measure(caller, conventions):
                findings.append(finding)
            if not findings:
                verdict.remarks = remarks(function, caller, conventions)
    except Unwritten:
        return Verdict(function, "unwritten")
    except Raised as raised:
        verdict.problem = str(raised)
    except table.ShapeError as error:
        findings.append(error.finding)
    except Exception as error:  # raised here, by a result of an unexpected type
        problem = f"its result cannot be judged: {type(error).__name__}: {error}"
        return Verdict(function, "stopped", " ".join(problem.split())[:300])
    if findings:
        verdict.outcome = "wrong"
    elif verdict.problem:
        verdict.outcome = "raised"
    else:
        conventions.right.add(function)
        layout = {"apply_rotary_emb": conventions.layout, "attention": conventions.attention_layout}.get(function)
        verdict.outcome = "half-split" if layout == "halves" else "right"
    return verdict


def remarks(function: str, caller: Caller, conventions: Conventions) -> list[str]:
    if function == "precompute_freqs_cis":
        return list(table.remarks(caller))
    if function == "apply_rotary_emb" and conventions.table:
        return list(rotation.remarks(caller, conventions.table))
    return []


def counterparts(conventions: Conventions) -> dict[str, Callable[..., Any]]:
    """Right functions in the reader's form and layout."""
    form, layout = conventions.table or FORMS[0], conventions.layout

    def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Any:
        return form.write(unit(angles(dim, end, theta)))

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *table: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = [*table, *named.values()]
        read = read_table(parts[0] if len(parts) == 1 else tuple(parts), xq.shape[3], xq.shape[1])
        if read is None or len(read.parts) != 2 or xk.shape[1] != xq.shape[1]:
            shapes = " and ".join(str(tuple(part.shape)) for part in parts if isinstance(part, Tensor))
            raise ValueError(
                f"apply_rotary_emb is called with xq {tuple(xq.shape)}, xk {tuple(xk.shape)} and a table of {shapes}: "
                "it needs (B, T, H, D), (B, T, K, D) and a table of T rows"
            )
        swapped = read.form is not None and read.form.sin_first != form.sin_first  # guessed, but the form is known
        angle = torch.complex(*(read.parts[::-1] if swapped else read.parts)).angle()
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


def judge_together(reader: Reader, conventions: Conventions) -> Verdict:
    """All functions that are right alone, with ours in place of the missing ones: a text at once and in two chunks."""
    layouts = {conventions.layout, conventions.attention_layout or conventions.layout}
    if {"apply_rotary_emb", "attention"} <= conventions.right and len(layouts) > 1:
        sentence = "attention and apply_rotary_emb rotate the same pairs of channels"
        yours = f"{conventions.attention_layout} and {conventions.layout}"
        expected = f"{conventions.layout} and {conventions.layout}"
        return Verdict(TOGETHER, "wrong", findings=[Finding(sentence, yours, expected)], remarks=[DISAGREE], step=6)
    form, path = conventions.table or FORMS[0], next(iter(reader.modules))
    functions = counterparts(conventions)
    functions |= {name: reader.find(name)[0] for name in conventions.right}
    generator = torch.Generator().manual_seed(2)
    xq, xk, xv = (torch.randn(B, T, heads, D, generator=generator) for heads in (H, K, K))

    def at_once() -> Any:
        rows = form.rows(functions["precompute_freqs_cis"](D, T), 0, T)
        return functions["attention"](xq.clone(), xk.clone(), xv.clone(), rows, functions["causal_mask"](0, T))

    def in_chunks() -> Any:
        """Attention of the second chunk to the keys that the cache returns, with the reader's mask."""
        caches = cache.Caches(functions["KVCache"], Caller(functions["KVCache"], (), path), ARGS)
        table = functions["precompute_freqs_cis"](D, T)
        rotate = rotation.with_table(functions["apply_rotary_emb"], form)
        for start, end in ((0, CHUNK), (CHUNK, T)):
            chunk = slice(start, end)
            q, k = rotate(xq[:, chunk].clone(), xk[:, chunk].clone(), form.rows(table, start, end))
            keys, values = caches.update(1, start, k.transpose(1, 2), xv[:, chunk].transpose(1, 2))
            visible = functions["causal_mask"](start, end - start)
        q = q.transpose(1, 2)  # (B, H, T - CHUNK, D)
        return attention(q.double(), keys.double(), values.double(), visible).transpose(1, 2)

    inputs = attentions.Inputs(xq, xk, xv, angles(D, T, 10000.0), torch.ones(T, T, dtype=torch.bool).tril())
    right = inputs.right(conventions.layout)
    ways = [
        ("All tokens at once, attention(xq, xk, xv, table[0:6], mask)", at_once, right),
        ("In two chunks with the cache", in_chunks, right[:, CHUNK:]),
    ]
    for way, compute, wanted in ways:
        try:
            out = Caller(compute, (), path)()
        except (Raised, Unwritten) as error:
            return Verdict(TOGETHER, "raised", f"{way}: {error}")
        difference = float((out.double().reshape(wanted.shape) - wanted).abs().max())
        if difference > 2e-2:  # allows a table in bfloat16
            sentence = f"{way}, the largest difference from the formula"
            finding = Finding(sentence, f"{difference:.4g}", "0")
            return Verdict(TOGETHER, "wrong", findings=[finding], remarks=[DISAGREE], step=6)
    return Verdict(TOGETHER, "right")
