"""Where a text ends because of what it says."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may still become one.

    Of several, the one complete first counts, so the result does not depend on how the text is cut into pieces.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        if not all(strings):
            raise ValueError("a stop string is empty: give text to stop at")
        self._strings = tuple(strings)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What is certain to come before any stop string; nothing more once one has come."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        begun = max((self._begun(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """How many characters at the end of the text may begin the stop string."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
