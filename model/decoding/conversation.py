"""A text in turns: a person writes a line, the model goes on. The cache is kept, so no token is computed twice."""

from collections.abc import Iterator, Sequence

import torch

from ..cache import KVCache
from ..cli import print_note
from ..generation import decode
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .chat import Chat, Message, common_prefix, user
from .endless import SINKS, EndlessCache, decode_endless
from .prompts import Prompt
from .samples import Sample, Speed, StopStrings
from .sampling import Sampler, Sampling
from .terminal import END_KEYS, Terminal


class Conversation:
    """One text, ``text``, of which the cache has the first ``forwarded`` tokens, less those that it has evicted.

    With a ``chat`` template the text is what the template makes of all messages, again at each turn; what the cache has
    of it stays as long as it is the beginning of the new text. Without one a line is simply appended. An ``endless``
    conversation evicts its oldest part when the context is full; any other ends there.
    """

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer,
        sampling: Sampling,
        speed: Speed,
        chat: Chat | None = None,
        endless: bool = False,
    ) -> None:
        args, weight = network.args, network.norm.weight
        # The system's message stays in an endless one, unless it takes up half of the context.
        keep = chat.head if chat and SINKS < chat.head <= args.max_seq_len // 2 else SINKS
        self.cache = KVCache(args, dtype=weight.dtype, device=weight.device)
        if endless:
            self.cache = EndlessCache(args, network.freqs_cis, 1, None, weight.dtype, weight.device, keep)
        self.network, self.tokenizer, self.sampling, self.speed = network, tokenizer, sampling, speed
        self.chat, self.endless = chat, endless
        self.turns = 0
        self.start_anew()

    def start_anew(self) -> None:
        self.text: list[int] = []
        self.forwarded = 0
        self.messages: list[Message] = []
        if isinstance(self.cache, EndlessCache):
            self.cache.evicted = 0

    @property
    def evicted(self) -> int:
        """Tokens of the text that the cache has evicted; -1 if that was interrupted, and the cache is invalid."""
        return self.cache.evicted if isinstance(self.cache, EndlessCache) else 0

    def turn(self, line: str, max_new_tokens: int, stop: Sequence[str]) -> Iterator[Sample]:
        """Append a line, and continue: the sample each time its text grew. Ending it early leaves all consistent.

        Raises ValueError when the line does not fit into the context, or what is left of it.
        """
        if self.evicted < 0:
            print_note("(it was interrupted while tokens were evicted: a new text begins)")
            self.start_anew()
        text = self._text_with(line)
        start_pos = self._start_pos(text)
        new, room = text[self.forwarded :], self.cache.max_seq_len - start_pos
        n = max_new_tokens if self.endless else min(max_new_tokens, room - len(new))
        sample = Sample(Prompt(line, new), self.tokenizer, n, StopStrings(stop))
        self.turns += 1  # and with it the random stream
        before, given = list(self.messages), len(text)
        vocab_size, device = self.network.args.vocab_size, self.network.norm.weight.device
        sampler = Sampler(self.sampling, [{*text}], vocab_size, self.turns, device)
        self.speed.start()
        for tokens in self._decode(new, n, sampler, start_pos):
            token = int(tokens)
            self.speed.stop(0 if sample.tokens else len(new), 1)
            self.forwarded = given + len(sample.tokens)  # what is sampled is in the cache one step later
            sample.push(token, None)
            # A token that ends texts stays out of this one for good, or the next line would begin another.
            text += [] if token in self.tokenizer.eos_ids else [token]
            self.text = text
            self.messages = [*before, user(line), {"role": "assistant", "content": sample.text}]
            yield sample
            if sample.finish:
                return
            self.speed.start()

    def _decode(self, new: list[int], n: int, sampler: Sampler, start_pos: int) -> Iterator[torch.Tensor]:
        tokens = torch.tensor([new], device=sampler.device)  # (1, T)
        if isinstance(self.cache, EndlessCache):
            return decode_endless(self.network, tokens, n, sampler, self.cache, start_pos)
        return decode(self.network, tokens, n, sampler, self.cache, start_pos)

    def _text_with(self, line: str) -> list[int]:
        """The whole text, with the line. An endless conversation forgets messages that would never fit together."""
        if self.chat is None:
            begins = not self.text
            return self.text + self.tokenizer.encode(line if begins else "\n" + line, bos=begins)
        while True:
            text = self.chat.encode([*self.messages, user(line)])
            if not self.endless or not self.messages or self._fits(text):
                return text
            print_note("(the context is full: the oldest question and its answer are forgotten)")
            del self.messages[:2]

    def _kept(self, text: list[int]) -> int:
        """How many tokens of the text are in the cache. The last one is not: its logits are to be computed."""
        kept = min(common_prefix(self.text[: self.forwarded], text), len(text) - 1)
        return 0 if self.evicted and kept < self.forwarded else kept

    def _fits(self, text: list[int]) -> bool:
        room = self.cache.max_seq_len - (self.cache.keep if isinstance(self.cache, EndlessCache) else 0)
        return len(text) - self._kept(text) <= room

    def _start_pos(self, text: list[int]) -> int:
        """The ``start_pos`` of what the cache does not have yet of the text; raises ValueError where there is none."""
        kept = self._kept(text)
        new, limit = len(text) - kept, self.cache.max_seq_len
        if not self.endless and len(text) >= limit:
            taken = f"{self.forwarded} of its {limit} tokens are taken"
            raise ValueError(f"the context is full: {taken}, and the line has {len(text) - len(self.text)}")
        if not self._fits(text):
            raise ValueError(f"the line has {new} tokens, more than the context of {limit} can take")
        self.forwarded = kept
        if not isinstance(self.cache, EndlessCache):
            return kept
        if not kept:
            self.cache.evicted = 0
        return self.cache.make_room(kept - self.cache.evicted, new)


def converse(conversation: Conversation, max_new_tokens: int, stop: Sequence[str]) -> None:
    """Texts from stdin until it ends. Ctrl-C ends a turn, not the conversation; nor does a text that is too long."""
    terminal = Terminal(conversation.start_anew)
    while True:
        try:
            text = terminal.read_turn()
            if text is None:
                return
            before = conversation.evicted
            try:
                print_samples(conversation.turn(text, max_new_tokens, stop))
            except ValueError as error:
                if conversation.endless or not conversation.forwarded:
                    raise  # it is too long for any context
                print_note(f"{error}; a new text begins")
                conversation.start_anew()
                print_samples(conversation.turn(text, max_new_tokens, stop))
            if conversation.evicted > before:
                limit = conversation.cache.max_seq_len
                print_note(f"(the context of {limit} tokens is full: {conversation.evicted} are forgotten)")
        except ValueError as error:
            print_note(f"{error}: give another line")
        except KeyboardInterrupt:
            print_note(f"\n({END_KEYS} ends)")


def print_samples(samples: Iterator[Sample]) -> None:
    for sample in samples:
        print(sample.take(), end="", flush=True)
    print(flush=True)
