"""The calls by which functions are compared: the reader's, the right one and its wrong versions get equal arguments.

A probe takes a function and returns what it does, in tensors. A result that may be written in several forms is read in
one of them, so that equal functions give equal tensors. All sizes differ, except in the second probe of a function,
because a table along a wrong axis raises an error unless sizes are equal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .reader import Raised, Unwritten

Probe = Callable[[Callable[..., Any]], Any]  # what a function does

COMPLEX = "complex"
# The forms of a rotation table, from its cosines and sines (T, D/2). Each angle may be there twice, in halves
# (a0, a1 .. a0, a1 ..) or as neighbours (a0, a0, a1, a1 ..).
FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    COMPLEX: torch.complex,
    "tuple": lambda cos, sin: (cos, sin),
    "tuple, in halves": lambda cos, sin: (torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)),
    "tuple, as neighbours": lambda cos, sin: (cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)),
    "last axis of 2": lambda cos, sin: torch.stack((cos, sin), -1),
}


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_table(T: int, pairs: int) -> Tensor:
    """Angles from 0.3 to 2.8: complex128 (T, D/2)."""
    generator = torch.Generator().manual_seed(T)
    angles = 0.3 + 2.5 * torch.rand(T, pairs, generator=generator, dtype=torch.float64)
    return torch.polar(torch.ones_like(angles), angles)


def write_table(form: str, table: Tensor) -> Any:
    """A table, complex128 (T, D/2), in this form."""
    return FORMS[form](table.real.float(), table.imag.float())


def read_table(raw: Any, pairs: int) -> Any:
    """The table, complex128 (T, D/2), or what is returned if it is in none of the forms."""
    is_pair = isinstance(raw, tuple | list) and len(raw) == 2 and all(map(torch.is_tensor, raw))
    if is_pair and raw[0].shape == raw[1].shape and not raw[0].is_complex():
        return single(torch.complex(*(part.double() for part in raw)), pairs)
    if isinstance(raw, list | np.ndarray):
        return "not a tensor"
    if torch.is_tensor(raw) and not raw.is_complex() and raw.ndim == 3 and raw.shape[2] == 2:
        return torch.view_as_complex(raw.double().contiguous())
    return single(raw, pairs) if torch.is_tensor(raw) else raw


def single(table: Tensor, pairs: int) -> Tensor:
    """The table without the second half of the columns, or every second one, if they are repeated."""
    if table.shape[-1:] == (2 * pairs,):
        for part, repeated in (table.chunk(2, -1), (table[..., ::2], table[..., 1::2])):
            if torch.equal(part, repeated):
                return part
    return table


def attempt(probe: Probe, function: Any) -> Any:
    """What the function does, or Raised."""
    try:
        return plain(probe(function))
    except Unwritten:
        raise
    except Raised as raised:
        return raised
    except Exception as error:
        unjudged = Raised(f"its result cannot be judged: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        unjudged.__cause__ = error
        return unjudged


def plain(value: Any) -> Any:
    """Tensors on the CPU in bool, float64 or complex128, so that dtypes do not count unless a probe returns them."""
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if not torch.is_tensor(value):
        return value
    value = value.detach().to_dense().cpu().resolve_conj()
    if value.dtype == torch.bool:
        return value.clone()
    return value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)


def same(x: Any, y: Any) -> bool:
    """Whether two results of ``attempt`` are equal."""
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(same, x, y))
    if torch.is_tensor(x) and torch.is_tensor(y):
        return x.dtype == y.dtype and x.shape == y.shape and bool(are_close(x, y).all())
    return type(x) is type(y) and (x == y if isinstance(x, str | int | float) else True)


def are_close(x: Tensor, y: Tensor) -> Tensor:
    """Which numbers are equal within the rounding of float32."""
    return torch.isclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True)


def call_with(arguments: Sequence[Any], read: Callable[[Any], Any] = plain) -> Probe:
    """The probe that calls a function once, and what it reads from the result."""
    return lambda function: read(function(*arguments))


def table_probe(dim: int, end: int, theta: float | None) -> Probe:
    return call_with((dim, end, theta), lambda raw: read_table(raw, dim // 2))


def is_additive(raw: Any) -> bool:
    """Whether the rotation of position 2p + 1 is that of p, then that of p + 1, also above 2048, where float16 ends."""
    table = read_table(raw, 4)
    if not torch.is_tensor(table) or table.shape != (3001, 4):
        return False
    p = torch.arange(1100, 1500)
    return bool((table[2 * p + 1] - table[p] * table[p + 1]).abs().max() < 0.02)


def reshape_probe(B: int, T: int, H: int, pairs: int) -> Probe:
    x = torch.complex(random(B, T, H, pairs), random(B, T, H, pairs, seed=2))

    def read(found: Any) -> Any:
        """The table as it is broadcast to x, without copies; with four axes in any case."""
        if not torch.is_tensor(found):
            return found
        try:
            table = found.expand(x.shape)
        except RuntimeError:
            return found[(None,) * (4 - found.ndim)]
        return table[:1, :, :1] if bool((table == table[:1, :, :1]).all()) else table

    return call_with((random_table(T, pairs), x), read)


def misfit_probe(function: Callable[..., Any]) -> bool:
    """Whether tables that do not fit x are all refused, with a ValueError or by an assertion, as in LLaMA."""
    table, x = random_table(5, 6), torch.zeros(2, 5, 4, 6, dtype=torch.complex64)
    for wrong in (table[:1], torch.cat((table, table)), table[:, :1], table.T.contiguous()):
        try:
            function(wrong, x)
        except Exception as error:
            if isinstance(error.__cause__ or error, ValueError | AssertionError):
                continue
        return False
    return True


def in_bfloat16(apply: Callable[..., Any]) -> Any:
    return apply(random(2, 5, 4, 8).bfloat16(), random(2, 5, 2, 8).bfloat16(), random_table(5, 4))


def dtype_probe(apply: Callable[..., Any]) -> list[str]:
    return ["complex" if x.is_complex() else str(x.dtype)[6:] for x in in_bfloat16(apply)]


def is_rounded(apply: Callable[..., Any]) -> bool:
    """Whether vectors in bfloat16 are rotated in bfloat16, and not in float32 and then rounded."""
    expected = in_bfloat16(lambda xq, xk, table: apply(xq.float(), xk.float(), table))
    # Single numbers may lie between two of bfloat16.
    return any(bool((x != y.bfloat16()).float().mean() > 0.05) for x, y in zip(in_bfloat16(apply), expected))


def gradient_probe(apply: Callable[..., Any]) -> list[bool]:
    """Whether the rotated vectors depend on the graph of xq and xk."""
    xq, xk = (random(2, 3, heads, 8).requires_grad_() for heads in (4, 2))
    return [x.requires_grad for x in apply(1 * xq, 1 * xk, random_table(3, 4))]


def quarter_turn_probe(apply: Callable[..., Any]) -> Any:
    """Small whole numbers, which show the channel and the sign that each result is computed from."""
    x = torch.arange(1.0, 9.0).expand(1, 2, 3, 8)
    return apply(x, x, torch.tensor([[1], [1j]], dtype=torch.complex128).expand(2, 4))


def apply_probe(B: int, T: int, H: int, K: int, dim: int) -> Probe:
    return call_with((random(B, T, H, dim), random(B, T, K, dim, seed=2), random_table(T, dim // 2)))


def permutation_probe(D: int, n_heads: int, n_kv_heads: int, dim: int) -> Probe:
    return call_with((random(D * n_heads, dim), random(D * n_kv_heads, dim, seed=2), n_heads, n_kv_heads))


def mask_probe(start_pos: int, T: int) -> Probe:
    def read(mask: Any) -> Any:
        if torch.is_tensor(mask) and mask.ndim > 2 and mask.shape[:-2].numel() == 1:
            return mask.reshape(mask.shape[-2:])
        return mask

    return call_with((start_pos, T), read)


# Each row sees a key, and no rule, such as the transpose or its last row alone, makes the same of it as another.
MASK = torch.tensor([[0, 1, 1], [1, 1, 1], [1, 0, 1]], dtype=torch.bool)
TRIANGLE = torch.ones(5, 5, dtype=torch.bool).tril()


def attention_probe(B: int, T: int, H: int, K: int, dim: int, mask: Tensor = MASK, size: float = 1.0) -> Probe:
    q, k, v = size * random(B, T, H, dim), random(B, T, K, dim, seed=2), random(B, T, K, dim, seed=3)

    def read(out: Any) -> Any:
        is_flat = torch.is_tensor(out) and out.shape == (B, T, H * dim)
        return out.reshape(q.shape) if is_flat else out

    return call_with((q, k, v, random_table(T, dim // 2), mask), read)


# Rows of the batch, heads, slots and channels of a cache; calls of update, each of a cache, start_pos and T: two texts
# in two caches, then a shorter text, then slots within it, up to the last slot; and calls that exceed the slots.
CACHE = (2, 3, 12, 4)
CALLS = ((0, 0, 7), (1, 0, 7), (0, 7, 2), (1, 7, 2), (0, 0, 3), (0, 3, 1), (0, 2, 3))
TOO_MANY = ((0, 0, 12), (0, 12, 1), (1, 0, 9), (1, 9, 5), (1, 0, 13))


def chunk(T: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys and values (B, K, T, D)."""
    shape = (CACHE[0], CACHE[1], T, CACHE[3])
    return random(*shape, seed=seed), random(*shape, seed=seed + 100)


def cache_probe(*calls: tuple[int, int, int]) -> Probe:
    """The keys and values that each call returns. ``make`` returns the method update of a new cache."""

    def probe(make: Callable[[], Callable[..., Any]]) -> Any:
        updates = [make(), make()]
        results = []
        for number, (cache, start, T) in enumerate(calls):
            returned = attempt(call_with((start, *chunk(T, number))), updates[cache])
            if number == 0 and isinstance(returned, Raised):
                raise returned
            if start + T > CACHE[2]:
                returned = refusal(returned)
            results.append((f"cache {cache}, start_pos {start}, T {T}", returned))
        return results

    return probe


def refusal(returned: Any) -> str:
    """The exception that was raised. A RuntimeError is torch's, because shapes do not fit."""
    error = returned.__cause__ if isinstance(returned, Raised) else None
    if isinstance(error, ValueError):
        return "ValueError"
    return "no ValueError" if error is None or isinstance(error, RuntimeError | TypeError) else "another exception"


def stored_probe(make: Callable[[], Callable[..., Any]]) -> Any:
    """What a cache returns of a chunk that has a gradient, and that the caller overwrites."""
    update, new = make(), [x.requires_grad_() for x in chunk(3, 1)]  # a Caller does not copy these
    update(0, *new)
    with torch.no_grad():
        for x in new:
            x.zero_()
    stored = update(3, *chunk(2, 2))
    return [
        ("after the caller has overwritten xk and xv", stored),
        ("the dtypes", ", ".join(str(x.dtype)[6:] for x in stored)),
        ("stored keys and values keep their graph", tuple(x.requires_grad for x in stored)),
    ]


# start_pos and T, the smallest first
MASKS = ((1, 2), (0, 4), (3, 5), (7, 2), (2, 1), (5, 3), (0, 1))
PERMUTATIONS: dict[str, Probe] = {
    "wq (64, 16), wk (32, 16)": permutation_probe(16, 4, 2, dim=16),
    "wq and wk (24, 24)": permutation_probe(8, 3, 3, dim=24),
}
PROBES: dict[str, dict[str, Probe]] = {
    "precompute_freqs_cis": {
        "dim 8, end 7, theta 3": table_probe(8, 7, 3.0),
        "dim 4, end 3, without theta": table_probe(4, 3, None),
        "dim 6, end 13, theta 500": table_probe(6, 13, 500.0),
        "row 2p + 1 is row p times row p + 1, for p from 1100 to 1499": call_with((8, 3001, 10000.0), is_additive),
    },
    "reshape_for_broadcast": {
        "x (2, 5, 4, 6)": reshape_probe(2, 5, 4, 6),
        "x (3, 3, 3, 3)": reshape_probe(3, 3, 3, 3),
        "tables that do not fit x are refused": misfit_probe,
    },
    "apply_rotary_emb": {
        "vectors (1, 2, .. 8), turned by 0 and 90 degrees": quarter_turn_probe,
        "xq and xk (3, 3, 3, 6)": apply_probe(3, 3, 3, 3, 6),
        "xq (2, 5, 4, 8), xk (2, 5, 2, 8)": apply_probe(2, 5, 4, 2, 8),
        "xq (2, 1, 4, 8), xk (2, 1, 2, 8)": apply_probe(2, 1, 4, 2, 8),
        "the dtype for bfloat16": dtype_probe,
        "a gradient in xq and xk passes": gradient_probe,
    },
    "to_neighbours": PERMUTATIONS,
    "to_halves": PERMUTATIONS,
    "causal_mask": {f"start_pos {start}, T {T}": mask_probe(start, T) for start, T in MASKS},
    "KVCache": {
        "single tokens": cache_probe((0, 0, 1), (0, 1, 1)),
        "two chunks": cache_probe((0, 0, 5), (0, 5, 7)),
        "two caches": cache_probe(*CALLS),
        "more tokens than slots": cache_probe(*TOO_MANY),
        "a chunk with a gradient": stored_probe,
    },
    "attention": {
        "xq (2, 3, 4, 8), xk and xv (2, 3, 2, 8)": attention_probe(2, 3, 4, 2, 8),
        "xq, xk and xv (2, 3, 3, 10)": attention_probe(2, 3, 3, 3, 10),
        "xq (1, 5, 6, 4), xk and xv (1, 5, 2, 4), causal mask": attention_probe(1, 5, 6, 2, 4, mask=TRIANGLE),
        "xq 50 times as large": attention_probe(2, 3, 4, 2, 8, size=50.0),
        "xq 20,000 times as large": attention_probe(2, 3, 4, 2, 8, size=20_000.0),
    },
}
PROBES["rotate"] = PROBES["apply_rotary_emb"]
