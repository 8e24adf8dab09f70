"""Judge one function of the reader's files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from . import attention, cache, mask, reshape, rotation, table
from .calls import Caller, Raised, Unwritten
from .forms import COMPLEX, Conventions, angles, read_table, unit, write_table
from .reader import Reader
from .verdict import HALF_SPLIT, RIGHT, UNWRITTEN, Verdict

MEASURES = {
    "precompute_freqs_cis": (table.measure, ("dim", "end", "theta")),
    "reshape_for_broadcast": (reshape.measure, ("freqs_cis", "x")),
    "apply_rotary_emb": (rotation.measure, ("xq", "xk", "freqs_cis")),
    "causal_mask": (mask.measure, ("start_pos", "T")),
    "KVCache": (cache.measure, ("batch_size", "n_kv_heads", "max_seq_len", "head_dim")),
    "attention": (attention.measure, ("xq", "xk", "xv", "freqs_cis", "mask")),
}


def judge(function: str, written: Callable[..., Any], path: Path, conventions: Conventions) -> Verdict:
    """The verdict on one function of this file; what it shows is added to the conventions."""
    measure, names = MEASURES[function]
    call, verdict = Caller(written, names, path), Verdict(function, RIGHT)
    try:
        verdict.findings += call.order_finding()
        for finding in measure(call, conventions):
            verdict.findings.append(finding)
    except Unwritten:
        return Verdict(function, UNWRITTEN)
    except Raised as raised:
        verdict.outcome, verdict.problem = "raised", str(raised)
    except Exception as error:  # raised here, by a result of an unexpected type
        if not verdict.findings:
            problem = f"its result cannot be judged: {type(error).__name__}: {error}"
            verdict.outcome, verdict.problem = "stopped", " ".join(problem.split())[:300]
    if not verdict.findings:
        verdict.findings += call.overwritten_finding()
    if verdict.findings:
        verdict.outcome = "wrong"
    elif verdict.outcome == RIGHT:
        conventions.right.add(function)
        if function in ("apply_rotary_emb", "attention") and conventions.layout == "halves":
            verdict.outcome = HALF_SPLIT
    return verdict


def reader_for(function: str, conventions: Conventions) -> Reader:
    """A reader of files in which ours replace the other functions that are not right, to report each mistake once."""
    return Reader(counterparts(conventions), {function, *conventions.right})


def counterparts(conventions: Conventions) -> dict[str, Callable[..., Any]]:
    """Right functions in the reader's form and layout, which the reader's attention may call."""
    form = conventions.table or COMPLEX

    def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Any:
        return write_table(form, unit(angles(dim, end, theta)))

    def apply_rotary_emb(xq: Tensor, xk: Tensor, *table: Any, **named: Any) -> tuple[Tensor, ...]:
        """Rotate by the table, which is one argument or two, passed by position or by name."""
        parts = (*table, *named.values())
        angle = read_table(form, parts[0] if len(parts) == 1 else parts).angle()
        return tuple(rotation.rotated(x, angle, conventions.layout).type_as(x) for x in (xq, xk))

    return {
        "precompute_freqs_cis": precompute_freqs_cis,
        "reshape_for_broadcast": reshape.for_broadcast,
        "apply_rotary_emb": apply_rotary_emb,
    }
