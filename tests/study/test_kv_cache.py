"""study cache: its slots, multiplications and logits are those of the cache."""

import torch
from study_models import random_model

from model import KVCache, ModelArgs
from study.kv_cache import call_table, measure_calls

ARGS = ModelArgs(dim=24, n_layers=2, n_heads=3, n_kv_heads=1, head_dim=8, hidden_dim=32, vocab_size=41, max_seq_len=20)


def multiplications(T: int, S: int) -> int:
    """Counted by hand: T tokens through every matrix of ARGS, and T x S scores and weights of each head."""
    matrices = 24 * 24 + 2 * 24 * 8 + 24 * 24 + 3 * 24 * 32
    return 2 * (T * matrices + 2 * 3 * T * S * 8) + T * 24 * 41


@torch.no_grad()
def test_each_call_writes_the_slots_of_its_tokens_and_reads_all_slots_up_to_them():
    tokens = torch.randint(41, (1, 12))
    calls = measure_calls(random_model(ARGS), tokens, (5, 1, 4, 2), KVCache(ARGS))
    assert [call.name for call in calls] == ["prefill", "decode", "chunk", "chunk"]
    rows = call_table(calls).rows
    assert [row[3:6] for row in rows[:2]] == [("0-4", "0-4", "15/25"), (5, "0-5", "6/6")]
    assert [row[5] for row in rows[2:]] == [f"{7 + 8 + 9 + 10}/40", f"{11 + 12}/24"]
    assert all(call.difference < 1e-4 for call in calls)
    assert [call.cached for call in calls] == [multiplications(*n) for n in ((5, 5), (1, 6), (4, 10), (2, 12))]
    assert [call.uncached for call in calls] == [multiplications(n, n) for n in (5, 6, 10, 12)]
