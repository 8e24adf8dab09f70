"""A conversation in turns: the user types a line, and the model continues. The cache is reused from turn to turn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..generation import decode
from ..text.tokenizer import Tokenizer
from ..transformer import Transformer
from .batches import Prompt, Sample, Speed, push_tokens
from .chat import Chat, Message, common_prefix_length, user_message
from .endless import SINKS, EndlessCache
from .options import Sampling
from .sampling import Sampler, read_tokens


@dataclass(eq=False)
class Conversation:
    """One text, ``tokens``, and a cache that grows with it. When the context is full, its oldest part is evicted.

    ``cached`` is the number of tokens, from the first one, that went through the network. The cache holds these,
    except for those it evicted.

    With a ``chat`` template, all messages are rendered again at each turn. The cached tokens that the new text has in
    common with the old one are reused. Without a template, a line is appended to the text.
    """

    network: Transformer
    tokenizer: Tokenizer
    sampling: Sampling
    speed: Speed
    chat: Chat | None = None
    context: int | None = None  # the length at which tokens are evicted, by default the network's

    def __post_init__(self) -> None:
        self.eos_ids = self.chat.eos_ids if self.chat else self.tokenizer.eos_ids
        self.cache = EndlessCache(self.network, context=self.context)
        self.reset()

    def reset(self) -> None:
        """Begin a new text."""
        self.tokens: list[int] = []
        self.messages: list[Message] = []
        self.starts: list[int] = []  # the number of tokens before each turn
        self.turns = 0  # that were begun, also those that were taken back
        self._clear_cache()

    def _clear_cache(self) -> None:
        prefix = self.chat.prefix_length if self.chat else 0  # up to the end of the system message
        self.cached = self.cache.evicted = 0
        self.cache.keep = min(max(SINKS, prefix), self.cache.context // 2)

    def set_system(self, text: str) -> None:
        """Replace the system message. Raises ValueError if there is no template, or if it cannot show the message."""
        if self.chat is None:
            raise ValueError("the model has no chat template, so it has no system message")
        self.chat.begin_with([{"role": "system", "content": text}])
        self._clear_cache()

    def undo(self) -> str:
        """Take back the last turn; returns its line. Raises ValueError if there is none."""
        if not self.messages:
            raise ValueError("there is no turn to take back")
        *self.messages, question, _ = self.messages
        self.tokens = self.tokens[: self.starts.pop()]
        self.cached = min(self.cached, len(self.tokens))
        return str(question["content"])

    def turn(self, line: str, max_new_tokens: int, stop: Sequence[str]) -> Iterator[Sample]:
        """Append a line and continue the text. Yields the sample each time its text may have grown.

        The caller may stop early; the conversation is consistent after every step.
        """
        messages = [*self.messages, user_message(line)]
        if self.chat:
            tokens = self.chat.encode(messages)
        elif self.tokens:
            tokens = self.tokens + self.tokenizer.encode("\n" + line, bos=False)
        else:
            tokens = self.tokenizer.encode(line)
        self.cached = self._reused_length(tokens)
        new_tokens = tokens[self.cached :]
        start_pos = self.cached - self.cache.evicted
        prompt_length = len(tokens)
        sample = Sample(Prompt(line, new_tokens), self.tokenizer, max_new_tokens, stop, self.eos_ids)
        sampler = Sampler(self.sampling, [tokens], 2 * self.turns + 1)  # each turn has another random stream
        starts = [*self.starts, len(self.tokens)]
        self.turns += 1
        prompt = torch.tensor([new_tokens], device=self.network.norm.weight.device)  # (1, T)
        steps = read_tokens(decode(self.network, prompt, max_new_tokens, sampler, self.cache, start_pos), sampler)
        for _ in push_tokens(self.network, [sample], steps, self.speed):
            self.cached = prompt_length + len(sample.tokens) - 1  # the next step forwards the newest token
            if sample.finish != "end":  # after an end token the model would begin another text
                tokens.append(sample.tokens[-1])
            self.tokens, self.starts = tokens, starts
            self.messages = [*messages, {"role": "assistant", "content": sample.text}]
            yield sample

    def _reused_length(self, tokens: list[int]) -> int:
        """The number of leading tokens of the new text that need not be computed again, including evicted ones.

        The last token always goes through the network, because its logits are needed. A text that differs from the old
        one where tokens were evicted is computed from its start.
        """
        length = min(common_prefix_length(self.tokens[: self.cached], tokens), len(tokens) - 1)
        if self.cache.evicted and length < self.cache.keep + self.cache.evicted:
            self.cache.evicted = length = 0
        return length
