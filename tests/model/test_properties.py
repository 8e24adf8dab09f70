"""Properties that hold for all inputs: flags, the network, its cache, sampler, streams, tokenizers."""

import math
from contextlib import suppress
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from greedy import greedy, in_chunks
from hypothesis import assume, example, given
from hypothesis import strategies as st
from letters import LETTERS
from study_models import random_model

from generate import Options
from model import KVCache, ModelArgs, Transformer, generate
from model.cli import Parser, add_flags, instances, read_flags, read_toml, toml_text
from model.cli.settings import setting_fields
from model.decoding.batches import Prompt, Sample
from model.decoding.options import Sampling
from model.decoding.sampling import draw
from model.rope import apply_rotary_emb, precompute_freqs_cis
from model.text.tokenizer import split_text
from model.text.train_tokenizer import train_tokenizer
from model.training.config import SETTINGS_CLASSES
from model.weights import load_tokenizer, save_tokenizer
from study.topics import options_class
from study.walk import TOPICS

# --- flags ------------------------------------------------------------------------------------------------------------

WORDS = ["", "-", "--", "nan", "-inf", "1e400", "9" * 5000, "0x10", "1_0", "٣", "{", "{factor = 2}", "~", "a\nb"]
TABLE = '{type = "yarn", factor = 4.0, original_max_seq_len = 16}'
FLAGS = [(classes, name) for classes in (SETTINGS_CLASSES, (Sampling, Options)) for name in setting_fields(*classes)]
TOPIC_OPTIONS = [options_class(topic) for topic in TOPICS.values()]
FLAGS += [((options,), name) for options in TOPIC_OPTIONS for name in setting_fields(options)]


@st.composite
def flags(draw: st.DrawFn) -> tuple[tuple[type, ...], list[str]]:
    """One to three flags of one script with arbitrary values, about a third of them valid."""
    classes, first = draw(st.sampled_from(FLAGS))
    fields = setting_fields(*classes)
    arguments = []
    for name in [first, *draw(st.lists(st.sampled_from(list(fields)), max_size=2))]:
        kind = fields[name].kind
        if get_origin(kind) is Literal:
            valid = st.sampled_from(get_args(kind))
        else:
            valid = {int: st.integers(-1, 70), float: st.floats(-0.1, 2), bool: st.just("")}.get(kind, st.just(TABLE))
        value = draw(st.one_of(valid, valid, st.sampled_from(WORDS), st.integers(), st.floats(), st.text(max_size=4)))
        arguments.append(f"--{name}" if kind is bool else f"--{name}={value}")
    return classes, arguments


@given(flags())
def test_flags_are_refused_or_round_trip_through_a_toml_file(tmp_path_factory, classes_and_arguments):
    classes, arguments = classes_and_arguments
    parser = Parser(prog="script.py")
    add_flags(parser, *classes)
    with suppress(ValueError, SystemExit):
        settings = read_flags(parser.parse_args(arguments), *classes)
        made = instances(settings, *classes)
        file = tmp_path_factory.getbasetemp() / "flags.toml"
        file.write_text(toml_text(*made), encoding="utf-8")
        again = read_toml(file, *classes)
        assert repr(instances(again, *classes)) == repr(made)


# --- the network ------------------------------------------------------------------------------------------------------


@st.composite
def architectures(draw: st.DrawFn) -> ModelArgs:
    kv_heads, groups, layers = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    switches = {name: draw(st.booleans()) for name in ("tie_embeddings", "qkv_bias", "qk_norm")}
    return ModelArgs(dim=draw(st.integers(3, 20)), n_layers=layers, n_heads=kv_heads * groups, n_kv_heads=kv_heads,
                     head_dim=2 * draw(st.integers(1, 4)), hidden_dim=draw(st.integers(1, 30)),
                     vocab_size=draw(st.integers(2, 40)), max_seq_len=draw(st.integers(2, 30)),
                     norm_eps=draw(st.sampled_from([1e-5, 0.5])), **switches)  # fmt: skip


def by_hand(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """The forward pass written out with plain operations on the state dict."""
    args, w = model.args, model.state_dict()
    T = tokens.shape[1]
    table = precompute_freqs_cis(args.head_dim, T, args.rope_theta)
    hidden = torch.ones(T, T).triu(1).bool()

    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + args.norm_eps) * w[f"{name}.weight"]

    def heads(x, name):
        projected = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)
        return projected.unflatten(-1, (-1, args.head_dim))  # (B, T, H or K, D)

    h = w["tok_embeddings.weight"][tokens]
    for n in range(args.n_layers):
        at = f"layers.{n}."
        x = norm(h, at + "attention_norm")
        q, k, v = (heads(x, f"{at}attention.{name}") for name in ("wq", "wk", "wv"))
        if args.qk_norm:
            q, k = norm(q, at + "attention.q_norm"), norm(k, at + "attention.k_norm")
        q, k = apply_rotary_emb(q, k, table)
        k, v = (t.repeat_interleave(args.n_heads // args.n_kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(args.head_dim)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        h = h + torch.einsum("bhts,bshd->bthd", weights, v).flatten(2) @ w[at + "attention.wo.weight"].T
        x = norm(h, at + "ffn_norm")
        gate, up = x @ w[at + "feed_forward.w1.weight"].T, x @ w[at + "feed_forward.w3.weight"].T
        h = h + (gate * torch.sigmoid(gate) * up) @ w[at + "feed_forward.w2.weight"].T
    output = w["tok_embeddings.weight"] if args.tie_embeddings else w["output.weight"]
    return norm(h, "norm") @ output.T


GROUPED = ModelArgs(dim=48, n_layers=2, n_heads=6, n_kv_heads=2, head_dim=10, vocab_size=37, max_seq_len=24)


@given(architectures(), st.integers(1, 3), st.lists(st.integers(1, 8), min_size=1))
@example(GROUPED, 3, [1])  # one by one
@example(GROUPED, 1, [9, *[1] * 15])
@example(GROUPED, 3, [23, 1])
@torch.no_grad()
def test_logits_with_and_without_a_cache_equal_the_network_written_out(args, rows, chunks):
    """In chunks of any size, over and over until the context is full. So no logits depend on later tokens."""
    model = random_model(args)
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.uniform_(0.5, 1.5)  # ones would hide a norm that is left out or swapped
    tokens = torch.randint(args.vocab_size, (rows, args.max_seq_len))  # (B, T)
    expected = by_hand(model, tokens)
    torch.testing.assert_close(model(tokens), expected, atol=1e-4, rtol=1e-4)
    cached = in_chunks(model, tokens, chunks, KVCache(args, batch_size=rows))
    torch.testing.assert_close(cached, expected, atol=1e-4, rtol=1e-4)


@given(architectures(), st.randoms(use_true_random=False))
def test_a_row_of_a_batch_gives_the_tokens_it_gives_alone_without_a_cache(args, rng):
    model = random_model(args)
    new = rng.randint(1, args.max_seq_len - 1)
    lengths = [rng.randint(1, args.max_seq_len - new) for _ in range(rng.randint(1, 4))]
    prompts = [[rng.randrange(args.vocab_size) for _ in range(length)] for length in lengths]
    together = list(generate(model, prompts, new))
    for row, prompt in enumerate(prompts):
        assert [tokens[row] for tokens in together] == greedy(model, prompt, new)


# --- the sampler ------------------------------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-50, 50, width=32) | st.just(-math.inf), min_size=1, max_size=40)


@given(LOGITS.filter(lambda values: max(values) > -math.inf), st.floats(0, 1, exclude_max=True))
@example([-math.inf, 0.0, -math.inf, 0.0, -math.inf], 0.0)
@example([-math.inf, 0.0, -math.inf, 0.0, -math.inf], 1 - 2**-53)
def test_the_drawn_token_is_that_of_the_cumulative_distribution(values, uniform):
    token = draw(torch.tensor([values]), torch.tensor([uniform], dtype=torch.float64)).item()
    assert values[token] > -math.inf, "an excluded token is never drawn"
    weights = np.exp(np.array(values, dtype=np.float64) - max(values))
    upper = np.cumsum(weights / weights.sum())
    lower = np.concatenate(([0.0], upper[:-1]))
    assert lower[token] - 1e-5 <= uniform <= upper[token] + 1e-5


# --- text -------------------------------------------------------------------------------------------------------------

PARTS = [*"aé中🦜 \n\t\r", "\u0301", "\u200d", "\u3000", "\u2581", "\ufffd", "The", "  ", "<s>"]
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
TEXTS = st.lists(st.sampled_from(PARTS)).map("".join) | ANY


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """A tokenizer of every kind, by name."""
    base = tmp_path_factory.mktemp("tokenizers")
    found = {}
    text = ["The quick brown fox, naïve café — 中文字符, 🦜🦜. \n    def f(x):\n\treturn x\n" * 30]
    for kind in ("char", "bpe"):
        found[kind] = load_tokenizer(train_tokenizer(text, base / kind / "tokenizer.model", kind, 350))
    save_tokenizer(found["bpe"], base / "json")
    (base / "json" / "tokenizer.model").unlink()
    return found | {"json": load_tokenizer(base / "json")}


@pytest.mark.parametrize("kind", ["char", "bpe"])
@given(text=TEXTS)
def test_tokenizers_are_lossless(tokenizers, kind, text):
    tokenizer = tokenizers[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u2581", " ")  # how SentencePiece writes a space


@given(text=TEXTS)
def test_the_tokenizer_saved_as_tokenizer_json_encodes_the_same_way(tokenizers, text):
    assume(not any(special in text for special in ("\u2581", "<s>", "</s>", "<unk>")))  # special tokens in that format
    assert tokenizers["json"].encode(text) == tokenizers["bpe"].encode(text)


@pytest.mark.parametrize("kind", ["char", "bpe", "json"])
@given(text=TEXTS, ids=st.lists(st.integers(0, 258) | st.integers(0, 10_000)), prompt=TEXTS)
def test_streamed_text_equals_decoded_text(tokenizers, kind, text, ids, prompt):
    tokenizer = tokenizers[kind]
    ids = [token % tokenizer.vocab_size for token in ids] + tokenizer.encode(text)
    for prefix in ([], tokenizer.encode(prompt)):
        stream = tokenizer.stream(prefix)
        expected = tokenizer.decode(prefix + ids)[len(tokenizer.decode(prefix)) :]
        assert "".join(map(stream.push, ids)) + stream.flush() == expected


@given(st.text("ab🦜"), st.lists(st.text("ab🦜", min_size=1, max_size=4), max_size=3))
@example("abcd", ["abcd", "c"])  # the one that ends first counts
@example("aaab", ["aab"])
@example("a ENDs END", ["END"])
@example("the EN", ["END"])
def test_a_text_ends_before_its_first_stop_string(text, strings):
    tokens = LETTERS.encode(text, bos=False)
    sample = Sample(Prompt("", []), LETTERS, len(tokens), strings)
    for token in tokens:
        sample.push(token)
    matches = [(text.find(stop) + len(stop), text.find(stop)) for stop in strings if stop in text]  # (end, start)
    assert sample.text == (text[: min(matches)[1]] if matches else text)
    assert (sample.finish == "stop") == bool(matches)


@given(TEXTS, st.integers(1, 9))
def test_a_text_is_cut_into_chunks_of_at_most_the_given_size(text, size):
    chunks = list(split_text(text, size))
    assert "".join(chunks) == text
    assert all(0 < len(chunk) <= size for chunk in chunks)
