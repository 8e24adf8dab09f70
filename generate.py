#!/usr/bin/env python3
"""Continue a text with a trained model: a run directory or a published checkpoint.

python generate.py                                  generate a text with the newest run
python generate.py runs/demo --prompt "The list"    continue a prompt
python generate.py --help                           list all flags
"""

import startup  # noqa: F401, I001  must come before torch

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from tqdm import tqdm

from model.cli import Parser, add_flags, explain_out_of_memory, print_note, quantity, read_flags, run_script, user_path
from model.cli.machine import check_memory
from model.cli.parser import format_flag
from model.decoding.batches import Sample, Speed, check_prompts, continue_samples, memory_needed
from model.decoding.options import (
    Compile,
    ModelOptions,
    add_model,
    add_text_flags,
    open_model,
    print_speed,
    read_sampling,
)
from model.decoding.prompts import read_prompts
from model.decoding.sampling import Sampling
from model.ranges import Range

SEPARATOR = "\n" + 40 * "-"  # between the texts of several samples
DEFAULT_NEW_TOKENS = 256  # default number of new tokens, if the context allows it
MEMORY_ADVICE = "give a smaller model, or lower --max_new_tokens or --batch_size"


@dataclass(frozen=True)
class Options(ModelOptions):
    """Texts and model."""

    max_new_tokens: Annotated[
        int | None, "length of the continuation (default: 256, or what the context allows)", Range(1)
    ] = None
    num_samples: Annotated[int, "continuations of each prompt", Range(1, 1_000_000)] = 1
    batch_size: Annotated[int, "texts generated at the same time", Range(1)] = 16
    chat: Annotated[bool, "answer each prompt, with the model's chat template (a conversation: chat.py)"] = False
    endless: Annotated[bool, "continue beyond the context: the cache evicts the oldest tokens"] = False
    ignore_eos: Annotated[bool, "continue after an end-of-text token, up to max_new_tokens"] = False
    jsonl: Annotated[bool, "print one JSON object per sample: prompt, text, tokens, finish_reason"] = False
    compile: Compile = False


def main() -> None:
    flags = parse_flags()
    options = Options(**read_flags(flags, Options))
    model = open_model(flags.model, options)  # reads no weights yet, so that mistakes are found first
    args = model.args
    sampling = read_sampling(model.path, read_flags(flags, Sampling))
    prompts, chat = read_prompts(flags, model, as_questions=options.chat)
    eos_ids = chat.eos_ids if chat else model.tokenizer.eos_ids
    if options.ignore_eos:
        eos_ids = ()
    longest = max(len(prompt.tokens) for prompt in prompts)
    max_new_tokens = options.max_new_tokens or DEFAULT_NEW_TOKENS
    if not (options.max_new_tokens or options.endless):  # by default fewer if the context allows no more
        max_new_tokens = max(1, min(DEFAULT_NEW_TOKENS, args.max_seq_len - longest))
    check_prompts(args, [prompt.tokens for prompt in prompts], max_new_tokens, endless=options.endless)
    prompts = [prompt for prompt in prompts for _ in range(options.num_samples)]
    rows = min(options.batch_size, len(prompts))
    if options.endless and len({len(prompt.tokens) for prompt in prompts}) > 1:
        rows = 1  # endless texts share a batch only if their prompts are equally long
    tokens = min(args.max_seq_len, longest + max_new_tokens)
    shapes = [stored.shape for stored in model.checkpoint.stored.values()]
    needed = memory_needed(args, shapes, rows, tokens, model.dtype, options.dtype == "int8")
    purpose = f"the model with a batch of {quantity(rows, 'text')} of {quantity(tokens, 'token')}"
    check_memory(needed, purpose, MEMORY_ADVICE, model.device)

    with explain_out_of_memory(MEMORY_ADVICE, model.device):
        network = model.load_for_decoding(options.compile, rows)
        samples = (Sample(prompt, model.tokenizer, max_new_tokens, flags.stop, eos_ids) for prompt in prompts)
        speed = Speed()
        streamed = continue_samples(network, samples, sampling, speed, batch_size=rows, endless=options.endless)
        try:
            cut = print_samples(streamed, len(prompts), options, chat.opening if chat else None)
        except KeyboardInterrupt:
            print(flush=True)  # end the line of the unfinished text
            raise
        finally:
            print_speed(speed)
        # An answer, or a text up to a stop string, would be taken for a whole one. Other texts are cut by intention.
        if cut and (options.chat or flags.stop) and not options.jsonl:
            count = quantity(max_new_tokens, "token")
            print_note(f"note: {quantity(cut, 'text')} stopped at {count}: --max_new_tokens")


def parse_flags() -> argparse.Namespace:
    description = "Continue a text. The text goes to stdout, everything else to stderr."
    parser = Parser("--prompt", prog="generate.py", description=description)
    add_model(parser)
    prompt_help = "text to continue; `--prompt -` reads it from stdin, so text from a pipe needs it; may be repeated"
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help=prompt_help)
    file_help = "file with one prompt per line; of .jsonl, the field prompt of each line"
    parser.add_argument("--prompt_file", type=user_path, metavar="PATH", help=file_help)
    add_text_flags(parser)
    add_flags(parser, Sampling, Options)
    flags = parser.parse_args()
    if flags.model and " " in str(flags.model) and not os.path.exists(flags.model):  # probably a prompt
        raise ValueError(f"this text is not a model: did you mean {format_flag('--prompt', str(flags.model))}?")
    return flags


def print_samples(samples: Iterator[Sample], count: int, options: Options, opening: str | None) -> int:
    """Print the samples as they grow, or with --jsonl each as a JSON object when it has finished.

    Before a text comes ``opening``, or its prompt if that is None.

    If there is more than one batch, show a progress bar. Returns how many were cut at their maximal length.
    """
    cut = 0
    shown: int | None = None  # characters of the current sample that are printed; None before it begins
    has_bar = count > options.batch_size and sys.stderr.isatty()
    with tqdm(total=count, unit="sample", disable=not has_bar, file=sys.stderr) as bar:
        for sample in samples:
            if not options.jsonl:
                if shown is None:
                    print(sample.prompt.text if opening is None else opening, end="")
                print(sample.text[shown or 0 :], end="", flush=True)
                shown = len(sample.text)
            if sample.finish is None:
                continue
            count -= 1
            if sample.finish == "length":
                cut += 1
            bar.update()
            if options.jsonl:
                fields = {"prompt": sample.prompt.text, "text": sample.text, "tokens": sample.tokens}
                fields |= {"finish_reason": sample.finish}
                # Other encodings would lose characters
                is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
                print(json.dumps(fields, ensure_ascii=not is_unicode), flush=True)
            else:
                print(SEPARATOR if count else "", flush=True)
                shown = None
    return cut


if __name__ == "__main__":
    run_script(main, "generate.py")
