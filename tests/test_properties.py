"""What must hold for any input, not only for those somebody thought of: flags, cache, sampler, streams, tokenizers."""

import argparse
import random
from contextlib import suppress
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from damage import EXTREME
from hypothesis import assume, given
from hypothesis import strategies as st

from generate import Options
from model import KVCache, ModelArgs, Transformer, generate
from model.cli import Parser, add_flags, build, read_flags, read_toml, write_toml
from model.cli.settings import hints
from model.decoding.batches import memory_needed
from model.decoding.samples import StopStrings
from model.decoding.sampling import Sampling, apply_filters, draw
from model.study import TOPICS
from model.text.readers import split_documents, split_text
from model.text.train_tokenizer import train_tokenizer
from model.training.config import CLASSES
from model.weights import load_tokenizer, save_tokenizer, tokenizer_files

# --- flags ------------------------------------------------------------------------------------------------------------

WORDS = ["", "-", "--", "nan", "-inf", "1e400", "9" * 5000, "0x10", "1_0", "٣", "{", "[" * 2000, "{factor = 2}", "\udce9", "~", "a\nb"]
TABLE = '{type = "yarn", factor = 4.0, original_max_seq_len = 16}'
FLAGS = [(classes, name) for classes in (CLASSES, (Sampling, Options)) for name in hints(*classes)]
FLAGS += [((topic,), name) for topic in TOPICS.values() for name in hints(topic)]


@st.composite
def flags(draw: st.DrawFn) -> tuple[tuple[type, ...], list[str]]:
    """One to three flags of one script with anything as values, often such as they take."""
    classes, first = draw(st.sampled_from(FLAGS))
    kinds, words = hints(*classes), []
    for name in [first, *draw(st.lists(st.sampled_from(list(kinds)), max_size=2))]:
        kind = kinds[name][0]
        own = {int: st.integers(-1, 70), float: st.floats(-0.1, 2), bool: st.just("")}.get(kind, st.just(TABLE))
        own = st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else own
        value = draw(st.one_of(own, own, st.sampled_from(WORDS), st.integers(), st.floats(), st.text(max_size=4)))
        words.append(f"--{name}" if kind is bool else f"--{name}={value}")
    return classes, words


@given(flags())
def test_flags_are_refused_or_survive_the_way_through_a_file(tmp_path_factory, said):
    classes, words = said
    parser = Parser(prog="script.py")
    add_flags(parser, *classes)
    with suppress(ValueError, SystemExit):
        settings = read_flags(parser.parse_args(words), *classes)
        made = [build(cls, settings) for cls in classes]
        file = tmp_path_factory.getbasetemp() / "flags.toml"
        file.write_text(write_toml(*made), encoding="utf-8")
        again = read_toml(file, *classes)
        assert [build(cls, again) for cls in classes] == made
