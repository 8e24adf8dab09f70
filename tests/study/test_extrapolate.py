"""study endless: the loss with a cache that evicts old tokens, and the influence evicted tokens still have."""

import pytest
import torch
from study_models import TEXT, save_random

from model.decoding.endless import EndlessCache
from study.extrapolate import endless_logits, endless_steps, last_predictions, loss_table, memory_table
from study.topic import save_plot
from study.topics import run


@pytest.fixture
def model(small_model):
    return small_model().eval()  # 2 layers, 24 tokens of context: 6 are evicted at a time, and 4 kept


@torch.no_grad()
def test_forwards_of_many_tokens_give_the_logits_of_one_token_at_a_time(model):
    text = torch.randint(37, (77,))
    cache, start_pos, logits = EndlessCache(model), 0, []
    for token in text:
        start_pos = cache.make_room(start_pos)
        logits.append(model(token[None, None], start_pos, cache)[0, 0])
        start_pos += 1
    torch.testing.assert_close(endless_logits(model, text, keep=4), torch.stack(logits), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("keep", [0, 4])
def test_recomputed_logits_are_a_plain_forward_over_the_tokens_in_the_cache(model, keep):
    text = torch.randint(37, (50,))
    logits = endless_logits(model, text, keep, recompute=True)
    done = 0
    for start_pos, cached, _ in endless_steps(model, 50, keep):
        assert cached[:keep] == [*range(keep)][: len(cached)]
        assert len(cached) <= 24
        expected = model(text[None, cached])[0, start_pos:]
        torch.testing.assert_close(logits[done : cached[-1] + 1], expected, atol=1e-5, rtol=0)
        done = cached[-1] + 1
    assert done == 50
    texts = torch.stack((text, text.flip(0)))
    with_cache = torch.stack([endless_logits(model, each, keep)[-1] for each in texts]).double().log_softmax(-1)
    endless, recomputed = last_predictions(model, texts, keep, cached)
    assert torch.equal(endless, with_cache)
    torch.testing.assert_close(recomputed[0], logits[-1].double().log_softmax(-1))


def test_the_influence_of_a_token_is_the_mean_divergence_of_the_texts(model):
    texts = torch.randint(37, (2, 21))  # as long as the context, so the cache keeps all tokens
    back, in_cache, *found = memory_table(model, texts, keep=4).rows[1]
    changed = texts.clone()
    changed[:, -2 - back] = (changed[:, -2 - back] + 18) % 37
    with torch.no_grad():
        before, after = (model(each[:, :-1])[:, -1].double().log_softmax(-1) for each in (texts, changed))
    expected = (before.exp() * (before - after)).sum(-1).mean()
    assert [float(value) for value in found] == pytest.approx([expected.item()] * 2, rel=0.02, abs=1e-6)
    assert (back, in_cache) == (6, "yes")


@pytest.fixture
def saved(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return lambda scheme, max_seq_len=32: (save_random(tmp_path, scheme, max_seq_len)[0], tmp_path / "text.txt")


@pytest.mark.parametrize("scheme", ["rope", "alibi", "partial"])
def test_evicted_tokens_influence_later_ones_through_cached_keys_only(saved, scheme, tmp_path):
    path, text = saved(scheme)
    report = run("endless", model=path, data=(str(text),), factor=4, windows=2)
    losses, influence = report.tables
    assert [row[0] for row in losses.rows] == [
        f"{scheme}, as it is", "windows of 32", "endless, none kept", "endless, first 4 kept",
        "first 4 kept, recomputed",
    ]  # fmt: skip
    assert len({tuple(row[1:3]) for row in losses.rows}) == 1, "within the context all losses are equal"
    assert len({row[3] for row in losses.rows}) > 2
    assert losses.notes[1] == "A full cache evicts 8 tokens and rotates the keys of the later ones back by as many."

    rows = {back: (in_cache, endless, recomputed) for back, in_cache, endless, recomputed in influence.rows}
    assert rows[127][0] == rows[2][0] == "yes"
    for in_cache, _, recomputed in rows.values():
        assert (recomputed == "0") == (in_cache == "no"), "recomputing depends on the tokens in the cache only"
    assert rows[32][0] == "no"
    assert float(rows[32][1]) > 0, "the second layer's cached keys depend on it"
    assert rows[64][1] == rows[80][1] == "0", "two layers reach back two lengths at most"
    pytest.importorskip("matplotlib")
    save_plot(report.draw, tmp_path / "x.png")


@pytest.mark.parametrize("scheme", ["learned", "2d"])
def test_a_network_with_absolute_positions_is_refused(saved, scheme):
    path, text = saved(scheme)
    with pytest.raises(ValueError, match="this network's scores depend on them"):
        run("endless", model=path, data=(str(text),))


def test_each_column_is_named_after_the_positions_that_it_averages():
    table = loss_table("title", {"one": torch.arange(27.0)[None]}, 9, ["a note"])
    assert table.columns == ("method", "0-3", "4-8", "9-17", "18-26", "all")
    assert table.rows == [("one", "1.500", "6.000", "13.000", "22.000", "13.000")]
