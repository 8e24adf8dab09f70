"""A byte tokenizer, for tests that need no trained one."""

from model.text.tokenizer import TextStream

BOS, EOS = 0, 1


class Letters:
    """Token 2 + b is byte b. Like SentencePiece, it drops a space at the start of a text."""

    vocab_size, bos_id, eos_ids = 258, BOS, (EOS,)

    def encode(self, text, bos=True):
        return [BOS] * bos + [2 + byte for byte in text.encode()]

    def decode(self, ids):
        return bytes(i - 2 for i in ids if i > 1).decode(errors="replace").removeprefix(" ")

    def stream(self, prefix=()):
        return TextStream(self.decode, prefix=prefix)


LETTERS = Letters()
