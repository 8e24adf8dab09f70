#!/usr/bin/env python3
"""Chat with a model in the terminal, with the chat template of the checkpoint if it has one.

python chat.py                                                talk to the newest run
python chat.py Qwen/Qwen3-0.6B --system "Answer in a word."   to a model of the Hub, with a system message
python chat.py runs/chats --temperature 0.3                   more predictable answers

/help lists the commands. From a pipe, each line is a turn.
"""

import startup

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from model.cli import Parser, explain_out_of_memory, parse, print_note, quantity
from model.cli.settings import from_table
from model.config import Range
from model.decoding.options import DecodingOptions, Sampling, read_sampling
from model.decoding.terminal import END_KEYS, Command, greet, read_turn

# Everything that imports PyTorch is imported by the functions that use it, so that --help does not wait for it.
if TYPE_CHECKING:
    from model.decoding.conversation import Conversation

MEMORY_ADVICE = "give a smaller model, or lower --context"
COMMON = ("system", "temperature", "top_p", "max_new_tokens", "context", "seed", "dtype", "compile")  # shown first


@dataclass(frozen=True)
class Options(DecodingOptions):
    """Conversation and model."""

    max_new_tokens: Annotated[int, "length of an answer at most", Range(1)] = 256
    context: Annotated[
        int | None, "tokens in the cache at most, then the oldest are evicted (default: the model's)", Range(1)
    ] = None


def main() -> None:
    options, given = parse(Parser("--system", COMMON, prog="chat.py", description=__doc__), Options, Sampling)

    from model.cli.machine import available_cores
    from model.decoding.batches import Speed
    from model.decoding.chat import Chat, find_template
    from model.decoding.conversation import Conversation
    from model.decoding.endless import checked_context, least_slots
    from model.decoding.opened_model import open_model

    model = open_model(options)  # reads no weights yet, so that mistakes are found first
    context = checked_context(model.checkpoint.args, options.context)
    path = model.checkpoint.path
    sampling = read_sampling(given, path)
    chat = None  # without a template, the model continues the user's lines
    if find_template(path)[1] is not None or options.system is not None or options.template_var:
        chat = Chat(path, model.tokenizer, options.system, options.template_variables)

    with available_cores(), explain_out_of_memory(MEMORY_ADVICE, model.device):
        slots = least_slots(options.max_new_tokens, context, options.compile, model.device)
        network = model.load_for_decoding(options.compile, 1, slots, MEMORY_ADVICE)
        speed = Speed()
        conversation = Conversation(network, model.tokenizer, sampling, speed, chat, context)
        if chat is None:
            print_note(f"note: {path} has no chat template: it continues your lines, and does not answer")
        try:
            converse(conversation, options.max_new_tokens, options.stop_strings)
        finally:
            speed.print(network)


def commands_of(conversation: "Conversation") -> dict[str, Command]:
    """What a user can type instead of a text."""

    def undo(argument: str) -> None:
        print_note(f"(taken back: {conversation.undo()[:60]})")

    def reset(argument: str) -> None:
        conversation.reset()
        print_note("(the conversation is cleared)")

    def set_system(text: str) -> None:
        conversation.set_system(text)
        print_note("(the system message is set; /reset clears what was said before)")

    def set_sampling(argument: str) -> None:
        name, _, value = argument.partition(" ")
        if name:
            conversation.sampling = replace(conversation.sampling, **from_table({name: value.strip()}, Sampling))
        print_note(", ".join(f"{name} {value}" for name, value in vars(conversation.sampling).items()))

    def show_context(argument: str) -> None:
        print_note(f"({conversation.cached - conversation.cache.evicted:,} of {conversation.cache.context:,} tokens)")

    return {
        "/undo": Command("take back the last turn", undo),
        "/retry": Command("give another answer to it", lambda argument: conversation.undo()),
        "/reset": Command("clear the conversation", reset),
        "/system": Command("replace the system message", set_system, "TEXT"),
        "/set": Command("change a setting, as temperature 0.2; without a name, list them", set_sampling, "NAME VALUE"),
        "/context": Command("how many tokens are in the context", show_context),
    }


def converse(conversation: "Conversation", max_new_tokens: int, stop: Sequence[str]) -> None:
    """Take turns until stdin ends or the user types /exit. Ctrl-C ends only the turn."""
    greet()
    commands = commands_of(conversation)
    while True:
        try:
            line = read_turn(commands)
            if line is None:
                return
            evicted_before = conversation.cache.evicted
            shown = 0
            if conversation.chat:
                print(conversation.chat.opening, end="")
            for sample in conversation.turn(line, max_new_tokens, stop):
                print(sample.text[shown:], end="", flush=True)
                shown = len(sample.text)
            print(flush=True)
            if sample.finish == "length":
                print_note(f"(stopped at {quantity(max_new_tokens, 'token')}: --max_new_tokens)")
            evicted = conversation.cache.evicted
            if evicted not in (0, evicted_before):
                limit = conversation.cache.context
                print_note(f"(the context of {limit} tokens is full: {evicted} have been evicted)")
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            print_note(f"{error}: give another line")
        except KeyboardInterrupt:
            print_note(f"\n({END_KEYS} ends)")


if __name__ == "__main__":
    startup.run(main, "chat.py")
