"""A conversation in turns: the user types a line, and the model continues. The cache is reused from turn to turn."""

from collections.abc import Iterator, Sequence

import torch

from ..cli import print_note, quantity
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
    evicts its oldest part when the context is full. If a line does not fit even then, old messages are dropped.
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
        self.cache.evicted = 0

    def turn(self, line: str, max_new_tokens: int, stop: Sequence[str]) -> Iterator[Sample]:
        """Append a line and continue the text. Yields the sample each time its text may have grown.

        The caller may stop early; the conversation is consistent after every step. Raises ValueError if the line alone
        does not fit into the context.
        """
        if self.cache.evicted < 0:
            print_note("(the last turn was interrupted while tokens were evicted: a new text begins)")
            self.reset()
        messages, tokens = self._text_with(line)
        self.forwarded = self._reused_length(tokens)
        new_tokens = tokens[self.forwarded :]
        if self.forwarded == 0:
            self.cache.evicted = 0
        start_pos = self.cache.make_room(self.forwarded - self.cache.evicted, len(new_tokens))
        if not self.endless:
            max_new_tokens = min(max_new_tokens, self.cache.max_seq_len - len(tokens))
        sample = Sample(Prompt(line, new_tokens), self.tokenizer, max_new_tokens, StopStrings(stop))
        self.turns += 1  # each turn has another random stream
        prompt_length = len(tokens)
        vocab_size, device = self.network.args.vocab_size, self.network.norm.weight.device
        sampler = Sampler(self.sampling, [{*tokens}], vocab_size, self.turns, device)
        prompt = torch.tensor([new_tokens], device=device)  # (1, T)
        self.speed.start()
        for token_tensor in decode_endless(self.network, prompt, max_new_tokens, sampler, self.cache, start_pos):
            token = int(token_tensor)
            self.speed.stop(0 if sample.tokens else len(new_tokens), 1)
            self.forwarded = prompt_length + len(sample.tokens)  # without ``token``, which the next step forwards
            sample.push(token, None)
            # An end token is left out of the text, because the model would begin another text after it.
            if token not in self.tokenizer.eos_ids:
                tokens.append(token)
            self.tokens = tokens
            answer = {"role": "assistant", "content": sample.text}
            self.messages = [*messages, user_message(line), answer]
            yield sample
            if sample.finish:
                return
            self.speed.start()

    def _text_with(self, line: str) -> tuple[list[Message], list[int]]:
        """The text with the line: the earlier messages in it, and its tokens.

        Drops the oldest messages until the text fits. Raises ValueError if the line alone does not fit.
        """
        for messages, tokens in self._candidates(line):
            reused = self._reused_length(tokens)
            if len(tokens) - reused <= self._room(reused):
                dropped = len(self.messages) - len(messages)
                if dropped:
                    print_note(f"(the context is full: the oldest {quantity(dropped, 'message')} are dropped)")
                return messages, tokens
        raise ValueError(f"the line needs {quantity(len(tokens), 'token')}, and there is room for {self._room(0)}")

    def _candidates(self, line: str) -> Iterator[tuple[list[Message], list[int]]]:
        """Texts with the line, the longest first. Without a template: the whole text with the line, or the line."""
        if self.chat is None:
            if self.tokens:
                yield self.messages, self.tokens + self.tokenizer.encode("\n" + line, bos=False)
            yield [], self.tokenizer.encode(line)
            return
        for first in range(0, len(self.messages) + 1, 2):  # a question and its answer are dropped together
            messages = self.messages[first:]
            yield messages, self.chat.encode([*messages, user_message(line)])

    def _reused_length(self, tokens: list[int]) -> int:
        """The number of leading tokens of the new text that need not be computed again, including evicted ones.

        The last token always goes through the network, because its logits are needed. After an eviction, a text that
        differs from the old one has to be computed from its start.
        """
        length = min(common_prefix_length(self.tokens[: self.forwarded], tokens), len(tokens) - 1)
        if self.cache.evicted and length < self.forwarded:
            return 0
        return length

    def _room(self, reused: int) -> int:
        """How many tokens fit at once after the ``reused`` ones. One position is left for the answer."""
        if self.endless:
            return self.cache.room(reused)
        return self.cache.max_seq_len - reused - 1


def converse(conversation: Conversation, max_new_tokens: int, stop: Sequence[str]) -> None:
    """Take turns until stdin ends or the user types /exit. Ctrl-C ends only the turn."""
    terminal = Terminal(conversation.reset)
    while True:
        try:
            line = terminal.read_turn()
            if line is None:
                return
            evicted_before = conversation.cache.evicted
            stream_samples(conversation.turn(line, max_new_tokens, stop))
            evicted = conversation.cache.evicted
            if evicted not in (0, evicted_before):
                limit = conversation.cache.max_seq_len
                print_note(f"(the context of {limit} tokens is full: {evicted} have been evicted)")
        except ValueError as error:
            print_note(f"{error}: give another line")
        except KeyboardInterrupt:
            print_note(f"\n({END_KEYS} ends)")


def stream_samples(samples: Iterator[Sample]) -> None:
    """Print the text of a turn as it grows."""
    for sample in samples:
        print(sample.take(), end="", flush=True)
    print(flush=True)
