"""study endless: the loss with a cache that evicts old tokens."""

import pytest
import torch
from study_models import save_random

from model.decoding.endless import EndlessCache
from study.extrapolate import endless_losses
from study.topics import run


@torch.no_grad()
def test_the_losses_are_those_of_one_token_at_a_time(small_model):
    model = small_model().eval()  # 24 tokens of context: 6 are evicted at a time, and 4 kept
    texts = torch.randint(37, (2, 78))
    cache, start_pos, logits = EndlessCache(model, 2), 0, []
    for tokens in texts[:, :-1].T:
        start_pos = cache.make_room(start_pos)
        logits.append(model(tokens[:, None], start_pos, cache)[:, 0])
        start_pos += 1
    expected = torch.nn.functional.cross_entropy(torch.stack(logits, -1), texts[:, 1:], reduction="none")
    torch.testing.assert_close(endless_losses(model, texts, keep=4), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("keep", [0, 4])
def test_evicted_tokens_leave_a_trace_from_the_second_layer_on_unless_recomputed(small_model, keep):
    texts = torch.randint(37, (2, 51))
    for layers in (1, 2):
        model = small_model(n_layers=layers).eval()
        cached, recomputed = (endless_losses(model, texts, keep, recompute) for recompute in (False, True))
        torch.testing.assert_close(cached[:, :24], recomputed[:, :24], atol=1e-5, rtol=0)
        gap = (cached - recomputed).abs().max()
        assert gap < 1e-4 if layers == 1 else gap > 1e-3


def test_a_network_with_absolute_positions_is_refused(tmp_path):
    path, _ = save_random(tmp_path, "2d")
    with pytest.raises(ValueError, match="this network's scores depend on them"):
        run("endless", model=path)
