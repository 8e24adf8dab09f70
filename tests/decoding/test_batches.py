"""From tokens to text: stop strings, ends, order, tokens per second."""

import gc
import itertools
import weakref

import pytest
import torch
from letters import EOS, LETTERS

from model import ModelArgs, Transformer, generate
from model.decoding import batches as module
from model.decoding.batches import Prompt, Sample, Speed, continue_samples
from model.decoding.options import Sampling
from model.fast.step import for_decoding


def prompt(text=""):
    return Prompt(text, LETTERS.encode(text))


@pytest.fixture
def scripted(monkeypatch):
    """``scripted(*texts)``: samples of a fake decode loop that gives these texts, one a row; \\x01 is the end token."""
    network = Transformer(ModelArgs(dim=8, n_layers=1, n_heads=2, vocab_size=LETTERS.vocab_size, max_seq_len=999))

    def call(*texts, begin="", n=200, stop=(), speed=None, on_step=lambda step: None, **options):
        call.batches = []

        def decode_prompts(network, prompts, max_new_tokens, sampling, cache, first, logprobs):
            call.batches.append(len(prompts))
            batch = texts[first : first + len(prompts)]
            rows = [[EOS if byte == 1 else 2 + byte for byte in text.encode()] for text in batch]
            steps = itertools.zip_longest(*rows, fillvalue=EOS)
            for step, tokens in enumerate(itertools.islice(steps, max_new_tokens), 1):
                on_step(step)
                yield torch.tensor(tokens)[:, None]

        monkeypatch.setattr(module, "decode_prompts", decode_prompts)
        samples = [Sample(prompt(begin), LETTERS, n, stop, LETTERS.eos_ids) for _ in texts]
        return continue_samples(network, samples, Sampling(), speed or Speed(), **options)

    return call


def test_text_of_any_writing_system_is_streamed_correctly(scripted):
    texts = [" two  spaces", "日本語 and 👩‍🚀 é", "a\x01never", "cut here###no"]
    seen = {}
    for sample in scripted(*(text + "\x01" for text in texts), begin="Say:", stop=["###"]):
        assert sample.text.startswith(seen.get(id(sample), "")), "text that was streamed does not change"
        seen[id(sample)] = sample.text
    assert list(seen.values()) == [" two  spaces", "日本語 and 👩‍🚀 é", "a", "cut here"]


def test_finish_is_the_reason_of_the_end(scripted):
    found = {s.text: s.finish for s in scripted("xb\x01", "ab#", "abc", "q#", n=3, stop=["#"]) if s.finish}
    assert found == {"xb": "end", "ab": "stop", "abc": "length", "q": "stop"}


def test_a_sample_ignores_tokens_after_its_end():
    """Because the other rows of its batch may go on."""
    for text, stop in (("ab", ()), ("ab#", ("#",))):
        sample = Sample(prompt(), LETTERS, 2 if not stop else 9, stop)
        for token in LETTERS.encode(text + "cd", bos=False):
            sample.push(token)
        assert (sample.text, len(sample.tokens)) == ("ab", len(text))


def test_a_continuation_is_streamed_at_once_except_what_may_begin_a_stop_string():
    """A decoder that drops the first space must not drop the one between prompt and continuation."""
    sample, seen = Sample(prompt("Hi"), LETTERS, 9, ["u!"]), []
    for token in LETTERS.encode(" you", bos=False):
        sample.push(token)
        seen.append(sample.text)
    assert seen == [" ", " y", " yo", " yo"]


def test_many_prompts_are_decoded_in_batches_of_batch_size(scripted):
    samples = [s for s in scripted(*(f"{i}\x01" for i in range(7)), batch_size=3) if s.finish]
    assert [sample.text for sample in samples] == list("0123456")
    assert scripted.batches == [3, 3, 1]


def test_a_batch_ends_when_all_its_samples_have_ended(scripted):
    steps = []
    list(scripted("ab#" + 50 * "x", "#" + 50 * "y", on_step=steps.append, stop=["#"]))
    assert steps == [1, 2, 3], "the rows themselves would go on"


def test_speed_counts_only_the_time_of_the_decode_loop(scripted, monkeypatch, capsys):
    now = [0.0]

    def wait(step):
        now[0] += {1: 2.0, 2: 0.5, 3: 0.25}[step]

    speed = Speed()
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    for _ in scripted("abc", "x\x01", begin="yz", n=3, speed=speed, on_step=wait):
        now[0] += 100  # the caller's time
    assert (speed.prompt_tokens, speed.prompt_seconds) == (6, 2.0)
    assert (speed.new_tokens, speed.new_seconds) == (3, 0.75)
    for new_tokens, new in ((3, "; new, after the first: 3 tokens, 0.75 s, 4 tokens/s"), (0, "")):
        speed.new_tokens = new_tokens
        speed.print(Transformer(ModelArgs(dim=8, n_layers=1, n_heads=2, vocab_size=9)))
        assert capsys.readouterr().err == f"prompt: 6 tokens, 2.00 s, 3 tokens/s{new}; 1 thread\n"


def test_the_time_of_compiling_is_not_that_of_the_tokens(scripted, monkeypatch, capsys):
    now, compiled = [0.0], [4.0]  # before, by another batch of the network

    def wait(step):
        now[0] += 0.5
        if step == 2:
            now[0] += 56
            compiled[0] += 56

    speed = Speed()
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "compile_seconds", lambda network: compiled[0])
    list(scripted("abcd", begin="yz", n=4, speed=speed, on_step=wait))
    speed.print(Transformer(ModelArgs(dim=8, n_layers=1, n_heads=2, vocab_size=9)))
    expected = (
        "compiled in 56 s; prompt: 3 tokens, 0.50 s, 6 tokens/s; new, after the first: 3 tokens, 1.50 s, 2 tokens/s"
    )
    assert capsys.readouterr().err == f"{expected}; 1 thread\n"


@pytest.mark.parametrize(
    ("seconds", "path", "changed", "advised"),
    [(60.0, "g++", False, True), (59.9, "g++", False, False), (60.0, "", False, False), (60.0, "g++", True, False)],
    ids=["long", "short", "no compiler", "a network that cannot be compiled"],
)
def test_after_a_minute_of_decoding_a_note_says_that_compiling_might_have_paid(
    monkeypatch, capsys, seconds, path, changed, advised
):
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr("shutil.which", lambda name: name if name == path else None)
    model = Transformer(ModelArgs(dim=8, n_layers=1, n_heads=2, vocab_size=9))
    if changed:
        model.norm.register_forward_hook(lambda *_: None)
    Speed(new_tokens=600, new_seconds=seconds).print(for_decoding(model))
    assert ("\nnote: --compile takes half a minute once, " in capsys.readouterr().err) == advised


@pytest.mark.parametrize(("device", "context", "slots"), [("cpu", 999, 14), ("meta", 999, 256), ("meta", 99, 99)])
def test_caches_of_a_gpu_have_few_lengths_because_each_is_compiled_for(device, context, slots):
    network = Transformer(ModelArgs(dim=8, n_layers=1, n_heads=2, vocab_size=9, max_seq_len=context)).to(device)
    assert module.cache_for(network, [[1] * 5], 9, endless=False).max_seq_len == slots


@pytest.mark.parametrize("endless", [False, True])
def test_the_cache_of_a_batch_is_reused_or_freed_before_the_next_one_is_allocated(small_model, monkeypatch, endless):
    allocated = []
    zeros = torch.zeros

    def counted_zeros(*arguments, **options):
        tensor = zeros(*arguments, **options)
        if len(tensor.shape) == 4:  # the keys of a layer
            assert not any(keys() is not None for keys, _ in allocated), "the cache of the last batch"
            allocated.append((weakref.ref(tensor), len(tensor)))
        return tensor

    monkeypatch.setattr(torch, "zeros", counted_zeros)
    network = for_decoding(small_model(vocab_size=LETTERS.vocab_size, n_layers=1))
    samples = [Sample(prompt("a"), LETTERS, 3) for _ in range(5)]
    alone = [Sample(prompt("a"), LETTERS, 3) for _ in range(5)]
    gc.disable()
    try:
        assert all(list(continue_samples(network, samples, Sampling(seed=1), Speed(), batch_size=2, endless=endless)))
    finally:
        gc.enable()
    assert [rows for _, rows in allocated] == ([2, 2, 1] if endless else [2, 1])
    list(continue_samples(network, alone, Sampling(seed=1), Speed(), batch_size=1, endless=endless))
    assert [sample.text for sample in samples] == [sample.text for sample in alone]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"temperature": 0.8, "repetition_penalty": 1.3}])
def test_a_default_device_changes_no_text(small_model, options):
    """A notebook may have set it to a GPU; meta stands for one."""
    network = small_model()

    def text() -> list:
        return list(generate(network, [[1, 2, 3], [4, 5]], 6, seed=1, **options))

    expected = text()
    torch.set_default_device("meta")
    try:
        assert text() == expected
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_generate_records_the_log_probabilities_of_the_network(small_model, temperature):
    """Whatever the temperature and the filters are, and for prompts of unequal length."""
    model, prompts, logprobs = small_model().eval(), [[1, 2, 3], [4, 5]], []
    steps = generate(
        model, prompts, 4, temperature=temperature, top_k=5, repetition_penalty=1.3, seed=1, logprobs=logprobs
    )
    rows = list(zip(*steps))
    assert len(logprobs) == 4
    for number, (prompt_tokens, tokens) in enumerate(zip(prompts, rows)):
        logits = model(torch.tensor([[*prompt_tokens, *tokens]]))[0, len(prompt_tokens) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).flatten().tolist()
        assert [step[number] for step in logprobs] == pytest.approx(expected, abs=1e-4)
