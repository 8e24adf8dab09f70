"""Text as the tokens come: what has been handed out never changes, and all of it together is the whole decoded."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what decoders put where bytes are not UTF-8


class TextStream:
    """Decodes token by token. The pieces of ``push`` and ``flush``, joined, equal ``decode`` of all the ids.

    A token alone does not say its text: a character may lie over several tokens, and a space that starts the first
    one may be a marker that the decoder drops. So the tokens since the last point where the text was complete are
    decoded together with those just before it, their context, which shows the decoder that the text goes on.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], is_open: Callable[[int], bool] = lambda token: False):
        """``is_open``: tokens whose text may still change until one of another kind follows."""
        self._decode = decode
        self._is_open = is_open
        self._window: list[int] = []
        self._context = self._context_length = self._given = 0

    def push(self, token: int) -> str:
        """The text that is now certain: often the token's own, sometimes nothing yet."""
        self._window.append(token)
        if self._is_open(token):
            return ""
        text = self._decode(self._window)
        # The last one to three replacement characters may be the start of a character whose other bytes are to come.
        unsure = min(3, len(text) - len(text.rstrip(REPLACEMENT)))
        given, self._given = self._given, max(self._given, len(text) - unsure)
        # A decoder that drops spaces at the start may drop a context of spaces: wait until the next one has more.
        if not unsure and text[self._context_length :].strip():
            self._start_anew(self._window[self._context :])
        return text[given : len(text) - unsure]

    def flush(self) -> str:
        """The rest, when no more tokens come. The stream is then as new."""
        rest = self._decode(self._window)[self._given :]
        self._start_anew([])
        return rest

    def _start_anew(self, context: list[int]) -> None:
        self._window = context
        self._context = len(context)  # in tokens
        self._context_length = self._given = len(self._decode(context))  # in characters
