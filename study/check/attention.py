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

from .calls import Caller, Raised, kind
from .faults import FAULTS, Fault
from .forms import FORMS, Conventions, Form, angles, close, unit
from .rotation import LAYOUTS, random_angles, rotated
from .verdict import Finding, numbers

ARGUMENTS = ("xq", "xk", "xv", "freqs_cis", "mask")
FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
# B, T, H, K, D with K T <= D, so that a value can be one-hot in its head and token. The later sizes are for functions
# that raise for the first: with T equal to H, and with K equal to both.
SIZES = ((2, 3, 4, 2, 8), (2, 4, 4, 2, 8), (2, 3, 3, 3, 10))
LARGE = (2, 5, 4, 2, 8)


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
        yield Finding("Fused attention functions called", fused.name, "none", FAULTS["SDPA"])
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


# Products that the scores may be, of q and k in heads, (B, H, T, D), and what is wrong with them.
PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Fault | None]] = {
    "q k^T": (lambda q, k: q @ k.mT, None),
    "k q^T": (lambda q, k: k @ q.mT, FAULTS["SCORES_TRANSPOSED"]),
    "q q^T": (lambda q, k: q @ q.mT, FAULTS["SCORES_OF_ONE"]),
    "k k^T": (lambda q, k: k @ k.mT, FAULTS["SCORES_OF_ONE"]),
    "the cosine of q and k": (lambda q, k: unit_length(q) @ unit_length(k).mT, FAULTS["COSINES"]),
    "softmax(q k^T / sqrt(D))": (
        lambda q, k: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1),
        FAULTS["SOFTMAX_TWICE"],
    ),
}


def unit_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


class Probes:
    def __init__(self, call: Caller, form: Form, sizes: tuple[int, ...], conventions: Conventions) -> None:
        self.call, self.form, self.sizes, self.conventions = call, form, sizes, conventions
        self.B, self.T, self.H, self.K, self.D = sizes
        self.groups = [h // (self.H // self.K) for h in range(self.H)]  # the right key/value heads
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

    def weights_in_heads(self, inputs: Inputs) -> Tensor:
        """The weights, summed over key/value heads: (B, H, T, T)."""
        return self.weights(inputs).sum(3).transpose(1, 2)

    def findings(self) -> Iterator[Finding]:
        raw = self.call(*self.inputs.arguments(self.form))
        found = self._shape(raw)
        if found:
            yield found
            if found.fault is not FAULTS["NOT_BACK"]:
                return
            self.transposed = True
        again = self.call(*self.inputs.arguments(self.form))
        if not torch.equal(raw.nan_to_num(), again.nan_to_num()):
            difference = float((raw - again).abs().max())
            yield Finding("The largest difference of two equal calls", f"{difference:.4g}", "0", FAULTS["RANDOM"])
            return
        bad = ~self.output(self.inputs).isfinite().all(-1).all(2).all(0)  # (T,)
        if bad.any():
            self.inverted = bool(self.output(self.inputs._replace(mask=~self.inputs.mask)).isfinite().all())
            tokens = ", ".join(map(str, bad.nonzero()[:, 0].tolist()))
            fault = FAULTS["SELF_HIDDEN"] if tokens == "0" else None
            fault = FAULTS["INVERTED_MASK"] if self.inverted else fault
            yield Finding("With a mask that hides nothing, the output is NaN for tokens", tokens, "none", fault)
            if not self.inverted:
                return
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
        right = inputs.right(self.conventions.attention_layout or LAYOUTS[0])
        sentence = f"softmax(q k^T / sqrt(D)) v of xq {tuple(inputs.q.shape)}, random angles and mask"
        if not torch.is_tensor(value) or value.numel() != right.numel():
            yield Finding(f"{sentence}; the shape", kind(value), kind(right))
        elif not close(value.double().reshape(right.shape), right):
            found = value.reshape(right.shape)
            yield Finding(f"{sentence}; token 1, head 0", numbers(found[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]))

    def _shape(self, raw: Any) -> Finding | None:
        B, T, H, _, D = self.sizes
        sentence, right = "The output has the shape of xq", (B, T, H, D)
        if not torch.is_tensor(raw) or raw.is_complex():
            return Finding(sentence, kind(raw), str(right), FAULTS["NOT_RETURNED"] if raw is None else None)
        shape = tuple(raw.shape)
        if shape in (right, (B, T, H * D)):
            return None
        named = {
            (B, H, T, D): FAULTS["NOT_BACK"],
            (B, H, T * D): FAULTS["NOT_BACK"],
            (B, H, T, T): FAULTS["WEIGHTS"],
            (B, T, H, T): FAULTS["WEIGHTS"],
            (B, T, D): FAULTS["ONE_HEAD_RETURNED"],
            (B, T, 1, D): FAULTS["ONE_HEAD_RETURNED"],
            (1, T, H, D): FAULTS["SOME_BATCH"],
            (T, H, D): FAULTS["SOME_BATCH"],
            (B, 1, H, D): FAULTS["SOME_TOKENS"],
            (B, H, D): FAULTS["SOME_TOKENS"],
        }
        fault = named.get(shape)
        if fault is None and raw.numel() == B * T * H * D:
            fault = FAULTS["AXES"]
        return Finding(sentence, str(shape), str(right), fault)

    def _values(self) -> Finding | None:
        """Whether the output is a sum of values, so that it is 0 for values of 0."""
        inputs = self.inputs._replace(v=torch.zeros_like(self.inputs.v))
        nothing = self.output(inputs)
        if nothing.abs().max() < 1e-4:
            return None
        q, k = inputs.q.double(), inputs.k.double()[:, :, self.groups]
        at_rest = self.output(inputs._replace(q=torch.zeros_like(inputs.q)))
        fault = None
        if close(nothing, q):
            fault = FAULTS["RESIDUAL"]
        elif close(at_rest, k.mean(1, keepdim=True).expand_as(at_rest)) or self._mixes(nothing, k):
            fault = FAULTS["KEYS_MIXED"]
        elif self._mixes(nothing, q):
            fault = FAULTS["QUERIES_MIXED"]
        where = nothing[0, 0, 0, :4]
        return Finding("With values of 0 the output is 0; token 0, head 0", numbers(where), "0, 0, 0, 0", fault)

    def _mixes(self, out: Tensor, x: Tensor) -> bool:
        """Whether each output is a weighted sum of the vectors x of its head, (B, T, H, D)."""
        basis, target = x.permute(0, 2, 3, 1), out.permute(0, 2, 3, 1)  # (B, H, D, T)
        return bool((basis @ torch.linalg.lstsq(basis, target).solution - target).abs().max() < 1e-3)

    def _origin(self) -> Finding | None:
        """Which outputs a query reaches: its own, unless the axes are mixed."""
        out = self.output(self.inputs)
        for axis, what, fault in (
            (2, "heads", FAULTS["ONE_HEAD_RETURNED"]),
            (0, "rows of the batch", FAULTS["SOME_BATCH"]),
            (1, "tokens", FAULTS["SOME_TOKENS"]),
        ):
            if close(out, out.narrow(axis, 0, 1).expand_as(out)):
                return Finding(f"The number of different {what} in the output", "1", str(out.shape[axis]), fault)
        zero = torch.zeros_like(self.inputs.q)
        at_rest = self.weights(self.inputs._replace(q=zero))
        places: dict[tuple[int, int], tuple[int, int]] = {}
        for t, h in product(range(self.T), range(self.H)):
            q = zero.clone()
            q[:, t, h] = self.inputs.q[:, t, h] * 3
            moved = (self.weights(self.inputs._replace(q=q)) - at_rest).abs().amax((0, 3, 4)) > 1e-4  # (T, H)
            found = moved.nonzero().tolist()
            if len(found) != 1:
                return None  # an axis of the softmax or of the scores, which the next stage names
            places[t, h] = (found[0][0], found[0][1])
        wrong = [(query, place) for query, place in places.items() if place != query]
        if not wrong:
            return None
        fault = FAULTS["VIEWED"]
        values = at_rest.abs().amax((0, 3))  # (T, H, T): the tokens whose values reach each output
        if all((values[place] > 1e-6).nonzero().tolist() == [[t]] for (t, _), place in places.items()):
            fault = FAULTS["OVER_HEADS"]
        elif all(place[0] == t for (t, _), place in places.items()):
            fault = FAULTS["REGROUPED"]
        elif all(place == (h, t) for (t, h), place in places.items()):
            fault = FAULTS["NOT_BACK"]
        (t, h), (token, head) = wrong[0]
        sentence = f"The output of the query of token {t}, head {h} is at"
        return Finding(sentence, f"token {token}, head {head}", f"token {t}, head {h}", fault)

    def _scores(self) -> Iterator[Finding | Model]:
        """Heads, axis of the softmax, and scores, with a mask that hides nothing: the findings and the model."""
        weights = self.weights(self.inputs).abs()  # (B, T, H, K, T)
        own = torch.eye(self.T, dtype=torch.bool)
        tokens = weights.permute(0, 2, 3, 1, 4)  # (B, H, K, T, T)
        own_only = self.K > 1 and tokens[..., ~own].max() < 1e-6 and tokens[..., own].min() > 1e-6
        if own_only:
            sentence = "The output of head 0 is computed from the values of"
            yield Finding(sentence, "all heads of the same token", "all tokens of head 0", FAULTS["OVER_HEADS"])
            return
        value_heads = heads_of(weights.sum((0, 1, 4)))  # (H, K)
        found, model = self._softmax(self.weights_in_heads(self.inputs))
        key_heads = model.key_heads if model else self.groups
        yield from head_findings(key_heads, value_heads, self.groups)
        yield from found
        if model:
            yield model

    def _softmax(self, w: Tensor) -> tuple[list[Finding], Model | None]:
        """The findings about weights (B, H, T, T) that are a function of the scores, and the model of the scores."""
        sums = {-1: "keys", -2: "queries", 1: "heads", 0: "batch"}
        axis = next((axis for axis in sums if (w.sum(axis) - 1).abs().max() < 1e-3), None)
        model = self._fit(w, -1 if axis is None else axis)
        if (w < -1e-6).any() or model is None or not (w > 1e-12).any(-1).all():
            return [self._no_softmax(w)], None
        if axis == -1:
            is_usable = model.what == "q k^T" and model.factor > 0
            return self._factor(model), model if is_usable else None
        fault = FAULTS["SOFTMAX"]
        sentence = "The weights of a query over all keys sum to 1; those of head 0"
        if axis is None:
            scale = w.sum(-1)
            fault = FAULTS["MEAN"] if (scale - scale.mean()).abs().max() < 1e-3 else FAULTS["NOT_NORMALISED"]
        else:
            sentence += f", which sum to 1 over the {sums[axis]} instead"
        if axis == 1:
            fault = FAULTS["SOFTMAX_HEADS"]
        elif axis == -2 and model.what == "k q^T":
            fault, model = FAULTS["WEIGHTS_TRANSPOSED"], model._replace(what="q k^T")
        found = [Finding(sentence, numbers(w[0, 0].sum(-1)), ", ".join("1" * self.T), fault)]
        return found + self._factor(model), None

    def _factor(self, model: Model) -> list[Finding]:
        if model.what != "q k^T":
            fault = PRODUCTS[model.what][1]
            return [Finding("The weights are the softmax of a multiple of", model.what, "q k^T", fault)]
        right = self.D**-0.5
        if abs(model.factor - right) < 3e-3:
            return []
        fault = FAULTS["SCALE"]
        if abs(model.factor - 1) < 3e-3:
            fault = FAULTS["UNSCALED"]
        elif abs(model.factor + right) < 3e-3:
            fault = FAULTS["NEGATED"]
        sentence = f"The factor of the scores q k^T (D {self.D}, {self.T} tokens, {self.H} heads)"
        return [Finding(sentence, f"{model.factor:.4g}", f"{right:.4g}, which is 1 / sqrt(D)", fault)]

    def _no_softmax(self, w: Tensor) -> Finding:
        scores = self._products(self.inputs, self.groups, "q k^T") / self.D**0.5
        order = scores.flatten().argsort()
        steps = w.flatten()[order].diff()
        of_each = (steps > -1e-6).all() or (steps < 1e-6).all()  # a function of each score alone
        one_key = (w - 1).abs().lt(1e-6).sum(-1).eq(1).all() and (w.sum(-1) - 1).abs().max() < 1e-6
        rows = scores / w
        divided = ((rows - rows[..., :1]).abs() < 1e-2 * rows.abs()).all()  # each score by a sum
        fault = None
        if close(w.exp().sum(-1), torch.ones(w.shape[:3])):
            fault = FAULTS["LOGARITHM"]
        elif of_each or one_key or divided:
            fault = FAULTS["NO_SOFTMAX"]
        sentence = f"The weights of token 0, head 0 for scores {numbers(scores[0, 0, 0])}"
        return Finding(sentence, numbers(w[0, 0, 0]), numbers(scores.softmax(-1)[0, 0, 0]), fault)

    def _products(self, inputs: Inputs, key_heads: list[int], what: str) -> Tensor:
        """The products of q and k, (B, H, T, T)."""
        q = inputs.q.double().transpose(1, 2)
        k = inputs.k.double()[:, :, key_heads].transpose(1, 2)
        return PRODUCTS[what][0](q, k)

    def _fit(self, w: Tensor, axis: int) -> Model | None:
        """The product of which the logarithms of the weights are a multiple, up to a constant along the axis."""
        shown = w > 1e-12
        logs = centered(w.clamp(min=1e-30).log(), shown, axis)
        mean = self.inputs.k.mean(2, keepdim=True).expand_as(self.inputs.k)
        for what, k in product(PRODUCTS, (self.inputs.k, mean)):
            inputs = self.inputs._replace(k=k)
            if axis == 1:  # the heads cannot be fitted one by one
                factor = slope(centered(self._products(inputs, self.groups, what), shown, axis), logs)
                if factor is not None:
                    return Model(factor, what, self.groups)
                continue
            fits = []
            for head in range(self.K):
                x = centered(self._products(inputs, [head] * self.H, what), shown, axis)
                fits.append([slope(x[:, h], logs[:, h]) for h in range(self.H)])
            heads = [next((head for head in range(self.K) if fits[head][h] is not None), -1) for h in range(self.H)]
            factors = [factor for h in range(self.H) if (factor := fits[heads[h]][h]) is not None]
            if len(factors) == self.H and max(factors) - min(factors) < 1e-2 * max(map(abs, factors)) + 1e-6:
                return Model(sum(factors) / self.H, what, heads if k is self.inputs.k else [-1] * self.H)
        return None

    def _mask(self, model: Model) -> Iterator[Finding]:
        """Which keys have weight under several masks, and the scores of those that should have none."""
        everything = torch.ones(self.T, self.T, dtype=torch.bool)
        masks = [everything, everything.tril(), *(Inputs.random(self.sizes, seed).mask for seed in (1, 4, 6))]
        heads = [max(head, 0) for head in model.key_heads]
        scores = self._products(self.inputs, heads, "q k^T") * model.factor  # (B, H, T, T)
        seen = [self.weights_in_heads(self.inputs._replace(mask=mask)) for mask in masks]
        for mask, w in zip(masks, seen):
            shown = (w.abs() > 1e-12).any(0).any(0)  # (T, T)
            bad = ~w.isfinite().all(-1).all(0).all(0)  # (T,)
            right = scores.masked_fill(~mask, -math.inf).softmax(-1)
            if close(w, right) and not (shown & ~mask).any():
                continue
            if shown.all() and not bad.any() and not mask.all() and not close(w, scores.softmax(-1)):
                yield hidden_score(masks, seen, scores)
                return
            fault = mask_fault(masks, seen)
            wrong = (shown != mask).any(1) | bad
            t = int((wrong if wrong.any() else ~mask.all(1)).int().argmax())
            where = f"With {''.join('1' if cell else '0' for cell in mask[t])} in row {t} of the mask"
            if wrong.any() and not bad.any():
                yours, expected = (
                    ", ".join(map(str, row.nonzero()[:, 0].tolist())) or "none" for row in (shown[t], mask[t])
                )
                sentence = f"{where}, the keys with weight for token {t}"
                yield Finding(sentence, yours, expected, fault or FAULTS["OWN_MASK"])
                return
            if torch.equal(bad, ~mask.all(1)) or close(w, scores.softmax(-1) * mask):
                fault = fault or FAULTS["MASK_AFTER"]
            yield Finding(
                f"{where}, the weights of token {t}, head 0", numbers(w[0, 0, t]), numbers(right[0, 0, t]), fault
            )
            return

    def _rotation(self, model: Model) -> Iterator[Finding]:
        """How many times q and k are rotated, and by the angles of which rows."""
        inputs = self.inputs._replace(angle=random_angles(1, self.T, self.D)[0] * 0.8)
        w = self.weights_in_heads(inputs)
        shown = w > 1e-9
        logs = centered(w.clamp(min=1e-30).log(), shown, -1)
        heads = [max(head, 0) for head in model.key_heads]

        def fits(q: Tensor, k: Tensor) -> bool:
            """Whether the weights are those of queries and keys rotated to q and k."""
            x = centered(self._products(inputs._replace(q=q, k=k), heads, "q k^T"), shown, -1)
            factor = slope(x, logs)
            return factor is not None and abs(factor - model.factor) <= 1e-2 * abs(model.factor)

        angle = inputs.angle
        ways = {
            "once": angle,
            "not at all": 0 * angle,
            "twice": 2 * angle,
            "backwards": -angle,
            "by the rows in reverse order": angle.flip(0),
            "by the next row": angle.roll(-1, 0),
            "by the row before": angle.roll(1, 0),
        }
        layouts = list(dict.fromkeys((self.conventions.layout, *LAYOUTS)))
        for in_q, in_k, layout in product(ways, ways, layouts):
            if not fits(rotated(inputs.q, ways[in_q], layout), rotated(inputs.k, ways[in_k], layout)):
                continue
            if in_q == in_k == "once":
                self.conventions.attention_layout = layout
            elif in_q == in_k == "not at all" and self.sizes == SIZES[2]:
                # By the row of its head, equal for the q and the k of a score. Not rotating fits SIZES[0] too.
                sentence = "The scores depend on the table, for as many heads as tokens"
                yield Finding(sentence, "no: the angles of q and k cancel", "yes", FAULTS["HEADS"])
            else:
                fault = turn_fault(in_q, in_k)
                yield Finding("q and k are rotated by the table", f"q {in_q}, k {in_k}", "q once, k once", fault)
            return
        if self.T == self.H:
            q = rotated(inputs.q.transpose(1, 2), angle, layouts[0]).transpose(1, 2)
            for rows in (angle[: self.K], angle[:: self.H // self.K]):
                if fits(q, rotated(inputs.k.transpose(1, 2), rows, layouts[0]).transpose(1, 2)):
                    sentence = "The rows of freqs_cis that rotate queries and keys follow"
                    yield Finding(sentence, "the heads", "the tokens", FAULTS["HEADS"])
                    return
        q, k = (rotated(x, angle, layouts[0]) for x in (inputs.q, inputs.k))
        expected = (self._products(inputs._replace(q=q, k=k), heads, "q k^T") * model.factor).softmax(-1)
        sentence = "The weights of token 1, head 0 with the angles of the table, right for angles of 0"
        yield Finding(sentence, numbers(w[0, 0, 1]), numbers(expected[0, 0, 1]))

    def _rotated_values(self) -> Finding | None:
        """How many times values and output are rotated, with equal weights for all keys."""
        inputs = self.inputs._replace(q=torch.zeros_like(self.inputs.q), k=torch.zeros_like(self.inputs.k))
        w = self.weights(inputs)  # (B, T, H, K, T)
        inputs = inputs._replace(angle=random_angles(1, self.T, self.D)[0])
        out = self.output(inputs)
        right = torch.einsum("bthks,bskd->bthd", w, inputs.v.double())
        if close(out, right):
            return None
        for layout, times in product(LAYOUTS, (1, 2, -1)):
            v = rotated(inputs.v, times * inputs.angle, layout)
            found = {
                False: torch.einsum("bthks,bskd->bthd", w, v),
                True: rotated(right, times * inputs.angle, layout),
            }
            for of_output, mixed in found.items():
                if close(out, mixed):
                    self.turned = (layout, times, of_output)
                    fault = FAULTS["OUTPUT"] if of_output else FAULTS["VALUES"]
                    what = "The output is" if of_output else "Values are"
                    return Finding(f"{what} rotated by the angles of the table", f"{times} times", "not at all", fault)
        sentence = "The output does not depend on the angles if q and k are 0; token 1, head 0"
        return Finding(sentence, numbers(out[0, 1, 0, :4]), numbers(right[0, 1, 0, :4]))


def mask_fault(masks: list[Tensor], seen: list[Tensor]) -> Fault | None:
    """The rule that gives the keys with weight from the mask, the same for all masks."""
    own = torch.eye(len(masks[0]), dtype=torch.bool)
    rules: list[tuple[Fault, Callable[[Tensor], Tensor]]] = [
        (FAULTS["MASK_UNUSED"], torch.ones_like),
        (FAULTS["INVERTED_MASK"], torch.logical_not),
        (FAULTS["TRANSPOSED_MASK"], lambda mask: mask.T),
        (FAULTS["SELF_HIDDEN"], lambda mask: mask & ~own),
        (FAULTS["SELF_HIDDEN"], lambda mask: mask.tril(-1)),
    ]
    for fault, rule in rules:
        if all(agrees(w, rule(mask)) for mask, w in zip(masks, seen)):
            return fault
    return None


def hidden_score(masks: list[Tensor], seen: list[Tensor], scores: Tensor) -> Finding:
    """Hidden keys have weight: the score that gives them this weight."""
    hidden, own = [], []
    for mask, w in zip(masks, seen):
        implied = w.clamp(min=1e-30).log()
        for t in range(len(mask)):
            if mask[t].any() and not mask[t].all():
                shift = (scores - implied)[:, :, t, mask[t]].mean(-1, keepdim=True)
                hidden.append((implied[:, :, t, ~mask[t]] + shift).flatten())
                own.append(scores[:, :, t, ~mask[t]].flatten())
    found = torch.cat(hidden)
    change = found - torch.cat(own)
    expected = "-inf, so that their weight is 0"
    if (found - found.mean()).abs().max() < 1e-2:
        value = float(found.mean())
        fault = FAULTS["MASK_ZERO"] if abs(value) < 1e-2 else FAULTS["MASK_SMALL"]
        return Finding("The score of hidden keys", f"{value + 0.0:.3g}", expected, fault)
    if (change - change.mean()).abs().max() < 1e-2:
        sentence = "What the mask adds to the scores of hidden keys, compared with visible ones"
        return Finding(sentence, f"{float(change.mean()):.3g}", expected, FAULTS["MASK_ADDED"])
    return Finding("The score of hidden keys; those of the first", numbers(found[:4]), expected)


def turn_fault(in_q: str, in_k: str) -> Fault:
    """The fault of rotating q and k in these ways, of which one is not once."""
    named = {
        ("not at all", "not at all"): FAULTS["UNROTATED"],
        ("once", "not at all"): FAULTS["ONLY_Q_ROTATED"],
        ("not at all", "once"): FAULTS["ONLY_K_ROTATED"],
        ("once", "backwards"): FAULTS["OPPOSITE"],
        ("backwards", "once"): FAULTS["OPPOSITE"],
        ("backwards", "backwards"): FAULTS["SIGN"],
    }
    if (in_q, in_k) in named:
        return named[in_q, in_k]
    way = in_k if in_q == "once" else in_q
    fault = FAULTS["TWICE"]
    if "row" in way:
        fault = FAULTS["ROW_ORDER"] if "reverse" in way else FAULTS["ROW_SHIFTED"]
    if "once" in (in_q, in_k):
        return fault.only_in("k" if in_q == "once" else "q")
    return fault


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
    tables: list[tuple[list[int], Fault]] = [(tiled, FAULTS["TILED"]), (right[::-1], FAULTS["HEADS_REVERSED"])]
    wrong = [name for name, heads in (("keys", keys), ("values", values)) if heads != right]
    for name in wrong:
        heads = keys if name == "keys" else values
        fault = next((fault for order, fault in tables if heads == order), None)
        if fault is None and len(set(heads)) == 1:
            fault = FAULTS["ONE_GROUP"]
        if fault is not None and len(wrong) == 1:
            only = {"keys": FAULTS["TILED_KEYS"], "values": FAULTS["TILED_VALUES"]}[name]
            fault = only if fault is FAULTS["TILED"] else fault.only_in(name[0])
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
