"""A conversation in turns: the user types a line, and the model continues. The cache is reused from turn to turn."""

from collections.abc import Iterator, Sequence

import torch

from ..cli import print_note, quantity
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .chat import Chat, Message, common_prefix_length, user_message
from .endless import SINKS, EndlessCache, decode_endless
from .prompts import Prompt
from .samples import Sample, Speed, timed
from .sampling import Sampler, Sampling
from .terminal import END_KEYS, greet, read_turn


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
        # An endless conversation keeps the system message, unless it takes up more than half of the context.
        keep = SINKS
        if chat and SINKS < chat.prefix_length <= network.args.max_seq_len // 2:
            keep = chat.prefix_length
        self.cache = EndlessCache(network, keep=keep)
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
        messages, tokens = self._text_with(line)
        self.forwarded = self._reused_length(tokens)
        new_tokens = tokens[self.forwarded :]
        if self.forwarded == 0:
            self.cache.evicted = 0
        start_pos = self.cache.make_room(self.forwarded - self.cache.evicted, len(new_tokens))
        if not self.endless:
            max_new_tokens = min(max_new_tokens, self.cache.max_seq_len - len(tokens))
        sample = Sample(Prompt(line, new_tokens), self.tokenizer, max_new_tokens, stop)
        self.turns += 1  # each turn has another random stream
        prompt_length = len(tokens)
        vocab_size, device = self.network.args.vocab_size, self.network.norm.weight.device
        sampler = Sampler(self.sampling, [{*tokens}], vocab_size, self.turns, device)
        prompt = torch.tensor([new_tokens], device=device)  # (1, T)
        steps = decode_endless(self.network, prompt, max_new_tokens, sampler, self.cache, start_pos)
        for token_tensor, seconds in timed(steps):
            token = int(token_tensor)
            self.speed.add(seconds, 0 if sample.tokens else len(new_tokens), 1)
            self.forwarded = prompt_length + len(sample.tokens)  # without ``token``, which the next step forwards
            sample.push(token)
            # An end token is left out of the text, because the model would begin another text after it.
            if token not in self.tokenizer.eos_ids:
                tokens.append(token)
            self.tokens = tokens
            answer = {"role": "assistant", "content": sample.text}
            self.messages = [*messages, user_message(line), answer]
            yield sample
            if sample.finish:
                return

    def _text_with(self, line: str) -> tuple[list[Message], list[int]]:
        """The text with the line: the earlier messages in it, and its tokens.

        Drops the oldest questions and their answers until the text fits; without a template, all of them at once.
        Raises ValueError if the line alone does not fit.
        """
        step = 2 if self.chat else max(1, len(self.messages))
        for dropped in range(0, len(self.messages) + 1, step):
            messages = self.messages[dropped:]
            if self.chat:
                tokens = self.chat.encode([*messages, user_message(line)])
            elif messages:
                tokens = self.tokens + self.tokenizer.encode("\n" + line, bos=False)
            else:
                tokens = self.tokenizer.encode(line)
            reused = self._reused_length(tokens)
            if len(tokens) - reused <= self._room(reused):
                if dropped:
                    print_note(f"(the context is full: the oldest {quantity(dropped, 'message')} are dropped)")
                return messages, tokens
        raise ValueError(f"the line needs {quantity(len(tokens), 'token')}, and there is room for {self._room(0)}")

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
    greet()
    while True:
        try:
            line = read_turn(conversation.reset)
            if line is None:
                return
            evicted_before = conversation.cache.evicted
            shown = 0
            for sample in conversation.turn(line, max_new_tokens, stop):
                print(sample.text[shown:], end="", flush=True)
                shown = len(sample.text)
            print(flush=True)
            evicted = conversation.cache.evicted
            if evicted not in (0, evicted_before):
                limit = conversation.cache.max_seq_len
                print_note(f"(the context of {limit} tokens is full: {evicted} have been evicted)")
        except ValueError as error:
            print_note(f"{error}: give another line")
        except KeyboardInterrupt:
            print_note(f"\n({END_KEYS} ends)")
