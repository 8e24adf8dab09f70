"""What generate.py, chat.py and evaluate.py share: the flags that choose a model, end a text, and sample tokens.

This file does not import PyTorch, so that ``--help`` does not wait for it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ..cli import POSITIONAL, REPEATED, Settings, print_note
from ..cli.files import read_json
from ..cli.settings import DeviceName
from ..config import Range, check_settings, setting_fields

# Settings of generation_config.json that Sampling does not have
NOT_FOLLOWED = (
    "num_beams", "penalty_alpha", "dola_layers", "guidance_scale", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff",
    "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias",
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "stop_strings",
    "min_length", "min_new_tokens", "exponential_decay_length_penalty", "watermarking_config",
)  # fmt: skip


@dataclass(frozen=True)
class ModelOptions:
    """Model, device and dtype: the base of the options of evaluate.py."""

    model: Annotated[
        Path | None, "run, checkpoint, or id of the Hugging Face Hub, ORG/NAME (default: newest run)", POSITIONAL
    ] = None
    tokenizer: Annotated[Path | None, "tokenizer file (default: the one beside the model)"] = None
    network: Annotated[str | None, "the model is this subclass of Transformer: MODULE:CLASS"] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        "dtype of weights and cache; auto: as stored if the device multiplies it natively, else float32; "
        "int8: matrices in eight bits",
    ] = "auto"
    device: DeviceName = "auto"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class DecodingOptions(ModelOptions):
    """The base of the options of generate.py and chat.py."""

    compile: Annotated[
        bool,
        "compile the network: takes half a minute or more once, later launches load it; on a GPU a minute or more "
        "for each size of batch and cache",
    ] = False
    stop: Annotated[
        tuple[str, ...],
        r"stop before this text, in which \n is a line break, \t a tab and \\ a backslash; may be repeated",
        REPEATED,
    ] = ()
    system: Annotated[str | None, "system message at the start of a chat"] = None
    template_var: Annotated[
        tuple[str, ...],
        "a variable of the chat template as NAME=VALUE, for example enable_thinking=false; may be repeated",
        REPEATED,
    ] = ()

    def __post_init__(self) -> None:
        check_settings(self, self.conflicts())

    def conflicts(self) -> Iterator[str]:
        if "" in self.stop:
            yield "stop is empty: give text to stop at"
        for text in self.template_var:
            name, equals, _ = text.partition("=")
            if not equals or not name.isidentifier():
                yield f"template_var is {text!r}: write NAME=VALUE, for example enable_thinking=false"

    @property
    def stop_strings(self) -> list[str]:
        """``stop`` with its escapes replaced."""
        characters = {"n": "\n", "t": "\t", "\\": "\\"}
        return [re.sub(r"\\([nt\\])", lambda escape: characters[escape[1]], text) for text in self.stop]

    @property
    def template_variables(self) -> dict[str, Any]:
        """``template_var`` by name. A value is JSON (true, 3, "a"), else a text."""
        pairs = (text.split("=", 1) for text in self.template_var)
        return {name: template_value(value) for name, value in pairs}


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token; a model's generation_config.json may have other defaults.

    Raises ValueError that lists every problem at once, each with its value and the fix.
    """

    temperature: Annotated[float, "0 always takes the likeliest token, 1 keeps the model's probabilities", Range(0)] = (
        0.8
    )
    top_k: Annotated[int | None, "draw among the K likeliest tokens; 0 is off", Range(0)] = None
    top_p: Annotated[
        float | None, "draw among the likeliest tokens that together have this probability", Range(1e-9, 1)
    ] = None
    min_p: Annotated[
        float | None, "draw among tokens that have at least this share of the likeliest one's probability", Range(0, 1)
    ] = None
    repetition_penalty: Annotated[
        float, "above 1 lowers the probability of tokens that are already in the text; 1 is off", Range(1e-6, 1_000_000)
    ] = 1.0
    seed: Annotated[int | None, "the same seed gives the same text (default: a new one each time)", Range(0)] = None

    def __post_init__(self) -> None:
        check_settings(self)


def read_sampling(given: Settings, directory: Path) -> Sampling:
    """The settings that are ``given``, and for the others those of generation_config.json, which a note names.

    As in transformers, ``do_sample`` false there means temperature 0, but not if a flag asks for a draw. Raises
    ValueError if a value is out of range; by then, the note has named the file.
    """
    file = directory / "generation_config.json"
    config = read_json(file) if file.is_file() else {}
    if given.keys() & {"top_k", "top_p", "min_p"}:
        config["temperature"] = config.get("temperature") or None  # 0 would ignore the flag
    elif config.get("do_sample") is False:
        config["temperature"] = 0.0
    names = [name for name in setting_fields(Sampling) if name != "seed" and name not in given]
    recommended: dict[str, Any] = {name: config[name] for name in names if config.get(name) is not None}
    if recommended:
        values = ", ".join(f"{name} {value}" for name, value in recommended.items())
        print_note(f"note: {values}, as {file} says; flags override it")
    others = [name for name in NOT_FOLLOWED if config.get(name) and config[name] != 1]  # 1 is off, as 0 and [] are
    if others:
        print_note(f"note: {', '.join(others)} of {file} cannot be followed, so other tokens are chosen than there")
    return Sampling(**recommended | given)


def template_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)  # as text, False would count as true
