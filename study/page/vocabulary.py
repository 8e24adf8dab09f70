"""A tokenizer as JSON for tokenizer.mjs.

The page encodes text itself if the tokenizer is a SentencePiece model of plain BPE or of characters, as `train.py`
makes them. Any other tokenizer is stored as its pieces and the ids of the prompt, which the page then cannot change.
"""

from typing import Any

from sentencepiece import SentencePieceProcessor

from model.text.sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN, pieces_of
from model.text.tokenizer import U2581, SentencePieceTokenizer, Tokenizer

KINDS = {NORMAL: "n", UNKNOWN: "u", CONTROL: "c", BYTE: "b"}  # the page does not support others
NORMALIZED = "Ａ ﬁ ① é"  # normalization rules other than identity change at least one of these


def vocabulary(tokenizer: Tokenizer, prompt: str) -> dict[str, Any]:
    """The pieces of a tokenizer, the rules by which the page encodes, or the ids of ``prompt``, and BOS and EOS."""
    facts = plain_model(tokenizer) if isinstance(tokenizer, SentencePieceTokenizer) else None
    if facts is None:
        texts = [tokenizer.decode([token]) or f"[{token}]" for token in range(tokenizer.vocab_size)]
        facts = {
            "type": "FixedText",
            "kind": type(tokenizer).__name__,
            "pieces": texts,
            "ids": tokenizer.encode(prompt),
        }
    return facts | {"bosId": tokenizer.bos_id, "eosIds": list(tokenizer.eos_ids)}


def plain_model(tokenizer: SentencePieceTokenizer) -> dict[str, Any] | None:
    """Pieces, kinds and scores of a SentencePiece model that tokenizer.mjs can run, else None."""
    model = SentencePieceProcessor(model_proto=tokenizer.content)
    pieces = pieces_of(tokenizer.content)
    kinds = "".join(KINDS.get(piece.kind, "x") for piece in pieces)
    normal = [piece for piece in pieces if piece.kind == NORMAL]
    is_characters = all(len(piece.text) == 1 for piece in normal)
    ranks = {piece.score for piece in normal}  # of merges; log-probabilities in a unigram model
    is_bpe = len(ranks) == len(normal) and all(rank.is_integer() and rank <= 0 for rank in ranks)
    spaced = NORMALIZED.replace(" ", U2581)
    if "x" in kinds or not (is_characters or is_bpe) or model.normalize(NORMALIZED).lstrip(U2581) != spaced:
        return None
    return {
        "type": "SentencePiece",
        "kind": "characters" if is_characters else "BPE",
        "pieces": [piece.text for piece in pieces],
        "kinds": kinds,
        "scores": [0 if is_characters else int(piece.score) for piece in pieces],
        "addsSpace": tokenizer.adds_space,
        "collapses": model.normalize("a  b").count(U2581) == model.normalize("a b").count(U2581),
    }
