"""From tokens to texts: stop strings, ends, order, speeds."""

import itertools
import json

import pytest
from letters import EOS, LETTERS

from model import ModelArgs, Transformer
from model.decoding import samples as module
from model.decoding.network import for_decoding
from model.decoding.prompts import Prompt
from model.decoding.samples import Completion, Sample, Speed, StopStrings, complete
from model.decoding.sampling import Sampling


def prompt(text=""):
    return Prompt(text, LETTERS.encode(text))


@pytest.fixture
def scripted(monkeypatch):
    """``scripted(*texts)``: samples of a decode loop that says these texts, row by row; \\x01 is the end token."""
    network = Transformer(ModelArgs(dim=8, n_layers=1, n_heads=2, vocab_size=LETTERS.vocab_size, max_seq_len=999))

    def call(*texts, begin="", n=200, speed=None, on_step=lambda step: None, **options):
        call.batches = []

        def decode_batch(network, prompts, max_new_tokens, sampler, cache, eos_ids):
            sampler.logprobs = [-0.5] * len(prompts)
            first = sum(call.batches)
            call.batches.append(len(prompts))
            said = texts[first : first + len(prompts)]
            rows = [[EOS if c == 1 else 2 + c for c in text.encode()] for text in said]
            for step, tokens in enumerate(itertools.islice(itertools.zip_longest(*rows), max_new_tokens), 1):
                on_step(step)
                yield list(tokens)

        monkeypatch.setattr(module, "decode_batch", decode_batch)
        completion = Completion(n, **options)
        return complete(network, LETTERS, [prompt(begin)] * len(texts), completion, Sampling(), speed or Speed())

    return call


# Stop strings


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["END"], "a ENDs END", "a "),
        (["END"], "the EN", "the EN"),
        (["\n\n", "###"], "a\nb\n\nc", "a\nb"),
        (["aab"], "aaab", "a"),
        (["abcd", "c"], "abcd", "ab"),
        (["é"], "cafés", "caf"),
        ([], "all", "all"),
    ],
)
def test_stop_strings_cut_the_same_however_the_text_comes(stops, text, expected):
    for cuts in itertools.product([0, 1], repeat=len(text) - 1):
        pieces, start = [], 0
        for at, cut in enumerate(cuts, 1):
            if cut:
                pieces.append(text[start:at])
                start = at
        pieces.append(text[start:])
        stop = StopStrings(stops)
        given = "".join(map(stop.push, pieces))
        assert given + stop.flush() == expected
        assert stop.stopped == (expected != text)


def test_nothing_is_held_back_without_need():
    stop = StopStrings(["END"])
    assert [stop.push(piece) for piece in ["abE", "N", "x", "E", "ND"]] == ["ab", "", "ENx", "", ""]


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="stop string is empty"):
        StopStrings(["a", ""])


# Samples


def test_streamed_text_is_the_text_of_any_script(scripted):
    texts = [" two  spaces", "日本語 and 👩‍🚀 é", "a\x01never", "cut here###no"]
    seen = {}
    for sample in scripted(*(text + "\x01" for text in texts), begin="Say:", stop=["###"]):
        before = seen.get(id(sample), "")
        assert sample.text.startswith(before), "what was given out stays"
        seen[id(sample)] = before + sample.take()
    assert list(seen.values()) == [" two  spaces", "日本語 and 👩‍🚀 é", "a", "cut here"]


def test_each_end_has_its_name(scripted):
    found = {s.text: s.finish for s in scripted("xb\x01", "ab#", "abc", "q#", n=3, stop=["#"]) if s.finish}
    assert found == {"xb": "end", "ab": "stop", "abc": "length", "q": "stop"}


def test_half_a_stop_string_at_the_end_is_text(scripted):
    (*_, last) = scripted("ab##", n=4, stop=["###"])
    assert (last.text, last.finish) == ("ab##", "length")


def test_a_large_job_goes_in_bounded_batches(scripted):
    samples = [s for s in scripted(*(f"{i}\x01" for i in range(7)), batch_size=3) if s.finish]
    assert [sample.text for sample in samples] == list("0123456")
    assert scripted.batches == [3, 3, 1]


def test_a_batch_ends_when_all_its_samples_have(scripted):
    steps = []
    list(scripted("ab#" + 50 * "x", "#" + 50 * "y", on_step=steps.append, stop=["#"]))
    assert steps == [1, 2, 3], "the rows would go on, and nobody listens"


def test_samples_come_in_the_order_of_their_prompts(scripted):
    whole, order = {}, []
    for sample in scripted("longest of all\x01", "short\x01", "the third\x01"):
        whole[id(sample)] = whole.get(id(sample), "") + sample.take()
        if sample.finish:
            order.append(id(sample))
    assert [whole[key] for key in order] == ["longest of all", "short", "the third"]


def test_json_holds_what_was_asked_for(scripted):
    (*_, sample) = scripted("ab", begin="x", n=2)
    found = json.loads(json.dumps(sample.as_json(logprobs=False)))
    assert found == {"prompt": "x", "text": "ab", "tokens": [99, 100], "finish_reason": "length"}
    assert sample.as_json(logprobs=True)["logprobs"] == [-0.5, -0.5]


# Speed


def test_speeds_are_tokens_over_the_loops_own_time(scripted):
    now = [0.0]

    def wait(step):
        now[0] += {1: 2.0, 2: 0.5, 3: 0.25}[step]

    speed = Speed(clock=lambda: now[0])
    for _ in scripted("abc", "x\x01", begin="yz", n=3, speed=speed, on_step=wait):
        now[0] += 100  # the caller's own time
    assert (speed.prompt_tokens, speed.prompt_seconds) == (6, 2.0)
    assert (speed.new_tokens, speed.new_seconds) == (3, 0.75)
    assert str(speed) == "prompt: 6 tokens, 2.00 s, 3 tokens/s; new: 3 tokens, 0.75 s, 4 tokens/s"


def test_a_sample_decodes_after_its_prompt():
    """A decoder that drops the first space must not drop the one between prompt and continuation."""
    sample = Sample(prompt("Hi"), LETTERS, 9, StopStrings())
    for token in LETTERS.encode(" you", bos=False):
        sample.push(token, None)
    assert sample.text == " you"


def test_past_the_context_stop_strings_streams_and_log_probabilities_hold(small_model):
    """Several rows, four times the context: each is what it is alone, and its pieces are the whole decoded at once."""
    model = small_model(vocab_size=258, max_seq_len=24).eval()
    network = for_decoding(model)
    prompts = [Prompt(text, LETTERS.encode(text)) for text in ("one", "two", "six")]

    def texts(given, **options):
        found = {}
        shown = {}
        completion = Completion(96, endless=True, **options)
        for sample in complete(network, LETTERS, given, completion, Sampling(0.0), Speed()):
            shown[sample.prompt.text] = shown.get(sample.prompt.text, "") + sample.take()
            found[sample.prompt.text] = sample
        assert shown == {name: sample.text for name, sample in found.items()}
        return found

    whole = texts(prompts, logprobs=True)
    assert max(len(sample.tokens) for sample in whole.values()) == 96
    for prompt in prompts:
        sample = whole[prompt.text]
        assert texts([prompt])[prompt.text].tokens == sample.tokens
        assert len(sample.logprobs) == len(sample.tokens)
        assert all(score < 0 for score in sample.logprobs)
    long = max(whole.values(), key=lambda sample: len(sample.text))
    stop = long.text[-6:-3]
    cut = texts(prompts, stop=[stop])[long.prompt.text]
    assert cut.text == long.text[: long.text.index(stop)]
    assert cut.finish == "stop"
