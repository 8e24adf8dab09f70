"""Measure ``attention``: one-hot values make the output the weights, from which each stage is read.

Where the outputs come from, softmax, heads and scores are measured with angles of 0 and a mask that hides nothing; then
the mask with equal scores, and the rotation with the scores that were measured.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.attention import attention

from .calls import Caller, Raised, kind
from .forms import FORMS, Conventions, close, missing_axis, reached, unit, write_table
from .rotation import LAYOUTS, rotated
from .verdict import Finding, first, numbers

# B, T, H, K, D with T <= D, so that a value can be one-hot in its token. The second sizes are for functions
# that raise for the first because they mistake heads for tokens.
SIZES = ((2, 3, 4, 2, 8), (2, 3, 3, 3, 10))
LARGE = (2, 5, 4, 2, 8)
SEEN = 1e-12  # a key of less weight is hidden
# Each row sees a key and another one hides it; no rule below makes the same of it as another.
MASK = torch.tensor([[0, 1, 1], [1, 1, 1], [1, 0, 1]], dtype=torch.bool)
MASKS: list[tuple[str, Callable[[Tensor], Tensor]]] = [  # keys with weight, none in a row that is NaN
    ("TRANSPOSED_MASK", lambda mask: mask.T),
    ("SELF_HIDDEN", lambda mask: mask & ~torch.eye(len(mask), dtype=torch.bool)),
    ("MASK_AFTER", lambda mask: mask),
    ("MASK_AFTER", lambda mask: mask & mask.all(1, keepdim=True)),  # the others are NaN
]
# What the scores may be a multiple of, for q and k in heads, (B, H, T, D), and what is wrong with it.
PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "q k^T": (lambda q, k: q @ k.mT, ""),
    "the cosine of q and k": (lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT, "COSINES"),
    "softmax(q k^T / sqrt(D))": (lambda q, k: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), "SOFTMAX_TWICE"),
}
# By which angles q or k may be rotated, and what is wrong with it.
TURNS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "once": (lambda angle: angle, ""),
    "not at all": (lambda angle: 0 * angle, "UNROTATED"),
    "twice": (lambda angle: 2 * angle, "TWICE"),
    "backwards": (lambda angle: -angle, "SIGN"),
    "by the rows in reverse order": (lambda angle: angle.flip(0), "ROW_ORDER"),
}
AXES = ("rows", "tokens", "heads")


class FusedCalls(TorchFunctionMode):
    """Records whether a function that computes attention as a whole is called."""

    name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in getattr(func, "__name__", ""):
            self.name = func.__name__
        return func(*args, **(kwargs or {}))


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    with FusedCalls() as fused:
        forms = [conventions.table] if conventions.table else FORMS
        fitting = (
            (sizes, form)
            for sizes, form in product(SIZES, forms)
            if not isinstance(call.attempt(*Inputs.random(sizes).arguments(form)), Raised)
        )
        probes = Probes(call, conventions, *next(fitting, (SIZES[0], forms[0])))
        found = list(probes.findings()) or list(probes.whole())
    yield from found
    if fused.name:
        yield Finding("Fused attention functions called", fused.name, "none", "SDPA")


class Inputs(NamedTuple):
    """Queries (B, T, H, D), keys and values (B, T, K, D), angles (T, D/2) and a mask (T, T)."""

    q: Tensor
    k: Tensor
    v: Tensor
    angle: Tensor
    mask: Tensor

    @classmethod
    def random(cls, sizes: tuple[int, ...]) -> "Inputs":
        B, T, H, K, D = sizes
        generator = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(B, T, heads, D, generator=generator) for heads in (H, K, K))
        angle = 0.3 + 2 * torch.rand(T, D // 2, generator=generator, dtype=torch.float64)
        mask = torch.rand(T, T, generator=generator) < 0.6
        return cls(q, k, v, angle, mask | torch.eye(T, dtype=torch.bool).flip(0))  # each token sees a key

    def arguments(self, form: str) -> tuple[Any, ...]:
        return self.q, self.k, self.v, write_table(form, unit(self.angle)), self.mask

    def products(self, what: str = "q k^T") -> Tensor:
        """(B, H, T, T), for heads of queries that share a key/value head with their neighbours."""
        q, k = (x.double().transpose(1, 2) for x in (self.q, self.k))
        return PRODUCTS[what][0](q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))


class Probes:
    def __init__(self, call: Caller, conventions: Conventions, sizes: tuple[int, ...], form: str) -> None:
        self.call, self.conventions, self.sizes, self.form = call, conventions, sizes, form
        self.B, self.T, self.H, self.K, self.D = sizes
        self.random = Inputs.random(sizes)
        self.inputs = self.random._replace(  # without rotation, and with a mask that hides nothing
            angle=0 * self.random.angle, mask=torch.ones_like(self.random.mask)
        )

    def output(self, inputs: Inputs) -> Tensor:
        """The output, float64 (B, T, H, D)."""
        return self.call(*inputs.arguments(self.form)).double().reshape(inputs.q.shape)

    def weights(self, inputs: Inputs) -> Tensor:
        """The weight of each token in the output: (B, H, T, T)."""
        one_hot = torch.eye(self.T, self.D)[None, :, None].repeat(self.B, 1, self.K, 1)
        return self.output(inputs._replace(v=one_hot))[..., : self.T].transpose(1, 2)

    def findings(self) -> Iterator[Finding]:
        found = self._result() or self._values() or next(self._places(), None)
        if found:
            yield found
        other_heads = found is not None and found.fault.startswith(("TILED", "GROUPS"))
        if found and not other_heads:
            return
        what, factor = self._fit(self.weights(self.inputs))
        scores = [] if other_heads else list(self._scores(what, factor))
        yield from scores
        if all(finding.fault in ("SCALE", "UNSCALED") for finding in scores):  # it is a softmax over the keys
            yield from self._mask()
            yield from self._turned_values()
            yield from [] if other_heads else self._rotation(factor)

    def whole(self) -> Iterator[Finding]:
        """The whole formula, of other sizes; used if no stage was wrong."""
        inputs = Inputs.random(LARGE)
        q, k = (rotated(x, inputs.angle, self.conventions.layout) for x in (inputs.q, inputs.k))
        q, k, v = (x.double().transpose(1, 2) for x in (q, k, inputs.v))
        right = attention(q, k, v, inputs.mask).transpose(1, 2)
        value = self.output(inputs)
        if not close(value, right):
            sentence = f"softmax(q k^T / sqrt(D)) v of xq {tuple(right.shape)}, random angles and mask; token 1, head 0"
            yield Finding(sentence, numbers(value[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]))

    def _result(self) -> Finding | None:
        """Whether an output of the right shape is returned, the same for equal arguments, and without NaN."""
        B, T, H, _, D = self.sizes
        right = (B, T, H, D)
        raw, again = (self.call(*self.inputs.arguments(self.form)) for _ in range(2))
        if not torch.is_tensor(raw) or raw.is_complex() or tuple(raw.shape) not in (right, (B, T, H * D)):
            return Finding("The output has the shape of xq", kind(raw), str(right), shape_fault(raw, right))
        difference = float((raw - again).nan_to_num().abs().max())
        if difference > 0:
            return Finding("The largest difference of two equal calls", f"{difference:.4g}", "0", "RANDOM")
        bad = ~self.output(self.inputs).isfinite().all(-1).all(2).all(0)  # (T,)
        if not bad.any():
            return None
        fault = "" if bad.all() else "SELF_HIDDEN"
        if self.output(self.inputs._replace(mask=~self.inputs.mask)).isfinite().all():
            fault = "INVERTED_MASK"
        tokens = ", ".join(map(str, bad.nonzero()[:, 0].tolist()))
        return Finding("With a mask that hides nothing, the output is NaN for tokens", tokens, "none", fault)

    def _values(self) -> Finding | None:
        """Whether the output is a sum of values, so that it is 0 for values of 0."""
        nothing = self.output(self.inputs._replace(v=0 * self.inputs.v))
        if nothing.abs().max() < 1e-4:
            return None
        once, twice = (self.output(self.inputs._replace(v=n * self.inputs.v)) - nothing for n in (1, 2))
        fault = "RESIDUAL" if once.abs().max() > 1e-4 and close(twice, 2 * once) else "NOT_VALUES"
        sentence = "With values of 0 the output is 0; token 0, head 0"
        return Finding(sentence, numbers(nothing[0, 0, 0, :4]), "0, 0, 0, 0", fault)

    def _places(self) -> Iterator[Finding]:
        """Which tokens, rows of the batch and heads of q, k and v each output is computed from; the first counts."""
        sources = [self._sources(name) for name in ("q", "k", "v")]
        rows, tokens, heads = ([along(axis, source) for source in sources] for axis in range(3))
        own_row, own_token, own_head = (torch.eye(size).bool() for size in (self.B, self.T, self.H))
        every_token = torch.ones_like(own_token)  # keys may be of any token, because the mask is measured later
        own_keys = sources[1].any(3)  # (B, T, H, T, K)
        if self.K > 1 and own_keys.any(-1).sum(-1).max() == 1 and own_keys.any(-2).all():
            yield place_finding(1, "k", tokens[1], every_token, "OVER_HEADS")
        if not tokens[1].any():
            yield place_finding(1, "k", tokens[1], every_token, "SCORES_OF_ONE" if tokens[0].any() else "")
        if not tokens[0].any():
            yield place_finding(1, "q", tokens[0], own_token, "SCORES_OF_ONE")
        if (tokens[0] & ~own_token).any():
            w = self.weights(self.inputs)
            is_moved = (sources[0].flatten(3).sum(-1) == 1).all() and not torch.equal(heads[0], own_head)
            named = [
                ("SOME_TOKENS", tokens[0].any(0).sum() == 1),
                ("VIEWED", is_moved),
                # The weights of q k^T transposed are a softmax along the axis of the queries.
                ("SCORES_TRANSPOSED", torch.equal(tokens[1], own_token) or self._fit(w.mT)[0] == "q k^T"),
                ("SOFTMAX", (w.sum(2) - 1).abs().max() < 1e-3),
            ]
            yield place_finding(1, "q", tokens[0], own_token, first(named))
        for name, found in zip("qkv", rows):
            if not torch.equal(found, own_row):
                fault = "SOFTMAX" if found.all() and torch.equal(rows[2], own_row) else ""
                yield place_finding(0, name, found, own_row, "SOME_BATCH" if found.any(0).sum() == 1 else fault)
        right = torch.eye(self.K).bool().repeat_interleave(self.H // self.K, 0)
        if not torch.equal(heads[0], own_head):
            named = [
                ("SOFTMAX", heads[0].all() and torch.equal(heads[2], right)),
                ("SOME_HEADS", (heads[0] == heads[0][:1]).all()),
                ("REGROUPED", (heads[0].sum(0) == 1).all()),
            ]
            yield place_finding(2, "q", heads[0], own_head, first(named))
        tiled = torch.eye(self.K).bool().repeat(self.H // self.K, 1)
        for name, found, other in (("k", heads[1], heads[2]), ("v", heads[2], heads[1])):
            if not torch.equal(found, right):
                fault = "TILED" if torch.equal(found, tiled) else "GROUPS"
                fault += f", in {name} only" if torch.equal(other, right) else ""
                yield place_finding(2, name, found, right, fault)

    def _sources(self, name: str) -> Tensor:
        """Whether each output depends on each vector of q, k or v: bool (B, T, H, B, T, H or K)."""
        return reached(lambda x: self.output(self.inputs._replace(**{name: x})), getattr(self.inputs, name))

    def _fit(self, w: Tensor) -> tuple[str, float]:
        """The product of which the weights are the softmax, but for their sums, and its factor."""
        logs = centered(w.clamp(min=1e-30).log(), w > SEEN)
        for what in PRODUCTS:
            x = centered(self.inputs.products(what), w > SEEN)
            factor = float((x * logs).sum() / (x * x).sum().clamp(min=1e-30))
            size = float(logs.abs().max())
            if size > 1e-6 and abs(factor) > 1e-9 and (factor * x - logs).abs().max() < 2e-3 * size + 1e-6:
                return what, factor
        return "", 0.0

    def _scores(self, what: str, factor: float) -> Iterator[Finding]:
        w, expected = self.weights(self.inputs), self.D**-0.5
        is_normalised = close(w.sum(-1), torch.ones_like(w[..., 0]), 1e-3)
        if (w < -1e-6).any() or not what:
            scores = self.inputs.products() * expected
            sentence = f"The weights of token 0, head 0 for scores {numbers(scores[0, 0, 0])}"
            is_plausible = is_normalised and (w > SEEN).all()  # as with something added to the scores
            yours, right = (numbers(x[0, 0, 0]) for x in (w, scores.softmax(-1)))
            yield Finding(sentence, yours, right, "" if is_plausible else "NO_SOFTMAX")
        elif not is_normalised:
            sums = numbers(w[0, 0].sum(-1))
            yield Finding("The sums over all keys of the weights of head 0", sums, "1, 1, 1", "NOT_NORMALISED")
        if what and what != "q k^T":
            yield Finding("The weights are the softmax of a multiple of", what, "q k^T", PRODUCTS[what][1])
        elif what and abs(factor - expected) > 3e-3:
            fault = "NEGATED" if abs(factor + expected) < 3e-3 else "SCALE"
            fault = "UNSCALED" if abs(factor - 1) < 3e-3 else fault
            sentence = f"The factor of the scores q k^T (D {self.D}, {self.T} tokens, {self.H} heads)"
            yield Finding(sentence, f"{factor:.4g}", f"{expected:.4g}, which is 1 / sqrt(D)", fault)

    def _mask(self) -> Iterator[Finding]:
        """The weights under a mask if all scores are equal."""
        q, k = torch.ones_like(self.inputs.q), torch.full_like(self.inputs.k, 0.7 / self.D**0.5)
        w = self.weights(self.inputs._replace(q=q, k=k, mask=MASK))
        right = (MASK / MASK.sum(1, keepdim=True)).expand_as(w)
        shown = (w > SEEN).any(0).any(0)  # (T, T)
        if close(w, right) and torch.equal(shown, MASK):
            return
        if shown.all():
            differences = (w[0, :, 0, 0] / w[0, :, 0, 1]).log()  # (H,)
            head, difference = int(differences.argmax()), float(differences.max())
            fault = "MASK_UNUSED" if abs(difference) < 1e-2 else "MASK_SMALL"
            sentence = "The score of a hidden key minus that of a visible one, equal before the mask"
            if not close(differences.exp(), differences.exp()[:1].expand_as(differences)):
                sentence, fault = f"{sentence}, in head {head}", ""
            yield Finding(sentence, f"{difference + 0.0:.3g}", "-inf, so that its weight is 0", fault)
            return
        t = int(((w - right).abs() < 1e-3).all(-1).all(0).all(0).int().argmin())
        fault = next((fault for fault, rule in MASKS if torch.equal(shown, rule(MASK))), "OWN_MASK")
        cells = "".join("1" if cell else "0" for cell in MASK[t])
        sentence = f"With {cells} in row {t} of the mask and equal scores, the weights of token {t}, head 0"
        yield Finding(sentence, numbers(w[0, 0, t]), numbers(right[0, 0, t]), fault)

    def _turned_values(self) -> Iterator[Finding]:
        """Whether values or output are rotated: the output if all keys have equal weights, with angles and without."""
        inputs = self.inputs._replace(q=0 * self.inputs.q, k=0 * self.inputs.k)
        out, right = (self.output(inputs._replace(angle=angle)) for angle in (self.random.angle, inputs.angle))
        if not close(out, right):
            fault = "OUTPUT" if close(out.norm(dim=-1), right.norm(dim=-1)) else "VALUES"
            sentence = "The output does not depend on the angles if q and k are 0; token 1, head 0"
            yield Finding(sentence, numbers(out[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]), fault)

    def _rotation(self, factor: float) -> Iterator[Finding]:
        """How many times q and k are rotated, and by the angles of which rows; nothing if no such rotation fits."""
        inputs = self.inputs._replace(angle=self.random.angle)
        w = self.weights(inputs)
        for in_q, in_k, layout in product(TURNS, TURNS, dict.fromkeys((self.conventions.layout, *LAYOUTS))):
            (turn_q, fault_q), (turn_k, fault_k) = TURNS[in_q], TURNS[in_k]
            q = rotated(inputs.q, turn_q(inputs.angle), layout)
            k = rotated(inputs.k, turn_k(inputs.angle), layout)
            if close((factor * inputs._replace(q=q, k=k).products()).softmax(-1), w):
                break
        else:
            return
        if fault_q or fault_k:
            fault = fault_q or fault_k
            if fault_q != fault_k:
                fault += f", in {'q' if fault_q else 'k'} only"
            if in_q == in_k == "not at all" and self.sizes == SIZES[1]:  # angles of heads cancel in their scores
                fault = "HEADS"
            sentence = "The scores depend on the angles of the table as if it rotated"
            yield Finding(sentence, f"q {in_q}, k {in_k}", "q once, k once", fault)
        elif layout != self.conventions.layout and "apply_rotary_emb" in self.conventions.right:
            sentence = "attention rotates the pairs of apply_rotary_emb"
            yield Finding(sentence, layout, self.conventions.layout, "MIXED")
        self.conventions.layout = layout


def shape_fault(raw: Any, right: tuple[int, ...]) -> str:
    """The fault of an output of another shape than ``right``, (B, T, H, D)."""
    B, T, H, D = right
    shape = tuple(raw.shape) if torch.is_tensor(raw) else None
    if shape in ((B, H, T, T), (B, T, H, T)):
        return "WEIGHTS"
    if shape in ((B, H, T, D), (B, H, T * D)):
        return "NOT_BACK"
    return "NOT_RETURNED" if shape is None else missing_axis(shape, right)


def along(axis: int, sources: Tensor) -> Tensor:
    """Which places of one axis depend on which, (size, size), of bool (B, T, H, B, T, H or K)."""
    return sources.amax([other for other in range(6) if other % 3 != axis])


def place_finding(axis: int, name: str, found: Tensor, right: Tensor, fault: str) -> Finding:
    what = AXES[axis]
    sentence = f"{what.capitalize()} 0 .. {len(found) - 1} of the output are computed from the {what} of {name}"
    return Finding(sentence, table_text(found), table_text(right), fault)


def table_text(table: Tensor) -> str:
    """``0, 1 and 2``: the columns that each row of a table of truth values has."""
    return ", ".join(" and ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in table)


def centered(x: Tensor, shown: Tensor) -> Tensor:
    """x minus the mean of the numbers of each row that are shown; 0 for the others."""
    mean = (x * shown).sum(-1, keepdim=True) / shown.sum(-1, keepdim=True).clamp(min=1)
    return (x - mean) * shown
