"""Continue a text with a trained model: its own run directory, or a published Llama checkpoint."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from tqdm import tqdm

from ..cli import (
    Parser,
    add_flags,
    decode_argument,
    from_settings,
    print_note,
    quantity,
    read_flags,
    run_script,
    script_name,
)
from ..cli.machine import check_memory, choose_threads, has_native_bfloat16, pick_device, pick_dtype
from ..cli.parser import format_flag
from ..decoding.batches import check_endless, memory_needed
from ..decoding.chat import Chat, open_chat
from ..decoding.conversation import Conversation, converse
from ..decoding.endless import is_shift_invariant
from ..decoding.network import for_decoding
from ..decoding.prompts import Prompt, check_fit, fit_endless, read_texts
from ..decoding.samples import Completion, Sample, Speed, check_stop_strings, complete
from ..decoding.sampling import Sampling
from ..text.tokenizer import Tokenizer
from ..training.config import run_settings
from ..transformer import Transformer
from ..weights import find_network, open_checkpoint
from ..weights.checkpoint import is_missing, newest_run
from . import startup

SEPARATOR = "\n" + 40 * "-"  # between the texts of several samples
MAX_SAMPLES = 1_000_000  # of a prompt
LENGTH = 256  # new tokens, unless the user says otherwise or the context is shorter


@dataclass(frozen=True)
class Options:
    """What is generated, and how it is computed."""

    max_new_tokens: Annotated[int | None, "length of the continuation (default: 256, or what the context allows)"] = (
        None
    )
    num_samples: Annotated[int, "continuations of each prompt"] = 1
    batch_size: Annotated[int, "texts that are generated at the same time"] = 16
    tokenizer: Annotated[Path | None, "tokenizer file (default: the one beside the model)"] = None
    network: Annotated[str | None, "module:Class of a model that is a subclass of Transformer"] = None
    jsonl: Annotated[bool, "one JSON object a sample: prompt, text, tokens, finish_reason"] = False
    logprobs: Annotated[bool, "with --jsonl: each token's log-probability, in nats"] = False
    interactive: Annotated[
        bool, "you write a line, the model continues or answers, and so on; /help lists commands"
    ] = False
    chat: Annotated[bool, "apply the model's chat template to each prompt; without prompts, to what you type"] = False
    system: Annotated[str | None, "the system's message, before all others of a chat"] = None
    no_cache: Annotated[bool, "compute the whole text again for each token, to see what the cache saves"] = False
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        "of weights and cache; auto is the stored one where the device multiplies it natively, else float32; "
        "int8 holds the matrices in eight bits",
    ] = "auto"
    device: Annotated[str, "auto, cpu, cuda, cuda:N or mps"] = "auto"
    endless: Annotated[bool, "continue past the context: the cache drops the oldest part of the text"] = False
    ignore_eos: Annotated[bool, "go on after a token that ends the text, up to max_new_tokens"] = False
    compile: Annotated[bool, "compile first; how much sooner tokens come depends on model and processor"] = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_samples", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        if self.num_samples > MAX_SAMPLES:
            raise ValueError(f"num_samples is {self.num_samples}: give at most {MAX_SAMPLES}")
        if self.logprobs and not self.jsonl:
            raise ValueError("logprobs go into the JSON objects: add --jsonl")
        for name in ("compile", "endless"):
            if getattr(self, name) and self.no_cache:
                raise ValueError(f"{name} is for decoding with the cache: leave --no_cache out")
        if self.system is not None and not (self.chat or self.interactive):
            raise ValueError("system is the first message of a chat: add --chat")
        if self.interactive and self.ignore_eos:
            raise ValueError("ignore_eos is for prompts: a turn of a conversation ends where the model ends its text")
        if self.interactive and (self.no_cache or self.jsonl or self.num_samples > 1):
            raise ValueError(
                "interactive is one text, cached, for people: leave --no_cache, --jsonl, --num_samples out"
            )


def parse() -> tuple[argparse.Namespace, Options, Sampling]:
    description = "Continue a text. Text goes to stdout, all else to stderr."
    parser = Parser(text_flag="--prompt", prog=script_name("generate"), description=description)
    parser.add_argument(
        "model", nargs="?", type=Path, metavar="MODEL", help="run directory or checkpoint (default: newest run)"
    )
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="text to continue, - for stdin; may be repeated"
    )
    parser.add_argument("--prompt_file", type=Path, metavar="PATH", help="a file with one prompt a line")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated"
    )
    add_flags(parser, Sampling, Options)
    flags = parser.parse_args()
    flags.prompt, flags.stop = ([decode_argument(text) for text in texts] for texts in (flags.prompt, flags.stop))
    options = from_settings(Options, read_flags(flags, Options))
    check_stop_strings(flags.stop)
    if options.chat and not (flags.prompt or flags.prompt_file):
        options = from_settings(Options, read_flags(flags, Options) | {"interactive": True})
    if options.interactive and (flags.prompt or flags.prompt_file):
        raise ValueError("interactive takes its prompts from the terminal: leave --prompt and --prompt_file out")
    if flags.model and is_missing(flags.model) and " " in str(flags.model):  # no directory, but what to continue
        raise ValueError(f"this text is no model: did you mean {format_flag('--prompt', str(flags.model))}?")
    return flags, options, from_settings(Sampling, read_flags(flags, Sampling))


def main() -> int:
    flags, options, sampling = parse()
    network, tokenizer, prompts, length, chat = load(flags, options)
    speed = Speed()
    try:
        if options.interactive:
            endless = options.endless or is_shift_invariant(network)
            converse(Conversation(network, tokenizer, sampling, speed, chat, endless), length, flags.stop)
            return 0
        completion = Completion(
            length, flags.stop, options.batch_size, options.logprobs, not options.no_cache, options.endless
        )
        samples = complete(network, tokenizer, prompts, completion, sampling, speed)
        few = len(prompts) <= options.batch_size
        with tqdm(total=len(prompts), unit="sample", disable=few, file=sys.stderr) as bar:
            left = len(prompts)
            for sample in samples:
                if sample.finish is not None:
                    left -= 1
                show(sample, options, last=left == 0)
                bar.update(sample.finish is not None)
    except torch.OutOfMemoryError:
        raise ValueError(f"{options.device} has too little memory: lower --batch_size or --max_new_tokens") from None
    except KeyboardInterrupt:
        print(flush=True)  # the text so far stays; what comes next starts on a line of its own
        raise
    finally:
        if speed.prompt_tokens:
            busy = ", busy machine" if startup.BUSY else ""
            print_note(f"{speed}; {quantity(torch.get_num_threads(), 'thread')}{busy}")
    return 0


def load(flags: argparse.Namespace, options: Options) -> tuple[Transformer, Tokenizer, list[Prompt], int, Chat | None]:
    """The decoding network, the tokenizer, each prompt once for each of its samples, how many new tokens they get, and
    the chat template, where one is to be applied.

    Whatever can be wrong is found before the weights are read.
    """
    device = pick_device(options.device)
    checkpoint = open_checkpoint(flags.model or newest_run())
    tokenizer = checkpoint.tokenizer(options.tokenizer)
    variant = find_network(options.network) if options.network else None
    dtype = pick_dtype(options.dtype, device, checkpoint.dtype)
    if options.dtype == "bfloat16" and not has_native_bfloat16(device):
        print_note(f"note: {device} has no bfloat16 instructions: arithmetic is emulated, --dtype auto chooses")

    args, length = checkpoint.args, options.max_new_tokens or LENGTH
    wanted = options.chat or options.interactive
    chat = open_chat(checkpoint.path, tokenizer, options.system, required=options.chat) if wanted else None
    if options.ignore_eos:
        tokenizer.eos_ids = ()
    prompts: list[Prompt] = []
    if not options.interactive:
        texts = read_texts(flags.prompt, flags.prompt_file)
        start = run_settings(checkpoint.path).get("start_text", "")  # of a text without a prompt: BOS alone is rare
        tokens_of = chat.encode_questions(texts) if chat else (tokenizer.encode(text or start) for text in texts)
        prompts = [Prompt(text, tokens) for text, tokens in zip(texts, tokens_of)]
        if options.endless:
            prompts = fit_endless(prompts, args.max_seq_len)
        else:
            check_fit(prompts, args.max_seq_len, options.max_new_tokens)
            length = options.max_new_tokens or min(LENGTH, args.max_seq_len - max(len(p.tokens) for p in prompts))
        prompts = [prompt for prompt in prompts for _ in range(options.num_samples)]
    for first in range(0, len(prompts), options.batch_size) if options.endless else ():
        check_endless(variant or Transformer, [p.tokens for p in prompts[first : first + options.batch_size]])
    rows = max(1, min(options.batch_size, len(prompts)))
    if device.type == "cpu":
        tokens = min(args.max_seq_len, max((len(p.tokens) + length for p in prompts), default=args.max_seq_len))
        check_memory(memory_needed(args, rows, tokens, dtype), f"a batch of {rows} texts of {tokens} tokens")
    model = checkpoint.model(device, dtype, variant, int8=options.dtype == "int8")
    choose_threads(device, rows * sum(weight.numel() for weight in model.state_dict().values()))
    return for_decoding(model, options.compile), tokenizer, prompts, length, chat


def show(sample: Sample, options: Options, last: bool) -> None:
    """Its new text to stdout, and a line after it where others follow; or, once it has finished, a JSON line."""
    if not options.jsonl:
        print(sample.take(with_prompt=not options.chat), end="", flush=True)
    if sample.finish is not None:
        line = json.dumps(sample.as_json(options.logprobs), ensure_ascii=False)
        print(line if options.jsonl else "" if last else SEPARATOR, flush=True)


if __name__ == "__main__":
    run_script(main, script_name("generate"))
