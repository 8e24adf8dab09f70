"""The KV cache, forward call by forward call: slots written and read, work saved, and equal logits."""

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from model.cache import KVCache
from model.config import ModelArgs
from model.transformer import Transformer

from .topic import ORANGE, SKY, Report, Table, short

CALLS = (6, 1, 1, 1, 3, 1)  # tokens of each call; the first one has the prompt


@torch.no_grad()
def cache() -> Report:
    """The KV cache, call by call: slots written and read, work saved, and equal logits."""
    network = random_network()
    tokens = torch.randint(network.args.vocab_size, (1, sum(CALLS)))
    filled = KVCache(network.args)
    calls = measure_calls(network, tokens, CALLS, filled)
    table = call_table(calls)
    start_pos = calls[-1].start_pos
    right, wrong = (network(tokens[:, start_pos:], position, filled) for position in (start_pos, start_pos - 1))
    difference = (right - wrong).abs().max().item()
    table.notes.append(f"the last call with start_pos one too small: logits differ by {short(difference)}")
    return Report([table], lambda figure: draw(figure, calls, filled.max_seq_len))


def random_network() -> Transformer:
    """A small network with weights large enough for logits of about 1."""
    torch.manual_seed(0)
    model = Transformer(ModelArgs(64, 2, n_heads=4, n_kv_heads=2, vocab_size=256, max_seq_len=16))
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model.eval()


class Call(NamedTuple):
    """One forward call, measured: multiplications with and without the cache, and the difference of the logits."""

    name: str
    start_pos: int
    T: int
    cached: int  # multiplications with the cache
    uncached: int  # multiplications without it
    difference: float


def measure_calls(model: Transformer, tokens: Tensor, sizes: tuple[int, ...], cache: KVCache) -> list[Call]:
    """Pass ``tokens`` (1, T) in calls of these sizes, and compare each with a call on all tokens so far, uncached."""
    calls: list[Call] = []
    for T, end in zip(sizes, accumulate(sizes)):
        start = end - T
        logits, cached = logits_and_multiplications(model, tokens[:, start:end], start, cache)  # (1, T, V)
        plain_logits, uncached = logits_and_multiplications(model, tokens[:, :end])  # (1, end, V)
        name = "decode" if T == 1 else "chunk"
        if start == 0:
            name = "prefill"
        difference = (logits - plain_logits[:, start:]).abs().max().item()
        calls.append(Call(name, start, T, cached, uncached, difference))
    return calls


def logits_and_multiplications(model: Transformer, *inputs: Any) -> tuple[Tensor, int]:
    """The logits, and the multiplications of all matrix products."""
    with FlopCounterMode(display=False) as counter:
        logits = model(*inputs)
    return logits, counter.get_total_flops() // 2  # half of the flops are multiplications, half additions


def call_table(calls: list[Call]) -> Table:
    """A row for each call."""
    measured = ("multiplications", "without cache", "ratio", "logits differ by")
    table = Table(
        "Each forward call: T new tokens at start_pos",
        ("call", "T", "start_pos", "slots written", "slots read", "visible scores", *measured),
        notes=[
            "visible scores: those of the T x S scores that the mask does not hide; in the last T columns, a triangle.",
            "multiplications: of all matrix products; without cache: the same logits from a call on all tokens so far.",
            "logits differ by: largest difference of any logit between the two.",
        ],
    )
    for call in calls:
        end = call.start_pos + call.T
        written = call.start_pos if call.T == 1 else f"{call.start_pos}-{end - 1}"
        visible = sum(range(call.start_pos + 1, end + 1))  # the first new token sees start_pos + 1 keys
        row = (call.name, call.T, call.start_pos, written, f"0-{end - 1}", f"{visible}/{call.T * end}")
        costs = (f"{call.cached:,}", f"{call.uncached:,}", f"{call.uncached / call.cached:.1f}", short(call.difference))
        table.rows.append((*row, *costs))
    return table


def draw(figure: Any, calls: list[Call], slots: int) -> None:
    """The slots that each call writes and reads, and beside them the work of the call."""
    figure.set_size_inches(6, 3.2 + 0.7 * len(calls))
    left, right = figure.subplots(2, 1)
    rows = list(range(len(calls)))
    starts, sizes = [call.start_pos for call in calls], [call.T for call in calls]
    edge: dict[str, Any] = {"height": 0.8, "edgecolor": "0.7"}
    left.barh(rows, slots, left=-0.5, color="white", label="empty", **edge)
    left.barh(rows, starts, left=-0.5, color=SKY, label="written earlier, read now", **edge)
    left.barh(rows, sizes, left=[start - 0.5 for start in starts], color=ORANGE, label="written now, then read", **edge)
    left.vlines([slot + 0.5 for slot in range(slots - 1)], -0.4, len(calls) - 0.6, color="0.7", linewidth=0.8)
    for axes in (left, right):
        axes.set_yticks(rows, [f"{call.name}: {call.T} at {call.start_pos}" for call in calls])
    left.set(xlabel="slot of the cache, the position of its token", title="each call: T at start_pos")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.invert_yaxis()
    right.invert_yaxis()
    cached, uncached = [call.cached / 1e6 for call in calls], [call.uncached / 1e6 for call in calls]
    right.barh([row - 0.2 for row in rows], cached, 0.4, color=ORANGE, label="with the cache")
    right.barh([row + 0.2 for row in rows], uncached, 0.4, color="0.6", label="without a cache")
    right.set(xlabel="multiplications of the call, in millions")
    right.grid(axis="x", alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left")
    right.legend()
