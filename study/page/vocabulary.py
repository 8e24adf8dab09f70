"""A tokenizer as JSON for tokenizer.mjs.

The page encodes text itself if the tokenizer is a SentencePiece model of plain BPE or of characters, as `train.py`
makes them. Any other tokenizer is stored as its pieces and the ids of the prompt, which the page then cannot change.
"""

from typing import Any

from sentencepiece import SentencePieceProcessor

from model.text.tokenizer import U2581, SentencePieceTokenizer, Tokenizer

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
    ids = range(model.get_piece_size())
    pieces = [model.id_to_piece(token) for token in ids]
    kinds = "".join(kind_of(model, token) for token in ids)
    scores = [model.get_score(token) for token in ids]
    normal = [token for token in ids if kinds[token] == "n"]
    is_characters = all(len(pieces[token]) == 1 for token in normal)
    ranks = {scores[token] for token in normal}  # of merges; log-probabilities in a unigram model
    is_bpe = len(ranks) == len(normal) and all(rank.is_integer() and rank <= 0 for rank in ranks)  # none user-defined
    spaced = NORMALIZED.replace(" ", U2581)
    if "x" in kinds or not (is_characters or is_bpe) or model.normalize(NORMALIZED).lstrip(U2581) != spaced:
        return None
    return {
        "type": "SentencePiece",
        "kind": "characters" if is_characters else "BPE",
        "pieces": pieces,
        "kinds": kinds,
        "scores": [0 if is_characters else int(score) for score in scores],
        "addsSpace": tokenizer.adds_space,
        "collapses": model.normalize("a  b").count(U2581) == model.normalize("a b").count(U2581),
        # As in SentencePieceTokenizer, which says why. tokenizer.adds_space is the same setting as addsSpace.
        "encodesU2581AsBytes": not tokenizer.adds_space and kinds.count("b") == 256,
    }


def kind_of(model: SentencePieceProcessor, token: int) -> str:
    """n normal, u unknown, c control, b byte; x for a piece that the page does not support."""
    if model.is_unknown(token):
        return "u"
    if model.is_control(token):
        return "c"
    if model.is_byte(token):
        return "b"
    return "x" if model.is_unused(token) else "n"
