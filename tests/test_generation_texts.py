"""From tokens to what people read: stop strings, ends, order, speeds."""

import itertools
import json
from types import SimpleNamespace

import pytest
from letters import EOS, LETTERS
from model.decoding.meter import Meter
from model.decoding.stop import StopStrings

from model.decoding.prompts import Prompt
from model.decoding.samples import Sample, complete, in_order
from model.generation import Step


def prompt(text=""):
    return Prompt(text, LETTERS.encode(text))


def scripted(*texts, log=None):
    """A decode loop that says these texts, row by row, whatever the prompts; \\x01 is the end token."""

    def decode(prompts, max_new_tokens, first_row=0, ended=None, **options):
        if log is not None:
            log.append((prompts, max_new_tokens, first_row, options))
        rows = [[EOS if c == 1 else 2 + c for c in t.encode()] for t in texts[first_row : first_row + len(prompts)]]
        for tokens in itertools.islice(itertools.zip_longest(*rows), max_new_tokens):
            yield Step([None if row in ended else t for row, t in enumerate(tokens)], [-0.5] * len(tokens))
            ended.update(row for row, token in enumerate(tokens) if token == EOS)

    return decode


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


def test_streamed_text_is_the_text_of_any_script():
    texts = [" two  spaces", "日本語 and 👩‍🚀 é", "a\x01never", "cut here###no"]
    seen = {}
    for sample in complete(scripted(*texts), LETTERS, [prompt("Say:")] * 4, 200, ["###"], 4):
        before = seen.get(id(sample), "")
        assert sample.text.startswith(before), "what was given out stays"
        seen[id(sample)] = sample.text
    assert list(seen.values()) == [" two  spaces", "日本語 and 👩‍🚀 é", "a", "cut here"]


def test_each_end_has_its_name():
    samples = complete(scripted("xb\x01", "ab#", "abc", "q#"), LETTERS, [prompt()] * 4, 3, ["#"], 4)
    found = {sample.text: sample.finish for sample in samples if sample.finish}
    assert found == {"xb": "end", "ab": "stop", "abc": "length", "q": "stop"}


def test_half_a_stop_string_at_the_end_is_text():
    (*_, last) = complete(scripted("ab##"), LETTERS, [prompt()], 4, ["###"], 1)
    assert (last.text, last.finish) == ("ab##", "length")


def test_a_large_job_goes_in_bounded_batches_and_numbers_its_rows():
    log = []
    texts = [f"{i}\x01" for i in range(7)]
    samples = [s for s in complete(scripted(*texts, log=log), LETTERS, [prompt()] * 7, 9, [], 3) if s.finish]
    assert [sample.text for sample in samples] == list("0123456")
    assert [(len(prompts), first) for prompts, _, first, _ in log] == [(3, 0), (3, 3), (1, 6)]


def test_samples_are_printed_one_after_the_other():
    samples = complete(scripted("short\x01", "a longer one", "third"), LETTERS, [prompt("p ")] * 3, 20, [], 3)
    whole, order = {}, []
    for sample, text in in_order(samples):
        whole[id(sample)] = whole.get(id(sample), "") + text
        if sample.finish and (not order or order[-1] != id(sample)):
            order.append(id(sample))
    assert [whole[key] for key in order] == ["p short", "p a longer one", "p third"]


def test_json_holds_what_was_asked_for():
    (*_, sample) = complete(scripted("ab"), LETTERS, [prompt("x")], 2, [], 1)
    found = json.loads(json.dumps(sample.as_json(logprobs=False)))
    assert found == {"prompt": "x", "text": "ab", "tokens": [99, 100], "finish_reason": "length"}
    assert sample.as_json(logprobs=True)["logprobs"] == [-0.5, -0.5]


# Speed


def test_speeds_are_tokens_over_the_loops_own_time():
    now = [0.0]

    def decode(prompts, n):
        for wait in (2.0, 0.5, 0.25):
            now[0] += wait
            yield SimpleNamespace(tokens=[1, None if wait == 0.25 else 2])

    meter = Meter(clock=lambda: now[0])
    for _ in meter.timed(decode)([[1, 2, 3], [1]], 3):
        now[0] += 100  # the caller's own time
    assert (meter.prompt_tokens, meter.prompt_seconds) == (4, 2.0)
    assert (meter.new_tokens, meter.new_seconds) == (3, 0.75)
    assert str(meter) == "prompt: 4 tokens, 2.00 s, 2 tokens/s; new: 3 tokens, 0.75 s, 4 tokens/s"


def test_a_sample_decodes_after_its_prompt():
    """A decoder that drops the first space must not drop the one between prompt and continuation."""
    sample = Sample(prompt("Hi"), LETTERS, StopStrings())
    for token in LETTERS.encode(" you", bos=False):
        sample.push(token, None)
    assert sample.text == " you"
