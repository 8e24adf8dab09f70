"""study endless: the loss with a cache that evicts old tokens, and the influence evicted tokens still have."""

import pytest
import torch
from study_models import save_random

from model.decoding.endless import EndlessCache
from study.extrapolate import endless_logits, endless_losses, loss_table, memory_table
from study.topic import save_plot
from study.topics import run


@pytest.fixture
def model(small_model):
    return small_model().eval()  # 2 layers, 24 tokens of context: 6 are evicted at a time, and 4 kept


@torch.no_grad()
def test_the_losses_are_those_of_one_token_at_a_time(model):
    texts = torch.randint(37, (2, 78))
    cache, start_pos, logits = EndlessCache(model, 2), 0, []
    for tokens in texts[:, :-1].T:
        start_pos = cache.make_room(start_pos)
        logits.append(model(tokens[:, None], start_pos, cache)[:, 0])
        start_pos += 1
    expected = torch.nn.functional.cross_entropy(torch.stack(logits, -1), texts[:, 1:], reduction="none")
    torch.testing.assert_close(endless_losses(model, texts, keep=4), expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("keep", [0, 4])
def test_recomputed_logits_are_a_plain_forward_over_the_tokens_in_the_cache(model, keep):
    texts = torch.randint(37, (2, 50))
    done = 0
    for cached, logits in endless_logits(model, texts, keep, recompute=True):
        assert cached[:keep] == [*range(keep)][: len(cached)]
        assert len(cached) <= 24
        T = logits.shape[1]
        assert cached[-T:] == [*range(done, done + T)]
        torch.testing.assert_close(logits, model(texts[:, cached])[:, -T:], atol=1e-5, rtol=0)
        done += T
    assert done == 50


def test_the_influence_of_a_token_is_the_mean_divergence_of_the_texts(model):
    texts = torch.randint(37, (2, 100))
    back, in_cache, _, found = memory_table(model, texts, keep=4).rows[1]
    assert (back, in_cache) == (6, "yes")
    changed = texts.clone()
    changed[:, 93] = (changed[:, 93] + 18) % 37
    *_, (cached, _) = endless_logits(model, texts, 4)
    with torch.no_grad():
        before, after = (model(each[:, cached])[:, -1].double().log_softmax(-1) for each in (texts, changed))
    expected = (before.exp() * (before - after)).sum(-1).mean()
    assert float(found) == pytest.approx(expected.item(), rel=0.02, abs=1e-6)


@pytest.mark.parametrize("scheme", ["rope", "alibi"])
def test_evicted_tokens_influence_later_ones_through_cached_keys_only(scheme, tmp_path):
    path, _ = save_random(tmp_path, scheme)
    report = run("endless", model=path)
    losses, influence = report.tables
    assert [row[0] for row in losses.rows] == [
        f"{scheme}, as it is", "windows of 32", "endless, none kept", "endless, first 4 kept",
        "first 4 kept, recomputed",
    ]  # fmt: skip
    assert len({tuple(row[1:3]) for row in losses.rows}) == 1, "within the context all losses are equal"
    assert len({row[3] for row in losses.rows}) > 2

    rows = {back: (in_cache, endless, recomputed) for back, in_cache, endless, recomputed in influence.rows}
    assert rows[255][0] == rows[2][0] == "yes"
    for in_cache, _, recomputed in rows.values():
        assert (recomputed == "0") == (in_cache == "no"), "recomputing depends on the tokens in the cache only"
    assert rows[32][0] == "no"
    assert float(rows[32][1]) > 0, "the second layer's cached keys depend on it"
    assert rows[64][1] == rows[80][1] == "0", "two layers reach back two lengths at most"
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


def test_a_network_with_absolute_positions_is_refused(tmp_path):
    path, _ = save_random(tmp_path, "2d")
    with pytest.raises(ValueError, match="this network's scores depend on them"):
        run("endless", model=path)


def test_each_column_is_named_after_the_positions_that_it_averages():
    table = loss_table("title", {"one": torch.arange(72.0)[None]}, 9, ["a note"])
    assert table.columns == ("method", "0-3", "4-8", "9-17", "18-35", "36-71", "all")
    assert table.rows == [("one", "1.500", "6.000", "13.000", "26.500", "53.500", "35.500")]
