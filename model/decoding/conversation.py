"""A conversation in turns: the user types a line, and the model continues. The cache is reused from turn to turn."""

from collections.abc import Iterator, Sequence

import torch

from ..cache import KVCache
from ..cli import print_note, quantity
from ..generation import decode
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .chat import Chat, Message, common_prefix_length, user_message
from .endless import SINKS, EndlessCache, decode_endless
from .prompts import Prompt
from .samples import Sample, Speed, StopStrings
from .sampling import Sampler, Sampling
from .terminal import END_KEYS, Terminal


class Conversation:
    """One text, ``tokens``, and a cache.

    ``forwarded`` is the number of tokens, from the first one, that went through the network. The cache holds these,
    except for those it evicted.

    With a ``chat`` template, all messages are rendered again at each turn. The cached tokens that the new text has in
    common with the old one are reused. Without a template, a line is appended to the text. An ``endless`` conversation
    evicts its oldest part when the context is full; in any other, a line that does not fit raises ValueError.
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
        # An endless conversation keeps the system message, unless it takes up more than half of the context.
        keep = SINKS
        if chat and SINKS < chat.prefix_length <= args.max_seq_len // 2:
            keep = chat.prefix_length
        self.cache = KVCache(args, dtype=weight.dtype, device=weight.device)
        if endless:
            self.cache = EndlessCache(args, network.freqs_cis, 1, None, weight.dtype, weight.device, keep)
        self.network = network
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.speed = speed
        self.chat = chat
        self.endless = endless
        self.turns = 0
        self.reset()

    def reset(self) -> None:
        """Begin a new text."""
        self.tokens: list[int] = []
        self.forwarded = 0
        self.messages: list[Message] = []
        if isinstance(self.cache, EndlessCache):
            self.cache.evicted = 0

    @property
    def evicted(self) -> int:
        """The number of evicted tokens; -1 if an eviction was interrupted, which makes the cache invalid."""
        return self.cache.evicted if isinstance(self.cache, EndlessCache) else 0

    def turn(self, line: str, max_new_tokens: int, stop: Sequence[str]) -> Iterator[Sample]:
        """Append a line and continue the text. Yields the sample each time its text may have grown.

        The caller may stop early; the conversation is consistent after every step. Raises ValueError if the line does
        not fit into the rest of the context.
        """
        if self.evicted < 0:
            print_note("(the last turn was interrupted while tokens were evicted: a new text begins)")
            self.reset()
        tokens = self._tokens_with(line)
        start_pos = self._start_pos(tokens)
        new_tokens = tokens[self.forwarded :]
        if not self.endless:
            max_new_tokens = min(max_new_tokens, self.cache.max_seq_len - start_pos - len(new_tokens))
        sample = Sample(Prompt(line, new_tokens), self.tokenizer, max_new_tokens, StopStrings(stop))
        self.turns += 1  # each turn has another random stream
        earlier_messages, prompt_length = list(self.messages), len(tokens)
        vocab_size, device = self.network.args.vocab_size, self.network.norm.weight.device
        sampler = Sampler(self.sampling, [{*tokens}], vocab_size, self.turns, device)
        self.speed.start()
        for token_tensor in self._decode(new_tokens, max_new_tokens, sampler, start_pos):
            token = int(token_tensor)
            self.speed.stop(0 if sample.tokens else len(new_tokens), 1)
            self.forwarded = prompt_length + len(sample.tokens)  # without ``token``, which the next step forwards
            sample.push(token, None)
            # An end token is left out of the text, because the model would begin another text after it.
            if token not in self.tokenizer.eos_ids:
                tokens.append(token)
            self.tokens = tokens
            answer = {"role": "assistant", "content": sample.text}
            self.messages = [*earlier_messages, user_message(line), answer]
            yield sample
            if sample.finish:
                return
            self.speed.start()

    def _decode(
        self, new_tokens: list[int], max_new_tokens: int, sampler: Sampler, start_pos: int
    ) -> Iterator[torch.Tensor]:
        tokens = torch.tensor([new_tokens], device=sampler.device)  # (1, T)
        if isinstance(self.cache, EndlessCache):
            return decode_endless(self.network, tokens, max_new_tokens, sampler, self.cache, start_pos)
        return decode(self.network, tokens, max_new_tokens, sampler, self.cache, start_pos)

    def _tokens_with(self, line: str) -> list[int]:
        """The whole text with the line. An endless chat drops its oldest messages until the text fits."""
        if self.chat is None:
            if not self.tokens:
                return self.tokenizer.encode(line)
            return self.tokens + self.tokenizer.encode("\n" + line, bos=False)
        messages = list(self.messages)
        while True:
            tokens = self.chat.encode([*messages, user_message(line)])
            reused = self._reused_length(tokens)
            fits = len(tokens) - reused <= self._room(reused)
            if fits or not self.endless or not messages:
                break
            del messages[:2]  # a question and its answer
        dropped = len(self.messages) - len(messages)
        if fits and dropped:
            print_note(f"(the context is full: the oldest {quantity(dropped, 'message')} are dropped)")
            self.messages = messages
        return tokens

    def _reused_length(self, tokens: list[int]) -> int:
        """The number of leading tokens of the new text that need not be computed again, including evicted ones.

        The last token always goes through the network, because its logits are needed. After an eviction, a text that
        differs from the old one has to be computed from its start.
        """
        length = min(common_prefix_length(self.tokens[: self.forwarded], tokens), len(tokens) - 1)
        if self.evicted and length < self.forwarded:
            return 0
        return length

    def _room(self, reused: int) -> int:
        """How many tokens fit at once after the ``reused`` ones."""
        if isinstance(self.cache, EndlessCache):
            return self.cache.room(reused)
        return self.cache.max_seq_len - reused

    def _start_pos(self, tokens: list[int]) -> int:
        """Make room for the tokens that are not reused, and return their ``start_pos``.

        Raises ValueError if they do not fit.
        """
        reused, limit = self._reused_length(tokens), self.cache.max_seq_len
        new = len(tokens) - reused
        if not self.endless and len(tokens) >= limit:
            raise ValueError(
                f"the context has no room for this line and an answer: {limit} positions, {len(self.tokens)} in use, "
                f"{len(tokens) - len(self.tokens)} more needed for the line"
            )
        if new > self._room(reused):
            raise ValueError(f"{new} new tokens do not fit: the context of {limit} has room for {self._room(reused)}")
        self.forwarded = reused
        if not isinstance(self.cache, EndlessCache):
            return reused
        if reused == 0:
            self.cache.evicted = 0
        return self.cache.make_room(reused - self.cache.evicted, new)


def converse(conversation: Conversation, max_new_tokens: int, stop: Sequence[str]) -> None:
    """Take turns until stdin ends or the user types /exit. Ctrl-C ends only the turn.

    If a turn fails, for example because the line does not fit, a new text begins with the line. A line that fails in a
    new text, or in an endless conversation, is reported.
    """
    terminal = Terminal(conversation.reset)
    while True:
        try:
            line = terminal.read_turn()
            if line is None:
                return
            evicted_before = conversation.evicted
            try:
                stream_samples(conversation.turn(line, max_new_tokens, stop))
            except ValueError as error:
                # A new text would not help if this one is new, or endless: then no old tokens are in the way.
                if conversation.endless or not conversation.forwarded:
                    raise
                print_note(f"{error}; a new text begins")
                conversation.reset()
                stream_samples(conversation.turn(line, max_new_tokens, stop))
            if conversation.evicted not in (0, evicted_before):
                limit = conversation.cache.max_seq_len
                print_note(f"(the context of {limit} tokens is full: {conversation.evicted} have been evicted)")
        except ValueError as error:
            print_note(f"{error}: give another line")
        except KeyboardInterrupt:
            print_note(f"\n({END_KEYS} ends)")


def stream_samples(samples: Iterator[Sample]) -> None:
    """Print the text of a turn as it grows."""
    for sample in samples:
        print(sample.take(), end="", flush=True)
    print(flush=True)
