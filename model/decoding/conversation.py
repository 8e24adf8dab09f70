"""A text in turns: a person writes a line, the model goes on. The cache is kept, so no token is computed twice."""

import sys
from collections.abc import Iterator, Sequence

from ..cache import KVCache
from ..generation import decode
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .compiled import CompiledNetwork
from .prompts import Prompt, note, utf8
from .samples import Sample, Speed, StopStrings
from .sampling import Sampler, Sampling


class Conversation:
    """The text so far: ``length`` tokens of it are in the cache, and ``pending``, sampled last, goes in with the next.

    ``seen`` holds which tokens they are, for the repetition penalty.
    """

    def __init__(
        self, network: Transformer | CompiledNetwork, tokenizer: Tokenizer, sampling: Sampling, speed: Speed
    ) -> None:
        weight = network.norm.weight
        self.cache = KVCache(network.args, dtype=weight.dtype, device=weight.device)
        self.network, self.tokenizer, self.sampling, self.speed = network, tokenizer, sampling, speed
        self.turns = 0
        self.start_anew()

    def start_anew(self) -> None:
        self.length = 0
        self.pending: list[int] = []
        self.seen: set[int] = set()

    def turn(self, line: str, max_new_tokens: int, stop: Sequence[str]) -> Iterator[Sample]:
        """Append a line, and continue: the sample each time its text grew. Ending it early leaves all consistent.

        Raises ValueError when the line does not fit into what is left of the context.
        """
        begins = not self.length
        new = self.tokenizer.encode(line if begins else "\n" + line, bos=begins)
        tokens = self.pending + new
        room = self.cache.max_seq_len - self.length - len(tokens)
        if room < 1:
            raise ValueError(
                f"the context is full: {self.length} of its {self.cache.max_seq_len} tokens are taken, "
                f"and the line has {len(new)}"
            )
        n = min(max_new_tokens, room)
        sample = Sample(Prompt(line, tokens), self.tokenizer, n, StopStrings(stop))
        self.turns += 1  # and with it the random stream
        self.seen |= {*tokens}
        vocab_size, device = self.network.args.vocab_size, self.cache.keys.device
        sampler = Sampler(self.sampling, [self.seen], n, vocab_size, self.turns, device)
        start = self.length
        self.speed.start()
        for (token,), _ in decode(self.network, [tokens], n, sampler, self.cache, start):
            assert token is not None  # no end tokens were given
            self.speed.stop(0 if sample.tokens else len(tokens), 1)
            # What is sampled is in the cache one step later. A token that ends texts stays out of this one for good, or
            # the next line would begin another.
            self.length = start + len(tokens) + len(sample.tokens)
            self.pending = [] if token in self.tokenizer.eos_ids else [token]
            self.seen |= {*self.pending}
            sample.push(token, None)
            yield sample
            if sample.finish:
                return
            self.speed.start()


def converse(conversation: Conversation, max_new_tokens: int, stop: Sequence[str]) -> None:
    """Lines from stdin until it ends. Ctrl-C ends a turn, not the conversation; nor does a line that is too long."""
    while True:
        try:
            note("> ", end="")
            line = sys.stdin.buffer.readline() if sys.stdin else b""
            if not line:
                return
            try:
                text = utf8(line, "stdin").rstrip("\r\n")
                try:
                    speak(conversation.turn(text, max_new_tokens, stop))
                except ValueError as error:
                    if not conversation.length:
                        raise  # it is too long for any context
                    note(f"{error}; a new text begins")
                    conversation.start_anew()
                    speak(conversation.turn(text, max_new_tokens, stop))
            except ValueError as error:
                note(f"{error}: give another line")
        except KeyboardInterrupt:
            note("\n(Ctrl-D ends)")


def speak(samples: Iterator[Sample]) -> None:
    for sample in samples:
        print(sample.take(), end="", flush=True)
    print(flush=True)
