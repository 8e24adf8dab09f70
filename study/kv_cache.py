"""The KV cache, forward call by forward call: slots written and read, work saved, and equal logits."""

import math
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.cache import KVCache
from model.cli.machine import check_memory
from model.config import ModelArgs
from model.ranges import Range
from model.text.tokenizer import Tokenizer
from model.transformer import Transformer

from .topic import ORANGE, SKY, Report, Table, open_model, short


def cache_of_nan(args: ModelArgs) -> KVCache:
    """A cache full of NaN, which shows the slots that are written, and makes a logit NaN if an empty slot is read."""
    cache = KVCache(args)
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    return cache


def written_slots(cache: KVCache) -> set[int]:
    """The slots of a ``cache_of_nan`` whose keys in the last layer are numbers."""
    return set((~cache.layers[-1].keys[0, 0, :, 0].isnan()).nonzero().flatten().tolist())


@dataclass(frozen=True)
class Call:
    """One forward call, measured: multiplications with and without the cache, and the difference of the logits."""

    name: str
    text: str
    start_pos: int
    T: int
    written: list[int]  # slots
    cached: int  # multiplications with the cache
    uncached: int  # multiplications without it
    difference: float

    @property
    def end(self) -> int:
        """The number of slots read, which are those of all tokens so far."""
        return self.start_pos + self.T


def cache(
    model: Annotated[Path | None, "a trained model (default: a small random network)"] = None,
    prompt: Annotated[str, "prompt of the trained model, which continues it greedily"] = "Once upon a time",
    length: Annotated[int, "tokens in the first call of the random network", Range(1)] = 6,
    calls: Annotated[tuple[int, ...], "tokens in each later call"] = (1, 1, 1, 3, 1),
    max_seq_len: Annotated[int, "slots of the random network's cache", Range(1)] = 16,
) -> Report:
    """The KV cache, call by call: slots written and read, work saved, and equal logits."""
    if not calls or min(calls) < 1:
        raise ValueError(f"calls is {list(calls)}: give the tokens of each call, each at least 1")
    if model is None:
        network, tokenizer, tokens = random_text(length, sum(calls), max_seq_len)
    else:
        network, tokenizer, tokens = trained_text(model, prompt, sum(calls))
    filled = cache_of_nan(network.args)
    measured = measure_calls(network, tokens, (tokens.shape[1] - sum(calls), *calls), filled, tokenizer)
    off_by_one = error_of_wrong_start_pos(network, tokens, measured[-1].start_pos, filled)
    tables = [call_table(measured), cache_table(filled, network.args, measured, off_by_one)]
    return Report(tables, lambda figure: draw(figure, measured, filled.max_seq_len))


def check_fit(first: int, later: int, limit: int) -> None:
    if first + later > limit:
        raise ValueError(
            f"the first call has {first} tokens and the later calls {later}: max_seq_len is {limit}, give fewer tokens"
        )


def random_text(first: int, later: int, max_seq_len: int) -> tuple[Transformer, None, Tensor]:
    """A small network with weights large enough for logits of about 1, and random tokens: (1, T)."""
    check_fit(first, later, max_seq_len)
    check_memory(max_seq_len * (16 * max_seq_len + 4000), f"max_seq_len {max_seq_len}")
    torch.manual_seed(0)
    args = ModelArgs(64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=256, max_seq_len=max_seq_len)
    model = Transformer(args)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model.eval(), None, torch.randint(args.vocab_size, (1, first + later))


@torch.no_grad()
def trained_text(path: Path, prompt: str, later: int) -> tuple[Transformer, Tokenizer, Tensor]:
    """The model, and the prompt with its greedy continuation, computed without a cache: (1, T)."""
    model, tokenizer = open_model(path)
    tokens = torch.tensor([tokenizer.encode(prompt)])
    args = model.args
    check_fit(tokens.shape[1], later, args.max_seq_len)
    check_memory(4 * args.max_seq_len * (args.n_heads * args.max_seq_len + 3 * args.vocab_size), "the whole text")
    for _ in range(later):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), 1)
    return model, tokenizer, tokens


@torch.no_grad()
def measure_calls(
    model: Transformer, tokens: Tensor, sizes: tuple[int, ...], cache: KVCache, tokenizer: Tokenizer | None
) -> list[Call]:
    """Pass ``tokens`` (1, T) in calls of these sizes, and compare each with a call on all tokens so far, uncached."""
    calls: list[Call] = []
    for size, end in zip(sizes, accumulate(sizes)):
        start = end - size
        new = tokens[:, start:end]  # (1, size)
        before = written_slots(cache)
        logits, cached = logits_and_multiplications(model, new, start, cache)  # (1, size, V)
        plain_logits, uncached = logits_and_multiplications(model, tokens[:, :end])  # (1, end, V)
        if start == 0:
            name = "prefill"
        elif size == 1:
            name = "decode"
        else:
            name = "chunk"
        text = "" if tokenizer is None else repr(tokenizer.decode(new[0].tolist()))
        written = sorted(written_slots(cache) - before)
        difference = (logits - plain_logits[:, start:]).abs().max().item()
        calls.append(Call(name, text, start, size, written, cached, uncached, difference))
    return calls


def logits_and_multiplications(model: Transformer, *inputs: Any) -> tuple[Tensor, int]:
    """The logits, and the multiplications of all matrix products. FlopCounterMode does not
    count those of the fused CPU kernel, so the unfused one is used.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(*inputs)
    return logits, counter.get_total_flops() // 2  # half of the flops are multiplications, half additions


@torch.no_grad()
def error_of_wrong_start_pos(model: Transformer, tokens: Tensor, start_pos: int, cache: KVCache) -> float:
    """The largest error of the logits of the last call if its start_pos is one too small."""
    new = tokens[:, start_pos:]
    copy = deepcopy(cache)
    right = model(new, start_pos, copy)
    return (model(new, start_pos - 1, copy) - right).abs().max().item()


def slot_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def call_table(calls: list[Call]) -> Table:
    """A row for each call, and their sum."""
    columns: list[object] = ["call", "T", "start_pos", "slots written", "slots read", "visible scores"]
    rows: list[list[object]] = []
    for call in calls:
        written, read = slot_range(call.written[0], call.written[-1]), slot_range(0, call.end - 1)
        visible = sum(range(call.start_pos + 1, call.end + 1))  # the first new token sees start_pos + 1 keys
        rows.append([call.name, call.T, call.start_pos, written, read, f"{visible} of {call.T * call.end}"])
    rows.append(["all", sum(call.T for call in calls), "", "", "", ""])
    if any(call.text for call in calls):  # not if the tokens are random
        for row, text in zip([columns, *rows], ["text", *(call.text for call in calls), ""]):
            row.insert(1, text)
    columns += ["multiplications", "without cache", "ratio", "logits differ by"]
    cached, uncached = [call.cached for call in calls], [call.uncached for call in calls]
    differences = [call.difference for call in calls]
    costs = zip([*cached, sum(cached)], [*uncached, sum(uncached)], [*differences, max(differences)])
    for row, (with_cache, without, difference) in zip(rows, costs):
        row += [f"{with_cache:,}", f"{without:,}", f"{without / with_cache:.1f}", short(difference)]
    notes = [
        "visible scores: those of the T x S scores that the mask does not hide; in the last T columns, a triangle.",
        "multiplications: of all matrix products; without cache: the same logits from a call on all tokens so far.",
        "logits differ by: largest difference of any logit between the two.",
    ]
    return Table("Each forward call: T new tokens at start_pos", [str(name) for name in columns], rows, notes)


def cache_table(cache: KVCache, args: ModelArgs, calls: list[Call], off_by_one: float) -> Table:
    """The size of the cache, and its content after the last call."""
    slots, filled = cache.max_seq_len, calls[-1].end
    total_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    slot_bytes = total_bytes // slots
    keys = cache.layers[0].keys
    ungrouped_bytes = slot_bytes * args.n_heads // args.n_kv_heads
    unused = "none" if filled == slots else "still NaN"
    if not all(part[:, :, filled:].isnan().all() for layer in cache.layers for part in (layer.keys, layer.values)):
        unused = "WRITTEN"
    if any(math.isnan(call.difference) for call in calls):
        unused = "READ: a logit is NaN"
    rows = [
        ("keys and values of a layer, each (B, K, max_seq_len, D)", f"{tuple(keys.shape)} {str(keys.dtype)[6:]}"),
        ("bytes a slot: 2 x L x K x D numbers", f"{slot_bytes:,}"),
        (f"bytes a slot if all {args.n_heads} query heads had separate keys and values", f"{ungrouped_bytes:,}"),
        (f"bytes held, {slots} slots", f"{total_bytes:,}"),
        (f"bytes in use, {filled} slots", f"{slot_bytes * filled:,}"),
        ("slots not in use, filled with NaN at the start", unused),
        ("the last call with start_pos one too small: logits differ by", short(off_by_one)),
    ]
    return Table("The cache after the last call", ("what", "how much"), rows)


def draw(figure: Any, calls: list[Call], max_seq_len: int) -> None:
    """The slots that each call writes and reads, and beside them the work of the call."""
    slots = max_seq_len if max_seq_len <= 64 else calls[-1].end  # a long cache would leave no room for the calls
    figure.set_size_inches(10.5, 1.9 + 0.4 * len(calls))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rows = list(range(len(calls)))
    starts, sizes = [call.start_pos for call in calls], [call.T for call in calls]
    edge: dict[str, Any] = {"height": 0.8, "edgecolor": "0.7"}
    left.barh(rows, slots, left=-0.5, color="white", label="empty", **edge)
    left.barh(rows, starts, left=-0.5, color=SKY, label="written earlier, read now", **edge)
    left.barh(rows, sizes, left=[start - 0.5 for start in starts], color=ORANGE, label="written now, then read", **edge)
    if slots <= 64:
        left.vlines([slot + 0.5 for slot in range(slots - 1)], -0.4, len(calls) - 0.6, color="0.7", linewidth=0.8)
    left.set_yticks(rows, [f"{call.name}, T = {call.T}, start_pos = {call.start_pos}" for call in calls])
    left.set(xlabel="slot of the cache, the position of its token", ylabel="forward call", title="slots")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.invert_yaxis()
    cached, uncached = [call.cached / 1e6 for call in calls], [call.uncached / 1e6 for call in calls]
    right.barh([row - 0.2 for row in rows], cached, 0.4, color=ORANGE, label="with the cache")
    right.barh([row + 0.2 for row in rows], uncached, 0.4, color="0.6", label="without a cache")
    right.set(xlabel="multiplications of the call, in millions", title="work")
    right.grid(axis="x", alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncol=3)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncol=2)
