"""Measure ``attention``: one-hot values make the output the weights, from which each stage is read.

Where the outputs come from, heads, softmax and scores are measured with angles of 0 and a mask that hides nothing; then
the mask, and then the rotation, with what the earlier stages showed.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .calls import Caller, Raised, kind
from .faults import FAULTS, Fault
from .forms import FORMS, Conventions, Form, close, unit
from .rotation import LAYOUTS, rotated
from .verdict import Finding, numbers

ARGUMENTS = ("xq", "xk", "xv", "freqs_cis", "mask")
FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
# B, T, H, K, D with K T <= D, so that a value can be one-hot in its head and token. The second sizes are for functions
# that raise for the first because they mistake heads for tokens.
SIZES = ((2, 3, 4, 2, 8), (2, 3, 3, 3, 10))
LARGE = (2, 5, 4, 2, 8)
SEEN = 1e-12  # a key of less weight is hidden
# Each row sees a key and another one hides it; no rule below makes the same of it as another.
MASK = torch.tensor([[0, 1, 1], [1, 1, 1], [1, 0, 1]], dtype=torch.bool)
MASKS: list[tuple[Fault, Callable[[Tensor], Tensor]]] = [  # keys with weight, none in a row that is NaN
    (FAULTS["TRANSPOSED_MASK"], lambda mask: mask.T),
    (FAULTS["SELF_HIDDEN"], lambda mask: mask & ~torch.eye(len(mask), dtype=torch.bool)),
    (FAULTS["MASK_AFTER"], lambda mask: mask),
    (FAULTS["MASK_AFTER"], lambda mask: mask & mask.all(1, keepdim=True)),  # the others are NaN
]
# Products that the scores may be, of q and k in heads, (B, H, T, D), and what is wrong with them.
PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Fault | None]] = {
    "q k^T": (lambda q, k: q @ k.mT, None),
    "k q^T": (lambda q, k: k @ q.mT, FAULTS["SCORES_TRANSPOSED"]),
    "q q^T": (lambda q, k: q @ q.mT, FAULTS["SCORES_OF_ONE"]),
    "k k^T": (lambda q, k: k @ k.mT, FAULTS["SCORES_OF_ONE"]),
    "the cosine of q and k": (lambda q, k: unit_length(q) @ unit_length(k).mT, FAULTS["COSINES"]),
    "softmax(q k^T / sqrt(D))": (lambda q, k: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), FAULTS["SOFTMAX_TWICE"]),
}
# By which angles q or k may be rotated, and what is wrong with it.
TURNS: dict[str, tuple[Callable[[Tensor], Tensor], Fault | None]] = {
    "once": (lambda angle: angle, None),
    "not at all": (lambda angle: 0 * angle, FAULTS["UNROTATED"]),
    "twice": (lambda angle: 2 * angle, FAULTS["TWICE"]),
    "backwards": (lambda angle: -angle, FAULTS["SIGN"]),
    "by the rows in reverse order": (lambda angle: angle.flip(0), FAULTS["ROW_ORDER"]),
    "by the next row": (lambda angle: angle.roll(-1, 0), FAULTS["ROW_SHIFTED"]),
    "by the row before": (lambda angle: angle.roll(1, 0), FAULTS["ROW_SHIFTED"]),
}
TURNS_OF_ONE = {  # q and k
    ("once", "not at all"): FAULTS["ONLY_Q_ROTATED"],
    ("not at all", "once"): FAULTS["ONLY_K_ROTATED"],
    ("once", "backwards"): FAULTS["OPPOSITE"],
    ("backwards", "once"): FAULTS["OPPOSITE"],
}
MERGED = (  # axes of the output
    ("rows of the batch", FAULTS["SOME_BATCH"]),
    ("tokens", FAULTS["SOME_TOKENS"]),
    ("heads", FAULTS["ONE_HEAD_RETURNED"]),
)


class FusedCalls(TorchFunctionMode):
    """Records whether a function that computes attention as a whole is called."""

    name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in FUSED:
            self.name = func.__name__
        return func(*args, **(kwargs or {}))


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("attention")
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
        yield Finding("Fused attention functions called", fused.name, "none", FAULTS["SDPA"])
    yield from call.overwritten_finding()


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

    def arguments(self, form: Form) -> tuple[Any, ...]:
        return self.q, self.k, self.v, form.write(unit(self.angle)), self.mask

    def right(self, layout: str) -> Tensor:
        """softmax(q k^T / sqrt(D)) v over visible keys, q and k rotated: float64 (B, T, H, D)."""
        groups = self.q.shape[2] // self.k.shape[2]
        q, k = (rotated(x, self.angle, layout).transpose(1, 2) for x in (self.q, self.k))
        k, v = (x.repeat_interleave(groups, 1) for x in (k, self.v.double().transpose(1, 2)))
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~self.mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)


class Probes:
    def __init__(self, call: Caller, conventions: Conventions, sizes: tuple[int, ...], form: Form) -> None:
        self.call, self.conventions, self.sizes, self.form = call, conventions, sizes, form
        self.B, self.T, self.H, self.K, self.D = sizes
        self.random = Inputs.random(sizes)
        nothing_hidden = torch.ones(self.T, self.T, dtype=torch.bool)
        self.inputs = self.random._replace(angle=0 * self.random.angle, mask=nothing_hidden)
        self.transposed = False  # the output is (B, H, T, D)
        self.key_heads = torch.ones(self.H, self.K)  # whose scores each query head uses
        self.factor = 0.0  # of the scores q k^T, once the weights are known to be their softmax

    def output(self, inputs: Inputs) -> Tensor:
        """The output, float64 (B, T, H, D)."""
        out = self.call(*inputs.arguments(self.form)).double()
        if self.transposed:
            out = out.reshape(-1, self.H, self.T, self.D).transpose(1, 2)
        return out.reshape(inputs.q.shape)

    def weights(self, inputs: Inputs) -> Tensor:
        """The weight of each token of each key/value head in the output: (B, T, H, K, T)."""
        one_hot = torch.eye(self.K * self.T, self.D).reshape(self.K, self.T, self.D).transpose(0, 1)
        out = self.output(inputs._replace(v=one_hot.repeat(len(inputs.q), 1, 1, 1)))
        return out[..., : self.K * self.T].unflatten(-1, (self.K, self.T))

    def weights_in_heads(self, inputs: Inputs) -> Tensor:
        """The weights, summed over key/value heads: (B, H, T, T)."""
        return self.weights(inputs).sum(3).transpose(1, 2)

    def products(self, inputs: Inputs, what: str = "q k^T") -> Tensor:
        """The products of q and the mean of the key heads that each query head uses, (B, H, T, T)."""
        share = self.key_heads / self.key_heads.sum(1, keepdim=True).clamp(min=1)
        k = torch.einsum("bskd,hk->bhsd", inputs.k.double(), share.double())
        return PRODUCTS[what][0](inputs.q.double().transpose(1, 2), k)

    def findings(self) -> Iterator[Finding]:
        raw = self.call(*self.inputs.arguments(self.form))
        found = self._shape(raw)
        if found:
            yield found
            if found.fault is not FAULTS["NOT_BACK"]:
                return
            self.transposed = True
        difference = float((raw - self.call(*self.inputs.arguments(self.form))).nan_to_num().abs().max())
        if difference > 0:
            yield Finding("The largest difference of two equal calls", f"{difference:.4g}", "0", FAULTS["RANDOM"])
            return
        bad = ~self.output(self.inputs).isfinite().all(-1).all(2).all(0)  # (T,)
        inverted = False
        if bad.any():
            negated = self.inputs._replace(mask=~self.inputs.mask)
            inverted = bool(self.output(negated).isfinite().all())
            fault = FAULTS["INVERTED_MASK"] if inverted else FAULTS["SELF_HIDDEN"]
            tokens = ", ".join(map(str, bad.nonzero()[:, 0].tolist()))
            sentence = "With a mask that hides nothing, the output is NaN for tokens"
            yield Finding(sentence, tokens, "none", None if bad.all() and not inverted else fault)
            if not inverted:
                return
            self.inputs = negated
        found = self._values() or self._merged() or self._places()
        if found:
            yield found
            return
        yield from self._scores()
        if self.factor > 0:
            yield from self._mask() if not inverted else ()
            yield from list(self._turned_values()) or self._rotation()

    def whole(self) -> Iterator[Finding]:
        """The whole formula, of other sizes; used if no stage was wrong."""
        inputs = Inputs.random(LARGE)
        right = inputs.right(self.conventions.attention_layout or LAYOUTS[0])
        value = self.call(*inputs.arguments(self.form)).reshape(right.shape).double()
        if not close(value, right):
            sentence = f"softmax(q k^T / sqrt(D)) v of xq {tuple(right.shape)}, random angles and mask; token 1, head 0"
            yield Finding(sentence, numbers(value[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]))

    def _shape(self, raw: Any) -> Finding | None:
        B, T, H, _, D = self.sizes
        right = (B, T, H, D)
        fault = FAULTS["NOT_RETURNED"] if raw is None else None
        if torch.is_tensor(raw) and not raw.is_complex():
            shape = tuple(raw.shape)
            if shape in (right, (B, T, H * D)):
                return None
            fault = FAULTS["AXES"] if raw.numel() == math.prod(right) else None
            for axis, (_, merged) in enumerate(MERGED):
                if shape in ((*right[:axis], *right[axis + 1 :]), (*right[:axis], 1, *right[axis + 1 :])):
                    fault = merged
            if shape in ((B, H, T, T), (B, T, H, T)):
                fault = FAULTS["WEIGHTS"]
            elif shape in ((B, H, T, D), (B, H, T * D)):
                fault = FAULTS["NOT_BACK"]
        return Finding("The output has the shape of xq", kind(raw), str(right), fault)

    def _values(self) -> Finding | None:
        """Whether the output is a sum of values, so that it is 0 for values of 0."""
        nothing = self.output(self.inputs._replace(v=0 * self.inputs.v))
        if nothing.abs().max() < 1e-4:
            return None
        fault = FAULTS["NOT_VALUES"] if close(nothing, self.output(self.inputs)) else FAULTS["RESIDUAL"]
        sentence = "With values of 0 the output is 0; token 0, head 0"
        return Finding(sentence, numbers(nothing[0, 0, 0, :4]), "0, 0, 0, 0", fault)

    def _merged(self) -> Finding | None:
        """Whether the output differs along each axis."""
        out = self.output(self.inputs)
        for axis, (what, fault) in enumerate(MERGED):
            if close(out, out.narrow(axis, 0, 1).expand_as(out)):
                return Finding(f"The number of different {what} in the output", "1", str(out.shape[axis]), fault)
        return None

    def _places(self) -> Finding | None:
        """Of which values and which query each output is computed."""
        reached = (self.weights(self.inputs).abs() > 1e-6).any(0)  # (T, H, K, T)
        if self.K > 1 and reached.any(2).sum(-1).max() == 1 and reached.any(3).all():
            sentence, yours = "The output of head 0 is computed from the values of", "all heads of the same token"
            return Finding(sentence, yours, "all tokens of head 0", FAULTS["OVER_HEADS"])
        places = torch.arange(self.T * self.H)
        q = torch.zeros(len(places) + 1, self.T, self.H, self.D)  # a row of the batch for each query, and one without
        q[places, places // self.H, places % self.H] = 3 * self.inputs.q[0].flatten(0, 1)
        w = self.weights(self.inputs._replace(q=q, k=self.inputs.k[:1].repeat(len(q), 1, 1, 1)))
        moved = ((w[:-1] - w[-1]).abs().amax((3, 4)) > 1e-4).flatten(1)  # (T H, T H)
        found = moved.int().argmax(1)
        if torch.equal(found, places) or not (moved.sum(1) == 1).all():
            return None  # several outputs of a query show an axis of the softmax, which the next stage names
        is_in_token = torch.equal(found // self.H, places // self.H)
        one = int((found != places).int().argmax())
        yours, own = (f"token {place // self.H}, head {place % self.H}" for place in (int(found[one]), one))
        fault = FAULTS["REGROUPED"] if is_in_token else FAULTS["VIEWED"]
        return Finding(f"The output of the query of {own} is at", yours, own, fault)

    def _scores(self) -> Iterator[Finding]:
        """Heads, axis of the softmax, product and factor of the scores."""
        weights = self.weights(self.inputs)
        w = weights.sum(3).transpose(1, 2)  # (B, H, T, T)
        sums = {-1: "keys", -2: "the queries", 1: "the heads", 0: "the batch", None: "no axis"}
        axis = next(axis for axis in sums if axis is None or (w.sum(axis) - 1).abs().max() < 1e-3)
        q, k = (x[:1].repeat(self.K, 1, 1, 1) for x in (self.inputs.q, self.inputs.k))
        for head in range(self.K):  # a row of the batch for each key head of which the tokens are reversed
            k[head, :, head] = k[head, :, head].flip(0)
        changes = self.weights_in_heads(self.inputs._replace(q=q, k=k)) - w[:1]  # (K, H, T, T)
        self.key_heads = (changes.abs().amax((2, 3)) > 1e-4).T
        what, factor = self._fit(w, -1 if axis is None else axis)
        right = torch.eye(self.K, dtype=torch.bool).repeat_interleave(self.H // self.K, 0)
        keys = self.key_heads if what == "q k^T" else right
        yield from head_findings(keys, (weights.abs() > 1e-6).any(4).any(0).any(0), right)
        if (w < -1e-6).any() or (axis in (None, -1) and not what):
            scores = self.products(self.inputs) / self.D**0.5
            sentence = f"The weights of token 0, head 0 for scores {numbers(scores[0, 0, 0])}"
            yours, expected = (numbers(x[0, 0, 0]) for x in (w, scores.softmax(-1)))
            is_plausible = axis == -1 and (w > SEEN).all()  # as with something added to the scores
            yield Finding(sentence, yours, expected, None if is_plausible else FAULTS["NO_SOFTMAX"])
            return
        if axis != -1:
            sentence = f"The sums over all keys of the weights of head 0, which sum to 1 over {sums[axis]}"
            fault = FAULTS["NOT_NORMALISED"] if axis is None else FAULTS["SOFTMAX"]
            yield Finding(sentence, numbers(w[0, 0].sum(-1)), ", ".join("1" * self.T), fault)
        if what != "q k^T":
            if what:
                yield Finding("The weights are the softmax of a multiple of", what, "q k^T", PRODUCTS[what][1])
            return
        expected = self.D**-0.5
        if abs(factor - expected) > 3e-3:
            fault = FAULTS["NEGATED"] if abs(factor + expected) < 3e-3 else FAULTS["SCALE"]
            fault = FAULTS["UNSCALED"] if abs(factor - 1) < 3e-3 else fault
            sentence = f"The factor of the scores q k^T (D {self.D}, {self.T} tokens, {self.H} heads)"
            yield Finding(sentence, f"{factor:.4g}", f"{expected:.4g}, which is 1 / sqrt(D)", fault)
        self.factor = factor if axis == -1 else 0.0

    def _fit(self, w: Tensor, axis: int) -> tuple[str, float]:
        """The product of which the logarithms of the weights are a multiple, up to a constant along the axis."""
        shown = w > SEEN
        logs = centered(w.clamp(min=1e-30).log(), shown, axis)
        for what in PRODUCTS:
            x = centered(self.products(self.inputs, what), shown, axis)
            factor = float((x * logs).sum() / (x * x).sum().clamp(min=1e-30))
            size = float(logs.abs().max())
            if size > 1e-6 and abs(factor) > 1e-9 and (factor * x - logs).abs().max() < 2e-3 * size + 1e-6:
                return what, factor
        return "", 0.0

    def _mask(self) -> Iterator[Finding]:
        """The weights under a mask if all scores are 0.7."""
        q, k = torch.ones_like(self.inputs.q), torch.full_like(self.inputs.k, 0.7 / (self.D * self.factor))
        w = self.weights_in_heads(self.inputs._replace(q=q, k=k, mask=MASK))
        right = (MASK / MASK.sum(1, keepdim=True)).expand_as(w)
        shown = (w > SEEN).any(0).any(0)  # (T, T)
        if close(w, right) and torch.equal(shown, MASK):
            return
        if shown.all():
            difference = float((w[0, 0, 0, 0] / w[0, 0, 0, 1]).log())
            fault = FAULTS["MASK_UNUSED"] if abs(difference) < 1e-2 else FAULTS["MASK_SMALL"]
            sentence = "The score of a hidden key minus that of a visible one, both 0.7 before the mask"
            yield Finding(sentence, f"{difference + 0.0:.3g}", "-inf, so that its weight is 0", fault)
            return
        t = int(((w - right).abs() < 1e-3).all(-1).all(0).all(0).int().argmin())
        fault = next((fault for fault, rule in MASKS if torch.equal(shown, rule(MASK))), FAULTS["OWN_MASK"])
        cells = "".join("1" if cell else "0" for cell in MASK[t])
        sentence = f"With {cells} in row {t} of the mask and equal scores, the weights of token {t}, head 0"
        yield Finding(sentence, numbers(w[0, 0, t]), numbers(right[0, 0, t]), fault)

    def _turned_values(self) -> Iterator[Finding]:
        """Whether values or output are rotated: the output if all keys have equal weights, with angles and without."""
        inputs = self.inputs._replace(q=0 * self.inputs.q, k=0 * self.inputs.k)
        out, right = (self.output(inputs._replace(angle=angle)) for angle in (self.random.angle, inputs.angle))
        if not close(out, right):
            fault = FAULTS["OUTPUT"] if close(out.norm(dim=-1), right.norm(dim=-1)) else FAULTS["VALUES"]
            sentence = "The output does not depend on the angles if q and k are 0; token 1, head 0"
            yield Finding(sentence, numbers(out[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]), fault)

    def _rotation(self) -> Iterator[Finding]:
        """How many times q and k are rotated, and by the angles of which rows; nothing if no such rotation fits."""
        inputs = self.inputs._replace(angle=self.random.angle)
        w = self.weights_in_heads(inputs)
        for in_q, in_k, layout in product(TURNS, TURNS, dict.fromkeys((self.conventions.layout, *LAYOUTS))):
            q = rotated(inputs.q, TURNS[in_q][0](inputs.angle), layout)
            k = rotated(inputs.k, TURNS[in_k][0](inputs.angle), layout)
            scores = self.factor * self.products(inputs._replace(q=q, k=k))
            if not close(scores.masked_fill(w <= SEEN, -math.inf).softmax(-1), w):
                continue
            if in_q == in_k == "once":
                self.conventions.attention_layout = layout
            else:
                fault = turn_fault(in_q, in_k)
                if in_q == in_k == "not at all" and self.sizes == SIZES[1]:  # angles of heads cancel in their scores
                    fault = FAULTS["HEADS"]
                sentence = "The scores depend on the angles of the table as if it rotated"
                yield Finding(sentence, f"q {in_q}, k {in_k}", "q once, k once", fault)
            return


def turn_fault(in_q: str, in_k: str) -> Fault | None:
    """The fault of rotating q and k in these ways, of which one is not once."""
    fault = TURNS_OF_ONE.get((in_q, in_k)) or TURNS[in_k if in_q == "once" else in_q][1]
    if fault and "once" in (in_q, in_k) and (in_q, in_k) not in TURNS_OF_ONE:
        return fault.only_in("k" if in_q == "once" else "q")
    return fault


def head_findings(keys: Tensor, values: Tensor, right: Tensor) -> Iterator[Finding]:
    """Which key/value heads the query heads use, (H, K)."""
    H, K = right.shape
    tiled = torch.eye(K, dtype=torch.bool).repeat(H // K, 1)
    for name, heads, other in (("keys", keys, values), ("values", values, keys)):
        if torch.equal(heads, right):
            continue
        fault = FAULTS["TILED"] if torch.equal(heads, tiled) else FAULTS["GROUPS"]
        fault = fault.only_in(name[0]) if torch.equal(other, right) else fault
        yours, expected = (
            ", ".join(" and ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in table)
            for table in (heads, right)
        )
        yield Finding(f"The heads of the {name} that query heads 0 .. {H - 1} use", yours, expected, fault)


def unit_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def centered(x: Tensor, shown: Tensor, axis: int) -> Tensor:
    """x minus its mean along the axis over the numbers that are shown; 0 for the others."""
    mean = (x * shown).sum(axis, keepdim=True) / shown.sum(axis, keepdim=True).clamp(min=1)
    return (x - mean) * shown
