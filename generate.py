"""Continue a text with a trained model: its own run directory, or a published Llama checkpoint.

python generate.py                                  a text from the newest run
python generate.py runs/demo --prompt "The list"    a continuation
python generate.py --help                           everything else
"""

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from model.cli import Parser, add_flags, build, read_flags, run_script
from model.cli.machine import check_device
from model.decoding.conversation import Conversation, converse
from model.decoding.meter import Meter
from model.decoding.prompts import encode, read_texts
from model.decoding.samples import Sample, complete, in_order
from model.decoding.settings import Sampling
from model.decoding.stop import StopStrings
from model.weights.checkpoint import newest_run

SEPARATOR = "\n" + 40 * "-"  # between the texts of several samples
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
    jsonl: Annotated[bool, "one JSON object a sample: prompt, text, tokens, finish_reason"] = False
    logprobs: Annotated[bool, "with --jsonl: each token's log-probability, in nats"] = False
    interactive: Annotated[bool, "a text in turns: you write a line, the model goes on"] = False
    no_cache: Annotated[bool, "read the whole text again for each token, to see what the cache saves"] = False
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], "of weights and cache"] = "auto"
    device: Annotated[str, "auto, cpu, cuda, cuda:N or mps"] = "auto"
    compile: Annotated[bool, "compile the step: pays off from some thousand tokens on"] = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_samples", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        check_device(self.device)
        if self.logprobs and not self.jsonl:
            raise ValueError("logprobs go into the JSON objects: add --jsonl")
        if self.compile and self.no_cache:
            raise ValueError("compile is for the cached step: leave --no_cache out")
        if self.interactive and (self.no_cache or self.jsonl or self.num_samples > 1):
            raise ValueError(
                "interactive is one text, cached, for people: leave --no_cache, --jsonl, --num_samples out"
            )


def main() -> int:
    parser = Parser(prog="generate.py", description="Continue a text. Text goes to stdout, all else to stderr.")
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
    options = build(Options, read_flags(flags, Options))
    sampling = build(Sampling, read_flags(flags, Sampling))
    StopStrings(flags.stop)
    if options.interactive and (flags.prompt or flags.prompt_file):
        raise ValueError("interactive takes its prompts from the terminal: leave --prompt and --prompt_file out")
    path = flags.model or newest_run()

    from model import weights

    weights.check(path, options.tokenizer)
    args = weights.load_args(path)
    tokenizer = weights.load_tokenizer(options.tokenizer or path, args.vocab_size)
    if not options.interactive:
        texts = read_texts(flags.prompt, flags.prompt_file)
        prompts = encode(texts, tokenizer, args.max_seq_len, options.max_new_tokens)
        prompts = [prompt for prompt in prompts for _ in range(options.num_samples)]

    from model import KVCache
    from model.cli.machine import has_native_bfloat16, pick_device, pick_dtype
    from model.generation import decode

    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    if options.dtype == "bfloat16" and not has_native_bfloat16(device):
        print(
            f"note: {device} has no bfloat16 instructions: arithmetic is emulated, --dtype auto chooses",
            file=sys.stderr,
        )
    model = weights.load_model(path, device=device, dtype=dtype)
    loop = functools.partial(
        decode,
        model,
        sampling=sampling,
        eos_ids=tokenizer.eos_ids,
        logprobs=options.logprobs,
        compile=options.compile,
        use_cache=not options.no_cache,
    )
    meter = Meter()
    try:
        if options.interactive:
            cache = KVCache(args, dtype=dtype, device=device)
            converse(Conversation(meter.timed(loop), tokenizer, cache), options.max_new_tokens or LENGTH, flags.stop)
        else:
            length = options.max_new_tokens or min(LENGTH, args.max_seq_len - max(len(p.tokens) for p in prompts))
            samples = complete(meter.timed(loop), tokenizer, prompts, length, flags.stop, options.batch_size)
            show(samples, len(prompts), options)
    except KeyboardInterrupt:
        print(flush=True)  # the text so far stays; what comes next starts on a line of its own
        print(meter, file=sys.stderr)
        raise
    print(meter, file=sys.stderr)
    return 0


def show(samples: Iterator[Sample], count: int, options: Options) -> None:
    """Text to stdout as it comes, samples apart by a line; or JSON lines. A bar for what takes more than one batch."""
    from tqdm import tqdm

    with tqdm(total=count, unit="sample", disable=count <= options.batch_size, file=sys.stderr) as bar:
        done = 0
        for sample, text in in_order(samples):
            if not options.jsonl:
                print(text, end="", flush=True)
            if sample.finish is None:
                continue
            bar.update()
            done += 1
            if options.jsonl:
                print(json.dumps(sample.as_json(options.logprobs), ensure_ascii=False), flush=True)
            else:
                print("" if done == count else SEPARATOR, flush=True)


if __name__ == "__main__":
    run_script(main, "generate.py")
