"""study.py check: right solutions are right in every style, and each planted mistake is called by its name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from model.study import check, exercise
from model.study.check import NAMES, Verdict, faults, python_files, run
from model.study.check.child import verdicts
from model.study.options import Check, Exercise

REPO = Path(__file__).parent.parent
STYLES = {name: (REPO / f"tests/solutions/{name}.py").read_text() for name in ("complex", "real", "halves")}
TABLE, LAY, ROTATE, MASK, CACHE, ATTEND = (
    "precompute_freqs_cis", "reshape_for_broadcast", "apply_rotary_emb", "causal_mask", "KVCache", "attention",
)  # fmt: skip

# fault, function, and the disguises: a style and what is replaced in it
PLANTED = [
    (faults.EXPONENT, TABLE, [
        ("complex", ".float() / dim)", ".float() / (dim // 2))"),
        ("complex", "torch.arange(0, dim, 2).float() / dim", "torch.linspace(0, 1, dim // 2)"),
        ("complex", "torch.arange(0, dim, 2).float() / dim", "torch.arange(dim // 2) / dim"),
        ("real", "-2 * i / dim", "-2 * (i - 1) / dim"),
        ("halves", ".float() / dim)", ".float() * 2 / dim)"),
    ]),
    (faults.INVERTED, TABLE, [
        ("complex", "1.0 / (theta **", "(theta **"),
        ("real", "theta ** (-2 * i / dim)", "(1 / theta) ** (-2 * i / dim)"),
        ("halves", "1.0 / (theta **", "1.0 / ((1 / theta) **"),
    ]),
    (faults.SIGN, TABLE, [
        ("complex", "torch.outer(t, freqs))", "-torch.outer(t, freqs))"),
        ("complex", "torch.arange(end).float()", "-torch.arange(end).float()"),
        ("real", "angles.sin()", "-angles.sin()"),
    ]),
    (faults.SIGN, ROTATE, [
        ("complex", "(pairs * reshape_for_broadcast(freqs_cis, pairs))", "(pairs * reshape_for_broadcast(freqs_cis, pairs).conj())"),
        ("real", "a * cos - b * sin\n        y[..., 1::2] = a * sin + b * cos", "a * cos + b * sin\n        y[..., 1::2] = b * cos - a * sin"),
        ("halves", "torch.cat((-x2, x1), dim=-1)", "torch.cat((x2, -x1), dim=-1)"),
    ]),
    (faults.SHIFTED, TABLE, [
        ("complex", "torch.arange(end).float()", "torch.arange(1, end + 1).float()"),
        ("halves", "torch.arange(end, dtype=torch.float32)", "torch.arange(end, dtype=torch.float32).sub(1)"),
    ]),
    (faults.ROUNDED, TABLE, [
        ("complex", "torch.arange(end).float()", "torch.arange(end).to(torch.bfloat16).float()"),
        ("complex", "torch.outer(t, freqs))", "torch.outer(t.half(), freqs.half()).float())"),
        ("complex", "torch.outer(t, freqs))", "torch.outer(t, freqs).bfloat16().float())"),
        ("real", "freqs[None, :]", "freqs.half().float()[None, :]"),
        ("halves", "emb = torch.cat((freqs, freqs), dim=-1)", "emb = torch.cat((freqs, freqs), dim=-1).half()"),
        ("halves", "torch.arange(end, dtype=torch.float32), inv_freq", "torch.arange(end, dtype=torch.bfloat16), inv_freq.bfloat16()"),
    ]),
    (faults.REAL, TABLE, [
        ("complex", "torch.outer(t, freqs))", "torch.outer(t, freqs)).real"),
        ("complex", "torch.outer(t, freqs))", "torch.outer(t, freqs)).to(torch.float32)"),
        ("complex", "torch.outer(t, freqs))", "torch.outer(t, freqs)).to(torch.bfloat16)"),
        ("real", "return angles.cos(), angles.sin()", "return angles.cos()"),
    ]),
    (faults.REAL, ROTATE, [
        ("complex", "reshape_for_broadcast(freqs_cis, pairs))", "reshape_for_broadcast(freqs_cis, pairs).to(x.dtype))"),
        ("complex", "reshape_for_broadcast(freqs_cis, pairs))", "reshape_for_broadcast(freqs_cis, pairs).real)"),
    ]),
    (faults.ANGLES, TABLE, [
        ("complex", "return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))", "return torch.outer(t, freqs)"),
        ("real", "return angles.cos(), angles.sin()", "return angles"),
        ("halves", "return emb.cos(), emb.sin()", "return emb"),
    ]),
    (faults.UNUSED, TABLE, [
        ("complex", "(theta **", "(10000.0 **"),
        ("real", "[theta **", "[1e4 **"),
    ]),
    (faults.SWAPPED, TABLE, [
        ("complex", "return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))", "a = torch.outer(t, freqs)\n    return torch.complex(a.sin(), a.cos())"),
        ("complex", "torch.outer(t, freqs))", "math.pi / 2 - torch.outer(t, freqs))"),
    ]),
    (faults.SWAPPED, ROTATE, [
        ("real", "cos, sin = (", "sin, cos = ("),
        ("halves", "cos, sin = reshape", "sin, cos = reshape"),
    ]),
    (faults.POLAR, TABLE, [
        ("complex", "torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))", "torch.polar(torch.outer(t, freqs), torch.ones(end, dim // 2))"),
        ("complex", "return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))", "return torch.outer(t, freqs) * torch.exp(torch.tensor(1j))"),
    ]),
    (faults.MIXED, ROTATE, [
        ("complex", ".flatten(-2).type_as(x)", ".transpose(-1, -2).flatten(-2).type_as(x)"),
        ("complex", "x.float().reshape(*x.shape[:-1], -1, 2)", "x.float().reshape(*x.shape[:-1], 2, -1).transpose(-1, -2).contiguous()"),
        ("real", "a, b = x[..., 0::2], x[..., 1::2]", "a, b = x.chunk(2, -1)"),
        ("halves", "torch.cat((-x2, x1), dim=-1)", "torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)"),
        ("halves", "cos, sin = reshape_for_broadcast(freqs_cis, xq)", "cos, sin = (t[..., : xq.shape[-1] // 2].repeat_interleave(2, -1) for t in reshape_for_broadcast(freqs_cis, xq))"),
    ]),
    (faults.HEADS, LAY, [
        ("complex", "if freqs_cis.shape != (x.shape[1], x.shape[-1]):\n        raise ValueError(\"shapes\")\n    return freqs_cis.view(1, x.shape[1], 1, x.shape[-1])", "return freqs_cis.view(1, 1, x.shape[2], x.shape[-1])"),
        ("real", "freqs_cis.unsqueeze(0).unsqueeze(2)", "freqs_cis"),
        ("halves", "cos[None, :, None, :], sin[None, :, None, :]", "cos[None, None], sin[None, None]"),
    ]),
    (faults.HEADS, ROTATE, [
        ("complex", "reshape_for_broadcast(freqs_cis, pairs)", "freqs_cis[: x.shape[2]]"),
        ("real", "(reshape_for_broadcast(part, xq) for part in freqs_cis)", "(part[None, None] for part in freqs_cis)"),
        ("halves", "cos, sin = reshape_for_broadcast(freqs_cis, xq)", "cos, sin = freqs_cis"),
    ]),
    (faults.OVERWRITTEN, ROTATE, [
        ("real", "y = torch.empty_like(x)", "y = x"),
        ("real", "a * sin + b * cos", "y[..., 0::2] * sin + b * cos"),
    ]),
    (faults.CORNER, MASK, [
        ("complex", ".tril(diagonal=start_pos)", ".tril()"),
        ("real", "torch.hstack([torch.zeros((T, start_pos)), mask])", "torch.hstack([mask, torch.zeros((T, start_pos))])"),
        ("halves", "torch.arange(start_pos, start_pos + T)", "torch.arange(T)"),
    ]),
    (faults.SQUARE, MASK, [
        ("complex", "torch.ones(T, start_pos + T, dtype=torch.bool).tril(diagonal=start_pos)", "torch.ones(T, T, dtype=torch.bool).tril()"),
        ("real", "torch.hstack([torch.zeros((T, start_pos)), mask])", "mask"),
    ]),
    (faults.DIAGONAL, MASK, [
        ("complex", "diagonal=start_pos)", "diagonal=start_pos + 1)"),
        ("real", "diagonal=1)", "diagonal=0)"),
        ("halves", "<= queries", "< queries"),
    ]),
    (faults.INVERTED_MASK, MASK, [
        ("complex", ".tril(diagonal=start_pos)", ".triu(diagonal=start_pos + 1)"),
        ("halves", "<= queries", "> queries"),
    ]),
    (faults.NO_MASK, MASK, [
        ("complex", ".tril(diagonal=start_pos)", ""),
        ("real", "torch.triu(mask, diagonal=1)", "torch.zeros(T, T)"),
    ]),
    (faults.CACHED_HIDDEN, MASK, [
        ("complex", "torch.ones(T, start_pos + T, dtype=torch.bool).tril(diagonal=start_pos)", "torch.cat((torch.zeros(T, start_pos), torch.ones(T, T).tril()), 1).bool()"),
        ("real", "torch.zeros((T, start_pos))", "torch.full((T, start_pos), -torch.inf)"),
    ]),
    (faults.T_CHECKED, CACHE, [
        ("complex", "if end > self.max_seq_len", "if xk.shape[2] > self.max_seq_len"),
        ("real", "if start_pos + xk.shape[2] >", "if xk.shape[2] >"),
        ("halves", "assert end <= k.size(2)", "assert xk.size(2) <= k.size(2)"),
    ]),
    (faults.LAST_SLOT, CACHE, [
        ("complex", "if end > self", "if end >= self"),
        ("halves", "assert end <= k", "assert end < k"),
    ]),
    (faults.ATTACHED, CACHE, [
        ("complex", ".detach()", ""),
        ("real", ".detach()", ""),
        ("halves", "    @torch.no_grad()\n", ""),
    ]),
    (faults.STALE, CACHE, [
        ("complex", "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]", "return self.keys[layer], self.values[layer]"),
        ("halves", "k.narrow(2, 0, end), v.narrow(2, 0, end)", "k, v"),
        ("complex", "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]",
         "self.end = end = max(end, getattr(self, 'end', 0))\n        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]"),
    ]),
    (faults.SLOT_SHIFTED, CACHE, [
        ("complex", "start_pos:end] =", "start_pos + 1 : end + 1] ="),
        ("complex", ":end], self.values[layer, :, :, :end]", ": end - 1], self.values[layer, :, :, : end - 1]"),
        ("halves", "k.narrow(2, 0, end), v.narrow(2, 0, end)", "k.narrow(2, 0, end - 1), v.narrow(2, 0, end - 1)"),
    ]),
    (faults.APPENDED, CACHE, [
        ("real", "if start_pos:\n            new = torch.cat((self.texts[layer][:, :, :, :start_pos], new), 3)", "if self.texts[layer] is not None:\n            new = torch.cat((self.texts[layer], new), 3)"),
        ("real", "            new = torch.cat((self.texts[layer][:, :, :, :start_pos], new), 3)\n        self.texts[layer] = new\n", "            pass\n        self.list = getattr(self, 'list', {})\n        self.list.setdefault(layer, []).append(new)\n        new = torch.cat(self.list[layer], 3)\n"),
    ]),
    (faults.LAYER, CACHE, [
        ("complex", "end = start_pos", "layer, end = 0, start_pos"),
        ("halves", "self.layers[layer]", "self.layers[-1]"),
    ]),
    (faults.EXCHANGED, CACHE, [
        ("real", "return new[0], new[1]", "return new[1], new[0]"),
        ("complex", "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]", "return self.values[layer, :, :, :end], self.keys[layer, :, :, :end]"),
    ]),
    (faults.TILED, ATTEND, [
        ("complex", "repeat_interleave(G, dim=2)", "repeat(1, 1, G, 1)"),
        ("real", "q = xq.reshape(B, T, K, H // K, D)", "q = xq.reshape(B, T, H // K, K, D).transpose(2, 3)"),
        ("real", "q = xq", "xk, xv, K = torch.cat([xk] * (H // K), 2), torch.cat([xv] * (H // K), 2), H\n    q = xq"),
        ("halves", "return F.scaled", "k, v = (torch.cat([t] * (q.shape[1] // t.shape[1]), 1) for t in (k, v))\n    return F.scaled"),
    ]),
    (faults.VALUES, ATTEND, [
        ("complex", "    G = ", "    xv, _ = apply_rotary_emb(xv, xv, freqs_cis)\n    G = "),
        ("halves", "    q, k, v =", "    _, xv = apply_rotary_emb(xk, xv, freqs_cis)\n    q, k, v ="),
    ]),
    (faults.UNSCALED, ATTEND, [
        ("complex", " / math.sqrt(q.shape[-1])", ""),
        ("halves", "attn_mask=mask,", "attn_mask=mask, scale=1.0,"),
    ]),
    (faults.UNROTATED, ATTEND, [
        ("complex", "    xq, xk = apply_rotary_emb(xq, xk, freqs_cis)\n", ""),
        ("real", "xq, xk = apply", "_, _ = apply"),
    ]),
    (faults.ONE_ROTATED, ATTEND, [
        ("complex", "xq, xk = apply", "xq, _ = apply"),
        ("halves", "xq, xk = apply", "_, xk = apply"),
    ]),
    (faults.MASK_UNUSED, ATTEND, [
        ("complex", "scores = scores.masked_fill", "scores.masked_fill"),
        ("real", "scores = scores + mask", "scores + mask"),
    ]),
    (faults.SOFTMAX, ATTEND, [
        ("complex", "scores.softmax(-1)", "scores.softmax(2)"),
        ("real", "torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=3)"),
    ]),
    (faults.HEADS, ATTEND, [
        ("complex", "    xq, xk = apply_rotary_emb(xq, xk, freqs_cis)\n", "    xq, xk = (t.transpose(1, 2) for t in apply_rotary_emb(xq.transpose(1, 2), xk.transpose(1, 2), freqs_cis))\n"),
        ("real", "    xq, xk = apply_rotary_emb(xq, xk, freqs_cis)\n", "    xq, xk = (t.mT.mT.transpose(2, 1) for t in apply_rotary_emb(*(t.transpose(2, 1) for t in (xq, xk)), freqs_cis))\n"),
    ]),
]  # fmt: skip
CASES = [(fault, function, *disguise) for fault, function, disguises in PLANTED for disguise in disguises]


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch):
    """What the files that were judged here are called must stay free for others."""
    for name in ("mine", "rope", "cache", "attention"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def judged(tmp_path: Path, text: str) -> dict[str, Verdict]:
    """The verdicts on a file, made in this process."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    return {step.function: step for step in verdicts([path]) if isinstance(step, Verdict)}


def replaced(style: str, old: str, new: str) -> str:
    assert old in STYLES[style], f"{style} has no {old!r}"
    return STYLES[style].replace(old, new)


@pytest.mark.parametrize(
    ("fault", "function", "style", "old", "new"), CASES, ids=lambda v: v.name if hasattr(v, "name") else None
)
def test_a_planted_mistake_is_called_by_its_name_and_nothing_else_is_wrong(tmp_path, fault, function, style, old, new):
    found = judged(tmp_path, replaced(style, old, new))
    verdict = found.pop(function)
    assert (verdict.outcome, verdict.fault) == ("wrong", fault.name), verdict
    assert "yours" in verdict.hint
    assert verdict.why == fault.why
    assert {each.outcome for each in found.values()} <= {"right", "half-split"}, found


@pytest.mark.parametrize("style", STYLES)
def test_a_right_solution_is_right_in_every_style(tmp_path, style):
    found = judged(tmp_path, STYLES[style])
    assert list(found) == list(NAMES)
    layout = "half-split" if style == "halves" else "right"
    assert {name: verdict.outcome for name, verdict in found.items()} == {
        **dict.fromkeys(NAMES, "right"), ROTATE: layout, ATTEND: layout
    }  # fmt: skip
    assert not any(verdict.hint or verdict.fault for verdict in found.values())


@pytest.mark.parametrize(
    ("style", "old", "new"),
    [
        ("complex", "torch.outer(t, freqs))", "torch.outer(t, freqs)).to(torch.complex128)"),
        ("complex", "return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))",
         "return torch.view_as_real(torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs)))"),
        ("real", "return angles.cos(), angles.sin()", "return angles.sin(), angles.cos()"),
        ("real", "return angles.cos(), angles.sin()", "return torch.stack((angles.cos(), angles.sin()))"),
        ("real", "return angles.cos(), angles.sin()", "return angles.cos()[None, :, None], angles.sin()[None, :, None]"),
        ("halves", "emb.cos(), emb.sin()", "emb.cos().to(torch.bfloat16), emb.sin().to(torch.bfloat16)"),
        ("halves", "def apply_rotary_emb(xq, xk, freqs_cis):\n    cos, sin = reshape_for_broadcast(freqs_cis, xq)",
         "def apply_rotary_emb(xq, xk, cos, sin):\n    cos, sin = cos[:, None], sin[:, None]"),
        ("halves", "<= queries", "<= queries + 0 * queries"),
        ("complex", "dtype=torch.bool).tril(diagonal=start_pos)", "dtype=torch.bool).tril(diagonal=start_pos)[None, None]"),
    ],
)  # fmt: skip
def test_a_right_table_mask_or_signature_may_be_written_in_other_ways(tmp_path, style, old, new):
    text = replaced(style, old, new)
    if "sin(), angles.cos()" in new:
        text = text.replace("cos, sin = (", "sin, cos = (")
    if "[None, :, None]" in new:  # laid out already
        text = text.replace("freqs_cis.unsqueeze(0).unsqueeze(2)", "freqs_cis")
    if "view_as_real" in new:  # an apply that takes the real twin of the table
        text = text.replace("def one(x):", "freqs_cis = torch.view_as_complex(freqs_cis)\n    def one(x):")
    if "def apply" in old:
        text = text.replace("apply_rotary_emb(xq, xk, freqs_cis)\n    q", "apply_rotary_emb(xq, xk, *freqs_cis)\n    q")
    for name, verdict in judged(tmp_path, text).items():
        assert verdict.outcome in ("right", "half-split"), (name, verdict)


@pytest.mark.parametrize("function", NAMES)
@pytest.mark.parametrize("style", STYLES)
def test_a_function_alone_in_its_file_is_judged_too(tmp_path, style, function):
    text = STYLES[style]
    for other in set(NAMES) - {function}:
        text = re.sub(rf"\b{other}\b", f"_{other}", text)
    found = judged(tmp_path, text)
    assert list(found) == [function]
    assert found[function].outcome in ("right", "half-split"), found


UNKNOWN = [
    (TABLE, "complex", "torch.outer(t, freqs))", "torch.outer(t, freqs) * 1.1)", "Pair 0 rotates by"),
    (TABLE, "complex", "torch.ones(end, dim // 2), torch", "2 * torch.ones(end, dim // 2), torch", "A rotation keeps lengths"),
    (TABLE, "real", "return angles.cos(), angles.sin()", "return angles.T.cos()", "the shape"),
    (TABLE, "real", "return angles.cos(), angles.sin()", "return None", "yours NoneType"),
    (TABLE, "real", "theta ** (-2 * i / dim)", "1 - 2 * i / dim", "Pair 1 rotates by"),
    (TABLE, "complex", "1.0 / (theta **", "-1.0 / (theta ** 2 **", "Pair 0 rotates by"),  # two mistakes at once
    (LAY, "real", "unsqueeze(0).unsqueeze(2)", "unsqueeze(1).unsqueeze(1)", "the table lies along axis 1"),
    (ROTATE, "complex", "return one(xq), one(xk)", "return one(xq), xk", "A score depends"),
    (ROTATE, "complex", "return one(xq), one(xk)", "return one(xq)", "in the shapes they came in"),
    (ROTATE, "real", "a * cos - b * sin", "a * cos - a * sin", ""),
    (ROTATE, "halves", "rotate_half(xk) * sin", "xk * sin", ""),
    (MASK, "complex", "diagonal=start_pos)", "diagonal=start_pos + 2)", "the keys that it sees: yours 3, expected 1."),
    (MASK, "complex", "dtype=torch.bool", "dtype=torch.bool, device='meta'", ""),
    (CACHE, "complex", "xk.detach()", "2 * xk.detach()", "the first number of slot 0 of the keys"),
    (CACHE, "complex", "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]", "return xk", "returns keys and values"),
    (CACHE, "complex", "return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]", "return xk, xv", "how many: yours 2, expected 9"),
    (ATTEND, "complex", "scores.softmax(-1)", "scores.sigmoid()", ""),
    (ATTEND, "complex", "math.sqrt(q.shape[-1])", "q.shape[-1]", "softmax(q k^T / sqrt(D)) v"),
    (ATTEND, "real", "return out.reshape(B, T, H * D)", "return out", "The output has the shape of xq"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "style", "old", "new", "hint"), UNKNOWN)
def test_an_unknown_mistake_is_wrong_by_its_first_failing_property_and_gets_no_name(
    tmp_path, function, style, old, new, hint
):
    verdict = judged(tmp_path, replaced(style, old, new))[function]
    assert (verdict.outcome, verdict.fault) in (("wrong", ""), ("stopped", "")), verdict
    assert hint in verdict.hint and verdict.hint


def test_every_step_that_is_referred_to_is_on_the_page_and_about_that():
    headings = dict(re.findall(r"^## (\d+)\. (.*)$", (REPO / "docs/rope.md").read_text(), re.MULTILINE))
    about = {
        1: "pair",
        2: "distances",
        3: "speeds",
        4: "spellings",
        5: "attention",
        6: "slots in",
        7: "cache",
        11: "wrong",
    }
    every = [value for value in vars(faults).values() if isinstance(value, faults.Fault)]
    assert len({fault.name for fault in every}) >= 14
    for fault in every:
        assert about[fault.step] in headings[str(fault.step)], fault


def test_every_named_mistake_is_planted_in_two_disguises():
    every = {value for value in vars(faults).values() if isinstance(value, faults.Fault)}
    assert {fault for fault, *_ in PLANTED} == every
    for fault in every:
        assert sum(case[0] == fault for case in CASES) >= 2, fault.name


# The process of its own


def test_what_ends_the_process_is_the_verdict_of_one_function_and_the_others_are_judged(tmp_path):
    (tmp_path / "mine.py").write_text(STYLES["halves"] + """
import os, signal
def causal_mask(start_pos, T):
    while True:
        pass
KVCache.update = lambda *values: os._exit(0)
def attention(*values):
    os.kill(os.getpid(), signal.SIGSEGV)
""")  # fmt: skip
    answer = run(Check(file=tmp_path / "mine.py", seconds=1.0))
    *right, loop, left, killed = str(answer).splitlines()
    assert answer.code == 1
    assert sum(": right" in line for line in right) == 3
    assert loop.startswith("causal_mask: stopped: it did not end within 1 seconds")
    assert left.startswith("KVCache: stopped: it ended the process with status 0")
    assert killed.startswith("attention: stopped: the process was killed by signal 11")


def test_an_endless_loop_on_loading_ends_in_one_line(tmp_path):
    (tmp_path / "mine.py").write_text("while True:\n    pass\n")
    with pytest.raises(ValueError, match=r"^\S*mine.py: it did not end within 1 seconds; is there an endless loop"):
        run(Check(file=tmp_path / "mine.py", seconds=1.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit('bye')\n", "line 2: SystemExit: bye"),
        ("def f(:\n", "line 1: SyntaxError: "),
        ("raise ValueError('two\\nlines')\n", "line 1: ValueError: two lines"),
        ("\udcff", "SyntaxError"),
        ("x = '\0'", "source code string cannot contain null bytes"),
    ],
)
def test_a_file_that_cannot_be_loaded_ends_in_one_line(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"mine\.py") as error:
        list(verdicts([path]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit", "line 2: SystemExit"),
        ("return causal_mask(start_pos, T)", "line 2: RecursionError: "),
    ],
)
def test_an_exception_is_one_line_with_its_place(tmp_path, body, message):
    verdict = judged(tmp_path, f"def causal_mask(start_pos, T):\n    {body}\n")[MASK]
    assert verdict.outcome == "stopped"
    assert message in verdict.hint
    assert len(list(verdict.lines(False))) == 1


def test_memory_is_limited_nothing_can_be_typed_and_what_a_file_prints_is_not_shown(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nprint('hello')\ndef causal_mask(start_pos, T):\n    return input('name? ')\n"
        "def attention(*values):\n    kept = []\n    while True:\n        kept.append(torch.empty(1 << 28))\n"
    )
    words = [sys.executable, "study.py", "check", str(tmp_path / "mine.py")]
    ended = subprocess.run(words, cwd=REPO, capture_output=True, text=True)
    typed, memory = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (1, "")
    assert typed.startswith("causal_mask: stopped: ") and "line 4: EOFError" in typed
    assert memory.startswith("attention: stopped: ")


def test_nothing_to_judge_is_a_mistake(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "judge", lambda files, seconds: [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine.py").write_text("x = 1\n")
    for options, message in (
        (Check(), "which file"),
        (Check(file=tmp_path / "mine.py"), "defines none of precompute_freqs_cis, "),
        (Check(file=tmp_path / "mine.py", seconds=0.0), "seconds is 0: give more than 0"),
        (Check(file=tmp_path / "empty"), "holds no Python file"),
    ):
        with pytest.raises(ValueError, match=message):
            run(options)
    with pytest.raises(FileNotFoundError):
        run(Check(file=tmp_path / "missing.py"))


def test_hint_says_what_fails_and_not_why():
    fault = faults.SIGN
    verdict = Verdict(TABLE, "wrong", "Something: yours 1, expected 2.", fault.name, fault.why, fault.step)
    assert list(verdict.lines(True)) == [f"{TABLE}: wrong", "  Something: yours 1, expected 2."]
    full = "\n".join(verdict.lines(False))
    assert fault.name in full and fault.why in full and "docs/rope.md, step 1" in full


def test_exercise_writes_files_that_are_not_written_yet_and_never_overwrites(tmp_path):
    directory = tmp_path / "mine" / "deep"
    exercise.run(Exercise(directory=directory))
    assert sorted(path.name for path in directory.iterdir()) == ["attention.py", "cache.py", "rope.py"]
    found = [step for step in verdicts(python_files(directory)) if isinstance(step, Verdict)]
    assert [(each.function, each.outcome) for each in found] == [(name, "unwritten") for name in NAMES]
    (directory / "cache.py").write_text("mine = 1\n")
    (directory / "rope.py").unlink()
    with pytest.raises(ValueError, match=r"cache\.py is there already"):
        exercise.run(Exercise(directory=directory))
    assert (directory / "cache.py").read_text() == "mine = 1\n"
    assert not (directory / "rope.py").exists()


def test_files_of_a_directory_may_import_each_other_and_leave_nothing_behind(tmp_path):
    text = STYLES["complex"]
    start = text.index("def causal_mask"), text.index("def attention")
    (tmp_path / "rope.py").write_text(text[: start[0]].replace("-1, 2)", "2, -1).mT.contiguous()"))
    (tmp_path / "cache.py").write_text("import torch\n" + text[start[0] : start[1]])
    (tmp_path / "attention.py").write_text("import math\nfrom rope import apply_rotary_emb\n" + text[start[1] :])
    answer = run(Check(file=tmp_path))
    outcomes = [line.partition(": ")[2] for line in str(answer).splitlines() if line[0] != " "]
    assert outcomes == ["right", "right", f"wrong: {faults.MIXED.name}", "right", "right", "right"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attention.py", "cache.py", "rope.py"]
