#!/usr/bin/env python3
"""Continue a text with a trained model. The text goes to stdout, everything else to stderr.

python generate.py                                                generate a text with the newest run
python generate.py runs/demo --prompt "The list" --num_samples 3  continue a prompt, three times
python generate.py Qwen/Qwen3-0.6B --chat --prompt "Who is Ada?"  let a model of the Hub answer
"""

import startup

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tqdm import tqdm

from model.cli import REPEATED, Parser, explain_out_of_memory, parse, print_note, quantity
from model.cli.parser import format_flag
from model.config import Range
from model.decoding.options import DecodingOptions, Sampling, read_sampling

# Everything that imports PyTorch is imported by the functions that use it, so that --help does not wait for it.
if TYPE_CHECKING:
    from model.decoding.batches import Sample

COMMON = ("prompt", "max_new_tokens", "num_samples", "temperature", "top_p", "seed", "chat", "stop", "dtype", "compile")
SEPARATOR = "\n" + 40 * "-"  # between the texts of several samples
DEFAULT_NEW_TOKENS = 256  # default number of new tokens, if the context allows it
MEMORY_ADVICE = "give a smaller model, or lower --max_new_tokens or --batch_size"


@dataclass(frozen=True)
class Options(DecodingOptions):
    """Texts and model."""

    prompt: Annotated[
        tuple[str, ...],
        "text to continue; `--prompt -` reads it from stdin, so text from a pipe needs it; may be repeated",
        REPEATED,
    ] = ()
    prompt_file: Annotated[Path | None, "file with one prompt per line; of .jsonl, the field prompt of each line"] = (
        None
    )
    max_new_tokens: Annotated[
        int | None, "length of the continuation (default: 256, or what the context allows)", Range(1)
    ] = None
    num_samples: Annotated[int, "continuations of each prompt", Range(1, 1_000_000)] = 1
    batch_size: Annotated[int, "texts generated at the same time", Range(1)] = 16
    chat: Annotated[bool, "answer each prompt, with the model's chat template (a conversation: chat.py)"] = False
    endless: Annotated[bool, "continue beyond the context: the cache evicts the oldest tokens"] = False
    ignore_eos: Annotated[bool, "continue after an end-of-text token, up to max_new_tokens"] = False
    jsonl: Annotated[
        bool,
        "print one JSON object per sample: prompt, text, tokens, logprobs, finish_reason; and the rest of its row",
    ] = False

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.model and " " in str(self.model) and not os.path.exists(self.model):  # probably a prompt
            yield f"this text is not a model: did you mean {format_flag('--prompt', str(self.model))}?"
        if self.chat and not (self.prompt or self.prompt_file):
            yield "--chat answers prompts: add --prompt, or start chat.py to chat in the terminal"
        if not self.chat and (self.system is not None or self.template_var):
            yield "system and template_var are for the template of a chat: add --chat"


def main() -> None:
    options, given = parse(Parser("--prompt", COMMON, prog="generate.py", description=__doc__), Options, Sampling)

    from model.cli.machine import available_cores
    from model.decoding.batches import Sample, Speed, check_prompts, continue_samples
    from model.decoding.chat import Chat
    from model.decoding.endless import least_slots
    from model.decoding.opened_model import open_model
    from model.decoding.prompts import encode_prompts, read_prompts

    model = open_model(options)  # reads no weights yet, so that mistakes are found first
    path, stop = model.checkpoint.path, options.stop_strings
    sampling = read_sampling(given, path)
    chat = Chat(path, model.tokenizer, options.system, options.template_variables) if options.chat else None
    prompts = encode_prompts(read_prompts(options.prompt, options.prompt_file), model, chat)
    eos_ids = () if options.ignore_eos else (chat or model.tokenizer).eos_ids
    args = model.checkpoint.args
    lengths = {len(prompt.tokens) for prompt in prompts}
    max_new_tokens = options.max_new_tokens
    if max_new_tokens is None:
        room = DEFAULT_NEW_TOKENS if options.endless else args.max_seq_len - max(lengths)
        max_new_tokens = max(1, min(DEFAULT_NEW_TOKENS, room))
    check_prompts(args, [prompt.tokens for prompt in prompts], max_new_tokens, endless=options.endless)
    count = len(prompts) * options.num_samples
    rows = min(options.batch_size, count)
    if options.endless and len(lengths) > 1:
        rows = 1  # endless texts share a batch only if their prompts are equally long
    longest = max(lengths) + max_new_tokens
    if options.endless:
        longest = least_slots(longest, args.max_seq_len, options.compile, model.device)

    with available_cores(), explain_out_of_memory(MEMORY_ADVICE, model.device):
        network = model.load_for_decoding(options.compile, rows, longest, MEMORY_ADVICE)
        samples = (
            Sample(prompt, model.tokenizer, max_new_tokens, stop, eos_ids)
            for prompt in prompts
            for _ in range(options.num_samples)
        )
        speed = Speed()
        streamed = continue_samples(
            network, samples, sampling, speed, batch_size=rows, endless=options.endless, with_logprobs=options.jsonl
        )
        try:
            cut = print_samples(streamed, count, options, chat.opening if chat else None)
        except KeyboardInterrupt:
            print(flush=True)  # end the line of the unfinished text
            raise
        finally:
            speed.print(network)
        # A cut answer, or a text that was to end at a stop string, looks complete. Other texts always end at the limit.
        if cut and (options.chat or stop) and not options.jsonl:
            length = quantity(max_new_tokens, "token")
            print_note(f"note: {quantity(cut, 'text')} stopped at {length}: --max_new_tokens")


def print_samples(samples: "Iterator[Sample]", count: int, options: Options, opening: str | None) -> int:
    """Print the samples as they grow, or with --jsonl each as a JSON object when it has finished.

    Before a text comes ``opening``, or its prompt if that is None. If there is more than one batch, show a progress
    bar, unless the texts are printed on a terminal, too. Returns how many were cut at their maximal length.
    """
    cut = 0
    shown = 0  # characters of the current sample that are printed
    has_bar = count > options.batch_size and sys.stderr.isatty() and not sys.stdout.isatty()
    with tqdm(total=count, unit="sample", disable=not has_bar, file=sys.stderr) as bar:
        for sample in samples:
            if not options.jsonl:
                text = (sample.prompt.text if opening is None else opening) + sample.text
                print(text[shown:], end="", flush=True)
                shown = len(text)
            if sample.finish is None:
                continue
            count -= 1
            if sample.finish == "length":
                cut += 1
            bar.update()
            if options.jsonl:
                fields = {"prompt": sample.prompt.text, "text": sample.text, "tokens": sample.tokens}
                fields |= {"logprobs": [round(each, 6) for each in sample.logprobs], "finish_reason": sample.finish}
                fields = {**sample.prompt.fields, **fields}
                # Other encodings would lose characters
                is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
                print(json.dumps(fields, ensure_ascii=not is_unicode), flush=True)
            else:
                print(SEPARATOR if count else "", flush=True)
                shown = 0
    return cut


if __name__ == "__main__":
    startup.run(main, "generate.py")
