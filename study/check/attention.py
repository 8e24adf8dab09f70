"""Measure ``attention``: one-hot values make the output the weights, and each stage is read from them in turn.

Scores, softmax and heads are measured with angles of 0 and a mask that shows everything; then the mask, then the
rotation, with what the earlier stages showed.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import faults
from .calls import Caller, Raised, kind
from .faults import Fault
from .forms import FORMS, Conventions, Form, angles, close, unit
from .rotation import LAYOUTS, numbers, random_angles, rotated
from .verdict import Finding

ARGUMENTS = ("xq", "xk", "xv", "freqs_cis", "mask")
FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
# B, T, H, K, D with K T <= D, so that a value can be one-hot in its head and token. The later sizes are for functions
# that raise for the first: with T equal to H, and with K equal to both.
SIZES = ((2, 3, 4, 2, 8), (2, 4, 4, 2, 8), (2, 3, 3, 3, 10))
LARGE = (2, 5, 4, 2, 8)
TURNS = (1, 0, 2, -1)  # how many times a vector may be rotated


class FusedCalls(TorchFunctionMode):
    """Records whether a function that computes attention as a whole is called."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in FUSED:
            self.name = name
        return func(*args, **(kwargs or {}))


def measure(call: Caller, conventions: Conventions) -> Iterator[Finding]:
    yield from call.order_finding("attention")
    fused, function = FusedCalls(), call.function

    def recorded(*given: Any) -> Any:
        with fused:
            return function(*given)

    call.function = recorded
    form = conventions.table or next((form for form in FORMS if not raises(call, form)), FORMS[0])
    sizes = next((sizes for sizes in SIZES if not raises(call, form, sizes)), SIZES[0])
    probes = Probes(call, form, sizes, conventions)
    found = list(probes.findings())
    yield from found or probes.whole()
    if fused.name:
        yield Finding("Fused attention functions called", fused.name, "none", faults.SDPA)
    yield from call.overwritten_finding()


def raises(call: Caller, form: Form, sizes: tuple[int, ...] = SIZES[0]) -> bool:
    return isinstance(call.attempt(*Inputs.random(sizes).arguments(form)), Raised)


class Inputs(NamedTuple):
    """Queries (B, T, H, D), keys and values (B, T, K, D), angles (T, D/2) and a mask (T, T)."""

    q: Tensor
    k: Tensor
    v: Tensor
    angle: Tensor
    mask: Tensor

    @classmethod
    def random(cls, sizes: tuple[int, ...], seed: int = 1) -> "Inputs":
        B, T, H, K, D = sizes
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(B, T, heads, D, generator=generator) for heads in (H, K, K))
        mask = torch.rand(T, T, generator=generator) < 0.6
        mask[torch.arange(T), torch.arange(T).flip(0)] = True  # each token sees at least one key
        return cls(q, k, v, torch.zeros(T, D // 2, dtype=torch.float64), mask)

    def arguments(self, form: Form) -> tuple[Any, ...]:
        return self.q, self.k, self.v, form.write(unit(self.angle)), self.mask

    def right(self, layout: str) -> Tensor:
        """softmax(q k^T / sqrt(D)) v over visible keys, q and k rotated: float64 (B, T, H, D)."""
        groups = self.q.shape[2] // self.k.shape[2]
        q, k = (rotated(x, self.angle, layout).transpose(1, 2) for x in (self.q, self.k))
        k, v = (x.repeat_interleave(groups, 1) for x in (k, self.v.double().transpose(1, 2)))
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~self.mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)


class Model(NamedTuple):
    """What the scores were found to be: factor times the products of these vectors, of these key heads."""

    factor: float
    what: str
    key_heads: list[int]


# Products that the scores may be, of q and k in heads, (B, H, T, D).
PRODUCTS = {
    "q k^T": lambda q, k: q @ k.mT,
    "k q^T": lambda q, k: k @ q.mT,
    "q q^T": lambda q, k: q @ q.mT,
    "k k^T": lambda q, k: k @ k.mT,
    "the cosine of q and k": lambda q, k: unit_length(q) @ unit_length(k).mT,
    "softmax(q k^T / sqrt(D))": lambda q, k: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1),
}
FAULTS_OF_PRODUCTS = {
    "k q^T": faults.SCORES_TRANSPOSED,
    "q q^T": faults.SCORES_OF_ONE,
    "k k^T": faults.SCORES_OF_ONE,
    "the cosine of q and k": faults.COSINES,
    "softmax(q k^T / sqrt(D))": faults.SOFTMAX_TWICE,
}


def unit_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


class Probes:
    def __init__(self, call: Caller, form: Form, sizes: tuple[int, ...], conventions: Conventions) -> None:
        self.call, self.form, self.sizes, self.conventions = call, form, sizes, conventions
        self.B, self.T, self.H, self.K, self.D = sizes
        self.inputs = Inputs.random(sizes)._replace(mask=torch.ones(self.T, self.T, dtype=torch.bool))
        self.transposed = False  # the output is (B, H, T, D)
        self.inverted = False  # the mask
        self.turned = ("neighbours", 0, False)  # layout, how many times the values are rotated, or else the output

    def output(self, inputs: Inputs) -> Tensor:
        """The output, float64 (B, T, H, D)."""
        if self.inverted:
            inputs = inputs._replace(mask=~inputs.mask)
        out = self.call(*inputs.arguments(self.form)).double()
        out = out.reshape(self.B, self.H, self.T, self.D).transpose(1, 2) if self.transposed else out
        return out.reshape(inputs.q.shape)

    def weights(self, inputs: Inputs) -> Tensor:
        """The weight of each token of each key/value head in the output: (B, T, H, K, T)."""
        one_hot = torch.zeros_like(inputs.v)
        for head, token in product(range(self.K), range(self.T)):
            one_hot[:, token, head, head * self.T + token] = 1
        layout, times, of_output = self.turned  # which is undone, to measure the rest
        if not of_output:
            one_hot = rotated(one_hot, -times * inputs.angle, layout).float()
        out = self.output(inputs._replace(v=one_hot))
        if of_output:
            out = rotated(out, -times * inputs.angle, layout)
        return out[..., : self.K * self.T].unflatten(-1, (self.K, self.T))

    def findings(self) -> Iterator[Finding]:
        raw = self.call(*self.inputs.arguments(self.form))
        found = self._shape(raw)
        if found:
            yield found
            if found.fault is not faults.NOT_BACK:
                return
            self.transposed = True
        again = self.call(*self.inputs.arguments(self.form))
        if not torch.equal(raw.nan_to_num(), again.nan_to_num()):
            difference = float((raw - again).abs().max())
            yield Finding("The largest difference of two equal calls", f"{difference:.4g}", "0", faults.RANDOM)
            return
        out = self.output(self.inputs)
        if not out.isfinite().all():
            bad = ~out.isfinite().all(-1).all(2).all(0)  # (T,)
            hidden = self.inputs._replace(mask=~self.inputs.mask)
            if not self.output(hidden).isfinite().all():
                tokens = ", ".join(map(str, bad.nonzero()[:, 0].tolist()))
                fault = faults.SELF_HIDDEN if tokens == "0" else None
                yield Finding("With a mask that hides nothing, the output is NaN for tokens", tokens, "none", fault)
                return
            sentence = "A mask that is True everywhere hides nothing, so the output is finite; it is"
            yield Finding(sentence, "NaN", "finite", faults.INVERTED_MASK)
            self.inverted = True
        found = self._values() or self._origin()
        if found:
            yield found
            return
        model = None
        for step in self._scores():
            if isinstance(step, Model):
                model = step
            else:
                yield step
        value_finding = self._rotated_values()
        if model is not None:
            yield from self._mask(model)
            yield from self._rotation(model)
        if value_finding:
            yield value_finding

    def whole(self) -> Iterator[Finding]:
        """The whole formula, of other sizes; used if no stage was wrong."""
        inputs = Inputs.random(LARGE, seed=2)
        inputs = inputs._replace(angle=angles(LARGE[4], 20 + LARGE[1], 500.0)[20:])
        value = self.call(*inputs.arguments(self.form))
        layout = self.conventions.attention_layout or LAYOUTS[0]
        right = inputs.right(layout)
        found = (
            value.double().reshape(right.shape) if torch.is_tensor(value) and value.numel() == right.numel() else None
        )
        if found is None or not close(found, right):
            yours = kind(value) if found is None else numbers(found[0, 1, 0, :4])
            sentence = (
                f"softmax(q k^T / sqrt(D)) v of xq {tuple(inputs.q.shape)}, random angles and mask; token 1, head 0"
            )
            yield Finding(sentence, yours, numbers(right[0, 1, 0, :4]))

    def _shape(self, raw: Any) -> Finding | None:
        B, T, H, _, D = self.sizes
        sentence, right = "The output has the shape of xq", (B, T, H, D)
        if not torch.is_tensor(raw) or raw.is_complex():
            return Finding(sentence, kind(raw), str(right), faults.NOT_RETURNED if raw is None else None)
        shape = tuple(raw.shape)
        if shape in (right, (B, T, H * D)):
            return None
        fault = None
        if shape in ((B, H, T, D), (B, H, T * D)):
            fault = faults.NOT_BACK
        elif shape[-1:] == (T,) and raw.ndim == 4 and T != D:
            fault = faults.WEIGHTS
        elif shape in ((B, T, D), (B, T, 1, D)):
            fault = faults.ONE_HEAD_RETURNED
        elif shape in ((1, T, H, D), (T, H, D)):
            fault = faults.SOME_BATCH
        elif shape in ((B, 1, H, D), (B, H, D)):
            fault = faults.SOME_TOKENS
        elif raw.numel() == B * T * H * D:
            fault = faults.AXES
        return Finding(sentence, str(shape), str(right), fault)

    def _values(self) -> Finding | None:
        """Whether the output is a sum of values: nothing for values of 0, and doubled for doubled values."""
        nothing = self.output(self.inputs._replace(v=torch.zeros_like(self.inputs.v)))
        if nothing.abs().max() < 1e-4:
            return None
        fault = None
        groups = self.H // self.K
        q, k = self.inputs.q.double(), self.inputs.k.double().repeat_interleave(groups, 2)
        unweighted = self.inputs._replace(q=torch.zeros_like(self.inputs.q), v=torch.zeros_like(self.inputs.v))
        at_rest = self.output(unweighted)
        if close(nothing, q):
            fault = faults.RESIDUAL
        elif close(at_rest, k.mean(1, keepdim=True).expand_as(at_rest)):
            fault = faults.KEYS_MIXED
        elif self._mixes(nothing, q):
            fault = faults.QUERIES_MIXED
        elif self._mixes(nothing, k):
            fault = faults.KEYS_MIXED
        where = nothing[0, 0, 0, :4]
        return Finding("With values of 0 the output is 0; token 0, head 0", numbers(where), "0, 0, 0, 0", fault)

    def _mixes(self, out: Tensor, x: Tensor) -> bool:
        """Whether each output is a weighted sum of the vectors x of its head, (B, T, H, D)."""
        basis = x.permute(0, 2, 3, 1)  # (B, H, D, T)
        target = out.permute(0, 2, 3, 1)
        found = torch.linalg.lstsq(basis, target).solution
        return bool((basis @ found - target).abs().max() < 1e-3)

    def _origin(self) -> Finding | None:
        """Which outputs a query reaches: its own, unless the axes are mixed."""
        zero = torch.zeros_like(self.inputs.q)
        at_rest = self.weights(self.inputs._replace(q=zero))
        places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for t, h in product(range(self.T), range(self.H)):
            q = zero.clone()
            q[:, t, h] = self.inputs.q[:, t, h] * 3
            moved = (self.weights(self.inputs._replace(q=q)) - at_rest).abs().amax((0, 3, 4)) > 1e-4  # (T, H)
            places[t, h] = [tuple(place) for place in moved.nonzero().tolist()]
        out = self.output(self.inputs)
        if close(out, out[:, :, :1].expand_as(out)) and self.H > 1:
            return Finding("The number of different heads in the output", "1", str(self.H), faults.ONE_HEAD_RETURNED)
        if close(out, out[:1].expand_as(out)):
            return Finding("The number of different rows of the batch", "1", str(self.B), faults.SOME_BATCH)
        if close(out, out[:, :1].expand_as(out)):
            return Finding("The number of different tokens in the output", "1", str(self.T), faults.SOME_TOKENS)
        if any(len(found) != 1 for found in places.values()):
            return None  # an axis of the softmax or of the scores, which the next stage names
        wrong = [(query, found[0]) for query, found in places.items() if found[0] != query]
        if not wrong:
            return None
        fault = faults.VIEWED
        values = at_rest.abs().amax((0, 3))  # (T, H, T): the tokens whose values reach each output
        if all((values[found[0]] > 1e-6).nonzero().tolist() == [[t]] for (t, _), found in places.items()):
            fault = faults.OVER_HEADS
        elif all(found[0][0] == t for (t, _), found in places.items()):
            fault = faults.REGROUPED
        elif all(found[0] == (h, t) for (t, h), found in places.items()):
            fault = faults.NOT_BACK
        (t, h), (token, head) = wrong[0]
        sentence = f"The output of the query of token {t}, head {h} is at"
        return Finding(sentence, f"token {token}, head {head}", f"token {t}, head {h}", fault)

    def _scores(self) -> Iterator[Finding | Model]:
        """Heads, axis of the softmax, and scores, with a mask that hides nothing: the findings and the model."""
        inputs = self.inputs
        weights = self.weights(inputs)  # (B, T, H, K, T)
        others = ~torch.eye(self.T, dtype=torch.bool)
        mass = weights.abs().sum(3)  # (B, T, H, T)
        if mass.transpose(2, 3)[:, others].max() < 1e-6:
            alone = [weights[:, t, :, :, t] for t in range(self.T)]
            if all((x > 1e-6).all() for x in alone) and self.K > 1:
                sentence = "The output of head 0 is computed from the values of"
                yield Finding(sentence, "all heads of the same token", "all tokens of head 0", faults.OVER_HEADS)
                return
        value_heads = heads_of(weights.abs().sum((0, 1, 4)))  # (H, K)
        w = weights.sum(3).transpose(1, 2)  # (B, H, T, T)
        right = [h // (self.H // self.K) for h in range(self.H)]
        found, model = self._softmax(w, inputs)
        key_heads = model.key_heads if model else right
        yield from head_findings(key_heads, value_heads, right)
        yield from found
        if model:
            yield model

    def _softmax(self, w: Tensor, inputs: Inputs) -> tuple[list[Finding], Model | None]:
        """The findings about weights (B, H, T, T) that are a function of the scores, and the model of the scores."""
        expected = ", ".join("1" * self.T)
        sums = [("keys", -1, None), ("queries", -2, faults.SOFTMAX), ("heads", 1, faults.SOFTMAX_HEADS)]
        sums.append(("batch", 0, faults.SOFTMAX))
        positive = w.clamp(min=0).isfinite() & (w > 1e-12)
        axis = next((each for each in sums if (w.sum(each[1]) - 1).abs().max() < 1e-3), None)
        logs = w.clamp(min=1e-30).log()
        model = self._fit(logs, positive, inputs, axis[1] if axis else -1)
        row = numbers(w[0, 0].sum(-1))
        found: list[Finding] = []
        sentence = "The weights of a query over all keys sum to 1; those of head 0"
        if (w < -1e-6).any() or model is None or not positive.any(-1).all():
            return [self._no_softmax(w, inputs)], None
        if axis is None:
            scale = w.sum(-1)
            is_constant = (scale - scale.mean()).abs().max() < 1e-3
            fault: Fault | None = faults.MEAN if is_constant else faults.NOT_NORMALISED
            found.append(Finding(sentence, row, expected, fault))
        elif axis[0] != "keys":
            fault = axis[2]
            if axis[0] == "queries" and model.what == "k q^T":
                fault, model = faults.WEIGHTS_TRANSPOSED, model._replace(what="q k^T")
            found.append(Finding(f"{sentence}, which sum to 1 over the {axis[0]} instead", row, expected, fault))
            if abs(model.factor - self.D**-0.5) < 1e-2:
                return found, None
        found += self._factor(model)
        is_usable = axis is not None and axis[0] == "keys" and model.what == "q k^T" and model.factor > 0
        return found, model if is_usable else None

    def _factor(self, model: Model) -> list[Finding]:
        if model.what != "q k^T":
            fault = FAULTS_OF_PRODUCTS[model.what]
            return [Finding("The weights are the softmax of a multiple of", model.what, "q k^T", fault)]
        right = self.D**-0.5
        if abs(model.factor - right) < 3e-3:
            return []
        fault = faults.SCALE
        if abs(model.factor - 1) < 3e-3:
            fault = faults.UNSCALED
        elif abs(model.factor + right) < 3e-3:
            fault = faults.NEGATED
        sentence = f"The factor of the scores q k^T (D {self.D}, {self.T} tokens, {self.H} heads)"
        return [Finding(sentence, f"{model.factor:.4g}", f"{right:.4g}, which is 1 / sqrt(D)", fault)]

    def _no_softmax(self, w: Tensor, inputs: Inputs) -> Finding:
        scores = self._in_heads(inputs, [h // (self.H // self.K) for h in range(self.H)], "q k^T") / self.D**0.5
        right = scores.softmax(-1)
        fault: Fault | None = None
        order = scores.flatten().argsort()
        rows = scores / w
        if close(w.exp().sum(-1), torch.ones(w.shape[:3])):
            fault = faults.LOGARITHM
        elif (w.flatten()[order].diff() > -1e-6).all() or (w.flatten()[order].diff() < 1e-6).all():
            fault = faults.NO_SOFTMAX  # a function of each score alone
        elif ((w - 1).abs() < 1e-6).sum(-1).eq(1).all() and (w.sum(-1) - 1).abs().max() < 1e-6:
            fault = faults.NO_SOFTMAX  # all weight for the largest score
        elif ((rows - rows[..., :1]).abs() < 1e-2 * rows.abs()).all():
            fault = faults.NO_SOFTMAX  # each score divided by the sum
        sentence = "The weights of token 0, head 0 for scores " + numbers(scores[0, 0, 0])
        return Finding(sentence, numbers(w[0, 0, 0]), numbers(right[0, 0, 0]), fault)

    def _in_heads(self, inputs: Inputs, key_heads: list[int], what: str) -> Tensor:
        """The products of q and k, (B, H, T, T)."""
        q = inputs.q.double().transpose(1, 2)
        k = inputs.k.double()[:, :, key_heads].transpose(1, 2)
        return PRODUCTS[what](q, k)

    def _fit(self, logs: Tensor, positive: Tensor, inputs: Inputs, axis: int) -> Model | None:
        """The product of which the logarithms of the weights are a multiple, up to a constant along the axis."""
        averaged = inputs._replace(k=inputs.k.mean(2, keepdim=True).expand_as(inputs.k))
        for what, given in product(PRODUCTS, (inputs, averaged)):
            factors, heads = [], []
            for h in range(self.H):
                for head in range(self.K):
                    x = self._in_heads(given, [head] * self.H, what)
                    if axis == 1:
                        x = self._in_heads(given, [g // (self.H // self.K) for g in range(self.H)], what)
                    shown = positive if axis == 1 else positive[:, h : h + 1]
                    y = logs if axis == 1 else logs[:, h : h + 1]
                    x = x if axis == 1 else x[:, h : h + 1]
                    factor = slope(centered(x, shown, axis), centered(y, shown, axis))
                    if factor is not None:
                        factors.append(factor)
                        heads.append(head if given is inputs else -1)
                        break
                else:
                    break
            if len(factors) == self.H and max(factors) - min(factors) < 1e-2 * max(abs(x) for x in factors) + 1e-6:
                if axis == 1:
                    heads = [h // (self.H // self.K) for h in range(self.H)]
                return Model(sum(factors) / self.H, what, heads)
        return None

    def _mask(self, model: Model) -> Iterator[Finding]:
        """Which keys have weight under three masks, and the scores of those that should have none."""
        all_true = torch.ones(self.T, self.T, dtype=torch.bool)
        masks = [Inputs.random(self.sizes, seed).mask for seed in (1, 4, 6)]
        masks = [all_true, all_true.tril(), *masks]
        heads = [max(head, 0) for head in model.key_heads]
        scores = self._in_heads(self.inputs, heads, "q k^T") * model.factor  # (B, H, T, T)
        seen = [self.weights(self.inputs._replace(mask=mask)).sum(3).transpose(1, 2) for mask in masks]
        for mask, w in zip(masks, seen):
            shown = (w.abs() > 1e-12).any(0).any(0)  # (T, T)
            bad = ~w.isfinite().all(-1).all(0).all(0)  # (T,)
            right = scores.masked_fill(~mask, -math.inf).softmax(-1)
            if not bad.any() and close(w, right) and not (shown & ~mask).any():
                continue
            yield self._mask_finding(masks, seen, scores, mask, w, shown, bad)
            return

    def _mask_finding(
        self,
        masks: list[Tensor],
        seen: list[Tensor],
        scores: Tensor,
        mask: Tensor,
        w: Tensor,
        shown: Tensor,
        bad: Tensor,
    ) -> Finding:
        t = int(((shown != mask).any(1) | bad).nonzero()[0]) if ((shown != mask).any(1) | bad).any() else 0
        text = "".join("1" if cell else "0" for cell in mask[t])
        sentence = f"With {text} in row {t} of the mask, the keys with weight for token {t}"
        yours, expected = (", ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in (shown[t], mask[t]))
        if bad.any():
            hides = ~mask.all(1)
            fault = faults.MASK_AFTER if torch.equal(bad, hides) else None
            return Finding(f"{sentence}; the weights", "NaN", expected, self._mask_fault(masks, seen) or fault)
        if torch.equal(shown, mask):  # the right keys, with other weights
            after = scores.softmax(-1) * mask
            fault = faults.MASK_AFTER if close(w, after) else None
            rows = ~mask.all(1)
            t = int(rows.nonzero()[0]) if rows.any() else 0
            right = scores.masked_fill(~mask, -math.inf).softmax(-1)
            sentence = f"The weights of the keys that token {t} sees sum to 1; their sum"
            if not close(w.sum(-1), torch.ones_like(w.sum(-1))):
                return Finding(sentence, numbers(w[0, 0, t].sum()[None]), "1", fault)
            return Finding(f"The weights of token {t}, head 0", numbers(w[0, 0, t]), numbers(right[0, 0, t]), fault)
        if not shown.all() or close(w, scores.softmax(-1)):
            fault = self._mask_fault(masks, seen)
            return Finding(sentence, yours, expected, fault or faults.OWN_MASK)
        return self._hidden_score(masks, seen, scores)

    def _mask_fault(self, masks: list[Tensor], seen: list[Tensor]) -> Fault | None:
        """The rule that gives the keys with weight from the mask, the same for all masks."""
        own = torch.eye(self.T, dtype=torch.bool)
        rules: list[tuple[Fault, Callable[[Tensor], Tensor]]] = [
            (faults.MASK_UNUSED, torch.ones_like),
            (faults.INVERTED_MASK, torch.logical_not),
            (faults.TRANSPOSED_MASK, lambda mask: mask.T),
            (faults.SELF_HIDDEN, lambda mask: mask & ~own),
            (faults.SELF_HIDDEN, lambda mask: mask.tril(-1)),
        ]
        for fault, rule in rules:
            if all(agrees(w, rule(mask)) for mask, w in zip(masks, seen)):
                return fault
        return None

    def _hidden_score(self, masks: list[Tensor], seen: list[Tensor], scores: Tensor) -> Finding:
        """Hidden keys have weight: the score that gives them this weight."""
        hidden, own = [], []
        for mask, w in zip(masks, seen):
            implied = w.clamp(min=1e-30).log()
            for t in range(self.T):
                if mask[t].any() and not mask[t].all():
                    shift = (scores - implied)[:, :, t, mask[t]].mean(-1, keepdim=True)
                    hidden.append((implied[:, :, t, ~mask[t]] + shift).flatten())
                    own.append(scores[:, :, t, ~mask[t]].flatten())
        found, right = torch.cat(hidden), torch.cat(own)
        sentence = "The score of hidden keys"
        if (found - found.mean()).abs().max() < 1e-2:
            value = float(found.mean())
            fault = faults.MASK_ZERO if abs(value) < 1e-2 else faults.MASK_SMALL
            return Finding(sentence, f"{value + 0.0:.3g}", "-inf, so that their weight is 0", fault)
        change = found - right
        if (change - change.mean()).abs().max() < 1e-2:
            sentence = "What the mask adds to the score of a hidden key, compared with a visible one"
            return Finding(sentence, f"{float(change.mean()):.3g}", "-inf, so that its weight is 0", faults.MASK_ADDED)
        return Finding(f"{sentence}; those of the first", numbers(found[:4]), "-inf")

    def _rotation(self, model: Model) -> Iterator[Finding]:
        """How many times q and k are rotated, and by the angles of which rows."""
        inputs = self.inputs._replace(angle=random_angles(1, self.T, self.D)[0] * 0.8)
        w = self.weights(inputs).sum(3).transpose(1, 2)
        positive = w > 1e-9
        heads = [max(head, 0) for head in model.key_heads]
        layouts = list(dict.fromkeys((self.conventions.layout, *LAYOUTS)))
        orders = {"its own": torch.arange(self.T), "the reverse order": torch.arange(self.T).flip(0)}
        orders["the next token"] = torch.arange(self.T).roll(-1)
        orders["the token before"] = torch.arange(self.T).roll(1)
        for row, layout in product(orders.items(), layouts):
            for (in_q, in_k), (turns_q, turns_k) in product(
                ((True, True), (True, False), (False, True)), product(TURNS, TURNS)
            ):
                angle = inputs.angle[row[1]]
                q = rotated(inputs.q, turns_q * (angle if in_q else inputs.angle), layout)
                k = rotated(inputs.k, turns_k * (angle if in_k else inputs.angle), layout)
                x = self._in_heads(inputs._replace(q=q, k=k), heads, "q k^T")
                factor = slope(centered(x, positive, -1), centered(w.clamp(min=1e-30).log(), positive, -1))
                if factor is None or abs(factor - model.factor) > 1e-2 * abs(model.factor):
                    continue
                if (turns_q, turns_k) == (1, 1) and row[0] == "its own":
                    self.conventions.attention_layout = layout
                    return
                yield self._rotation_finding((turns_q, turns_k), row[0], in_q, in_k)
                return
        along_heads = Inputs(*inputs)
        if self.T == self.H:
            q = rotated(along_heads.q.transpose(1, 2), inputs.angle, layouts[0]).transpose(1, 2)
            for rows in (inputs.angle[: self.K], inputs.angle[:: self.H // self.K]):
                k = rotated(along_heads.k.transpose(1, 2), rows, layouts[0]).transpose(1, 2)
                x = self._in_heads(inputs._replace(q=q, k=k), heads, "q k^T")
                if slope(centered(x, positive, -1), centered(w.clamp(min=1e-30).log(), positive, -1)) is not None:
                    sentence = "The rows of freqs_cis that rotate queries and keys follow"
                    yield Finding(sentence, "the heads", "the tokens", faults.HEADS)
                    return
        right = self._in_heads(
            inputs._replace(
                q=rotated(inputs.q, inputs.angle, layouts[0]), k=rotated(inputs.k, inputs.angle, layouts[0])
            ),
            heads,
            "q k^T",
        )
        expected = (right * model.factor).softmax(-1)
        sentence = "The weights of token 1, head 0 with the angles of the table, right for angles of 0"
        yield Finding(sentence, numbers(w[0, 0, 1]), numbers(expected[0, 0, 1]))

    def _rotation_finding(self, turns: tuple[int, int], row: str, in_q: bool, in_k: bool) -> Finding:
        if row != "its own":
            fault = faults.ROW_ORDER if row == "the reverse order" else faults.ROW_SHIFTED
            fault = fault if in_q and in_k else fault.only_in("q" if in_q else "k")
            return Finding("A token is rotated by the row of freqs_cis of", row, "its own", fault)
        known = {
            (0, 0): faults.UNROTATED,
            (1, 0): faults.ONLY_Q_ROTATED,
            (0, 1): faults.ONLY_K_ROTATED,
            (2, 2): faults.TWICE,
            (2, 1): faults.TWICE.only_in("q"),
            (1, 2): faults.TWICE.only_in("k"),
            (1, -1): faults.OPPOSITE,
            (-1, 1): faults.OPPOSITE,
            (-1, -1): faults.SIGN,
        }
        yours = f"q {turns[0]} times, k {turns[1]} times"
        if turns == (0, 0) and self.sizes == SIZES[2]:
            # By the row of its head, equal for the q and the k of a score. Not rotating would not raise for SIZES[0].
            sentence = "The scores depend on the table, for as many heads as tokens"
            return Finding(sentence, "no: the angles of q and k cancel", "yes", faults.HEADS)
        return Finding(
            "q and k are rotated by the angles of the table", yours, "once each", known.get(turns, faults.TWICE)
        )

    def _rotated_values(self) -> Finding | None:
        """How many times values and output are rotated, with equal weights for all keys."""
        zero = torch.zeros_like(self.inputs.q)
        inputs = self.inputs._replace(q=zero, k=torch.zeros_like(self.inputs.k))
        w = self.weights(inputs)  # (B, T, H, K, T)
        inputs = inputs._replace(angle=random_angles(1, self.T, self.D)[0])
        out = self.output(inputs)
        for layout, times, of_output in product(LAYOUTS, TURNS, (False, True)):
            v = inputs.v.double() if of_output else rotated(inputs.v, times * inputs.angle, layout)
            mixed = torch.einsum("bthks,bskd->bthd", w, v)
            mixed = rotated(mixed, times * inputs.angle, layout) if of_output else mixed
            if not close(out, mixed):
                continue
            if times == 0:
                return None
            self.turned = (layout, times, of_output)
            fault = faults.OUTPUT if of_output else faults.VALUES
            what = "The output is" if of_output else "Values are"
            return Finding(f"{what} rotated by the angles of the table", f"{times} times", "not at all", fault)
        sentence = "The output does not depend on the angles if q and k are 0; token 1, head 0"
        right = torch.einsum("bthks,bskd->bthd", w, inputs.v.double())
        if close(out, right):
            return None
        return Finding(sentence, numbers(out[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]))


def agrees(w: Tensor, mask: Tensor) -> bool:
    """Whether the keys of the mask have weight and no others; a row without any may be NaN."""
    shown = (w.abs() > 1e-7).any(0).any(0)
    rows = mask.any(1)
    return torch.equal(shown[rows], mask[rows])


def heads_of(mass: Tensor) -> list[int]:
    """For each query head the key/value head with all the mass, (H, K); -1 if several have."""
    share = mass / mass.sum(1, keepdim=True)
    return [int(row.argmax()) if row.max() > 0.999 else -1 for row in share]


def head_findings(keys: list[int], values: list[int], right: list[int]) -> Iterator[Finding]:
    """Which key/value heads the query heads use."""
    tiled = [h % (max(right) + 1) for h in range(len(right))]
    tables: list[tuple[list[int], Fault]] = [(tiled, faults.TILED), (right[::-1], faults.HEADS_REVERSED)]
    wrong = [name for name, heads in (("keys", keys), ("values", values)) if heads != right]
    for name in wrong:
        heads = keys if name == "keys" else values
        fault = next((fault for order, fault in tables if heads == order), None)
        if fault is None and len(set(heads)) == 1:
            fault = faults.ONE_GROUP
        if fault is not None and len(wrong) == 1:
            only = {"keys": faults.TILED_KEYS, "values": faults.TILED_VALUES}[name]
            fault = only if fault is faults.TILED else fault.only_in(name[0])
        yours = ", ".join("all" if head < 0 else str(head) for head in heads)
        sentence = f"The heads of the {name} that query heads 0 .. {len(right) - 1} use"
        yield Finding(sentence, yours, ", ".join(map(str, right)), fault)


def centered(x: Tensor, shown: Tensor, axis: int) -> Tensor:
    """x minus its mean along the axis over the numbers that are shown; 0 for the others."""
    shown = shown.expand(x.shape)
    mean = (x * shown).sum(axis, keepdim=True) / shown.sum(axis, keepdim=True).clamp(min=1)
    return (x - mean) * shown


def slope(x: Tensor, y: Tensor) -> float | None:
    """The factor of y = factor x; None if there is none."""
    factor = float((x * y).sum() / (x * x).sum().clamp(min=1e-30))
    if not math.isfinite(factor) or abs(factor) < 1e-9 or y.abs().max() < 1e-6:
        return None
    return factor if float((factor * x - y).abs().max()) < 2e-3 * float(y.abs().max()) + 1e-6 else None
