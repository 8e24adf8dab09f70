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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from tqdm import tqdm

from model.cli import (
    Parser,
    add_flags,
    explain_out_of_memory,
    print_note,
    quantity,
    read_flags,
    run_script,
)
from model.cli.machine import DeviceName, check_memory, choose_threads, has_native_bfloat16, pick_device, pick_dtype
from model.cli.parser import format_flag
from model.decoding.batches import check_prompts, check_uncached, memory_needed
from model.decoding.chat import Chat, open_chat, user_message
from model.decoding.conversation import Conversation, converse
from model.decoding.endless import is_shift_invariant
from model.decoding.network import for_decoding
from model.decoding.prompts import Prompt, read_texts, shorten_prompts
from model.decoding.samples import CompletionSettings, Sample, Speed, complete
from model.decoding.sampling import Sampling
from model.ranges import Range, raise_problems, range_problems
from model.text.tokenizer import Tokenizer
from model.training.config import read_run_settings
from model.transformer import Transformer
from model.weights import find_network, open_checkpoint
from model.weights.checkpoint import Checkpoint, newest_run

SEPARATOR = "\n" + 40 * "-"  # between the texts of several samples
DEFAULT_NEW_TOKENS = 256  # default number of new tokens, if the context allows it
MEMORY_ADVICE = "give a smaller model, or lower --max_new_tokens or --batch_size"


@dataclass(frozen=True)
class Options:
    """Output, model, device and dtype."""

    max_new_tokens: Annotated[
        int | None, "length of the continuation (default: 256, or what the context allows)", Range(1)
    ] = None
    num_samples: Annotated[int, "continuations of each prompt", Range(1, 1_000_000)] = 1
    batch_size: Annotated[int, "texts generated at the same time", Range(1)] = 16
    tokenizer: Annotated[Path | None, "tokenizer file (default: the one beside the model)"] = None
    network: Annotated[str | None, "the model is this subclass of Transformer: MODULE:CLASS"] = None
    jsonl: Annotated[bool, "print one JSON object per sample: prompt, text, tokens, finish_reason"] = False
    logprobs: Annotated[
        bool, "with --jsonl: add each token's log-probability (nats) before penalty, temperature and filters"
    ] = False
    interactive: Annotated[
        bool, "take turns in the terminal, with the chat template if there is one; /help lists commands"
    ] = False
    chat: Annotated[bool, "apply the model's chat template to each prompt; without --prompt, chat in the terminal"] = (
        False
    )
    system: Annotated[str | None, "system message at the start of a chat"] = None
    no_cache: Annotated[bool, "recompute the whole text for each token, for comparison with the cache"] = False
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        "dtype of weights and cache; auto: as stored if the device multiplies it natively, else float32; "
        "int8: matrices in eight bits",
    ] = "auto"
    device: DeviceName = "auto"
    endless: Annotated[bool, "continue beyond the context: the cache evicts the oldest tokens"] = False
    ignore_eos: Annotated[bool, "continue after an end-of-text token, up to max_new_tokens"] = False
    compile: Annotated[bool, "compile the network: takes half a minute once, later launches load it"] = False

    def __post_init__(self) -> None:
        raise_problems(range_problems(self))
        if self.logprobs and not self.jsonl:
            raise ValueError("logprobs are printed in JSON objects: add --jsonl")
        if self.no_cache:
            check_uncached(self.compile, self.endless)
        if self.system is not None and not (self.chat or self.interactive):
            raise ValueError("system is the first message of a chat: add --chat")
        if self.interactive and (self.no_cache or self.jsonl or self.ignore_eos or self.num_samples > 1):
            raise ValueError(
                "a conversation (--interactive, or --chat without --prompt) takes no --no_cache, --jsonl, --ignore_eos "
                "or --num_samples: leave them out"
            )


def main() -> None:
    flags, options, sampling = parse_flags()
    device = pick_device(options.device)
    checkpoint = open_checkpoint(flags.model or newest_run())  # reads no weights yet, so that mistakes are found first
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    chat = None
    if options.chat or options.interactive:
        chat = open_chat(checkpoint.path, tokenizer, options.system, required=options.chat)
    if options.ignore_eos:
        tokenizer.eos_ids = ()
    prompts: list[Prompt] = []
    max_new_tokens = options.max_new_tokens or DEFAULT_NEW_TOKENS
    if not options.interactive:
        prompts = read_prompts(flags, options, checkpoint, tokenizer, chat)
        if not (options.max_new_tokens or options.endless):  # by default fewer if the context allows no more
            longest = max(len(prompt.tokens) for prompt in prompts)
            max_new_tokens = max(1, min(DEFAULT_NEW_TOKENS, checkpoint.args.max_seq_len - longest))
        check_prompts(checkpoint.args, [prompt.tokens for prompt in prompts], max_new_tokens, options.endless)
        prompts = [prompt for prompt in prompts for _ in range(options.num_samples)]

    with explain_out_of_memory(MEMORY_ADVICE, device):
        network = load_network(checkpoint, options, device, prompts, max_new_tokens)
        speed = Speed()
        try:
            if options.interactive:
                endless = options.endless or is_shift_invariant(network)
                conversation = Conversation(network, tokenizer, sampling, speed, chat, endless)
                converse(conversation, max_new_tokens, flags.stop)
            else:
                completion = CompletionSettings(
                    max_new_tokens,
                    stop=flags.stop,
                    batch_size=options.batch_size,
                    logprobs=options.logprobs,
                    use_cache=not options.no_cache,
                    endless=options.endless,
                )
                print_samples(complete(network, tokenizer, prompts, completion, sampling, speed), prompts, options)
        except KeyboardInterrupt:
            print(flush=True)  # end the line of the unfinished text
            raise
        finally:
            if speed.prompt_tokens:
                print_note(f"{speed}; {quantity(torch.get_num_threads(), 'thread')}")


def parse_flags() -> tuple[argparse.Namespace, Options, Sampling]:
    description = "Continue a text. The text goes to stdout, everything else to stderr."
    parser = Parser("--prompt", prog="generate.py", description=description)
    parser.add_argument(
        "model", nargs="?", type=Path, metavar="MODEL", help="run directory or checkpoint (default: newest run)"
    )
    prompt_help = "text to continue; `--prompt -` reads it from stdin, so text from a pipe needs it; may be repeated"
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help=prompt_help)
    parser.add_argument("--prompt_file", type=Path, metavar="PATH", help="file with one prompt per line")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop before this text; may be repeated"
    )
    add_flags(parser, Sampling, Options)
    flags = parser.parse_args()
    options = Options(**read_flags(flags, Options))
    has_prompt = bool(flags.prompt or flags.prompt_file)
    if options.chat and not has_prompt:
        options = replace(options, interactive=True)
    if options.interactive and has_prompt:
        raise ValueError("--interactive reads prompts from the terminal: leave --prompt and --prompt_file out")
    if "" in flags.stop:
        raise ValueError("a stop string is empty: give text to stop at")
    if flags.model and " " in str(flags.model) and not os.path.exists(flags.model):  # probably a prompt
        raise ValueError(f"this text is not a model: did you mean {format_flag('--prompt', str(flags.model))}?")
    return flags, options, Sampling(**read_flags(flags, Sampling))


def read_prompts(
    flags: argparse.Namespace, options: Options, checkpoint: Checkpoint, tokenizer: Tokenizer, chat: Chat | None
) -> list[Prompt]:
    """Read and encode the prompts; those of endless texts are shortened to the context.

    Without a chat, the run's ``start_text`` replaces an empty prompt, which would be BOS alone: a model trained on few
    documents has rarely seen BOS.
    """
    texts = read_texts(flags.prompt, flags.prompt_file)
    if chat:
        encoded = [chat.encode([user_message(text)]) for text in texts]
    else:
        start_text = read_run_settings(checkpoint.path).get("start_text", "")
        encoded = [tokenizer.encode(text or start_text) for text in texts]
    prompts = [Prompt(text, tokens) for text, tokens in zip(texts, encoded)]
    return shorten_prompts(prompts, checkpoint.args.max_seq_len) if options.endless else prompts


def load_network(
    checkpoint: Checkpoint, options: Options, device: torch.device, prompts: Sequence[Prompt], max_new_tokens: int
) -> Transformer:
    """Load the weights, after checking that the cache of a batch fits into memory."""
    args = checkpoint.args
    variant = find_network(options.network) if options.network else None
    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    if options.dtype == "bfloat16" and not has_native_bfloat16(device):
        print_note(f"note: {device} has no bfloat16 instructions and emulates them slowly; --dtype auto avoids this")
    rows = max(1, min(options.batch_size, len(prompts)))
    if device.type == "cpu":
        longest = max((len(prompt.tokens) for prompt in prompts), default=args.max_seq_len)
        tokens = min(args.max_seq_len, longest + max_new_tokens)
        purpose = f"a batch of {quantity(rows, 'text')} of {quantity(tokens, 'token')}"
        check_memory(memory_needed(args, rows, tokens, dtype), purpose, MEMORY_ADVICE)
    model = checkpoint.model(device, dtype, variant, int8=options.dtype == "int8")
    choose_threads(device, rows * sum(weight.numel() for weight in model.state_dict().values()))
    return for_decoding(model, options.compile)


def print_samples(samples: Iterator[Sample], prompts: Sequence[Prompt], options: Options) -> None:
    """Print the samples as they grow, or with --jsonl each as a JSON object when it has finished.

    If there is more than one batch, show a progress bar.
    """
    unfinished = len(prompts)
    shown: int | None = None  # characters of the current sample that are printed; None before it begins
    with tqdm(total=unfinished, unit="sample", disable=unfinished <= options.batch_size, file=sys.stderr) as bar:
        for sample in samples:
            if not options.jsonl:
                prompt = sample.prompt.text if shown is None and not options.chat else ""
                print(prompt + sample.text[shown or 0 :], end="", flush=True)
                shown = len(sample.text)
            if sample.finish is None:
                continue
            unfinished -= 1
            bar.update()
            if options.jsonl:
                fields = {"prompt": sample.prompt.text, "text": sample.text, "tokens": sample.tokens}
                fields |= {"finish_reason": sample.finish}
                fields |= {"logprobs": sample.logprobs} if options.logprobs else {}
                is_unicode = (
                    (sys.stdout.encoding or "").lower().startswith("utf")
                )  # other encodings would lose characters
                print(json.dumps(fields, ensure_ascii=not is_unicode), flush=True)
            else:
                print(SEPARATOR if unfinished else "", flush=True)
                shown = None


if __name__ == "__main__":
    run_script(main, "generate.py")
