"""A tokenizer as JSON for tokenizer.mjs and tokenizer_json.mjs, which then give the same ids as Python.

A tokenizer with a feature that the page does not support raises ValueError, which names the feature.
"""

import json
from collections.abc import Iterator
from typing import Any

from model.text import sentencepiece_model as parts
from model.text.hf_tokenizer import HFTokenizer
from model.text.tokenizer import SentencePieceTokenizer, Tokenizer

Steps = list[dict[str, Any]]
KINDS = {parts.NORMAL: "n", parts.UNKNOWN: "u", parts.CONTROL: "c", parts.BYTE: "b"}  # the page's letters
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PATTERNS = {  # the expressions that split words, and their names in tokenizer_json.mjs
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    LLAMA_3: "llama3",
    LLAMA_3.replace("{1,3}", ""): "qwen",
}


def vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """The pieces of a tokenizer, its rules, and its BOS and EOS ids."""
    try:
        if isinstance(tokenizer, SentencePieceTokenizer):
            facts = _sentencepiece(tokenizer)
        elif isinstance(tokenizer, HFTokenizer):
            facts = _tokenizer_json(tokenizer)
        else:
            raise ValueError(f"{type(tokenizer).__name__} is not supported")
    except ValueError as error:
        raise ValueError(f"{tokenizer.path}: the page cannot run this tokenizer: {error}") from None
    return facts | {"bosId": tokenizer.bos_id, "eosIds": list(tokenizer.eos_ids)}


# ---- tokenizer.model


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    pieces = parts.pieces_of(tokenizer.content)
    trainer = parts.settings_of(tokenizer.content, parts.TRAINER)
    normalizer = parts.settings_of(tokenizer.content, parts.NORMALIZER)  # what is missing has its default, which is 1
    kind = trainer.get(parts.MODEL_KIND, parts.UNIGRAM)
    if kind not in (parts.BPE, parts.CHAR):
        raise ValueError("it is neither a BPE nor a character model")
    if normalizer.get(parts.CHARSMAP):
        rule = normalizer.get(parts.NORMALIZER_NAME, b"").decode()
        raise ValueError(f"it uses the normalization rule {rule}, but the page supports only identity")
    if not normalizer.get(parts.ESCAPE_WHITESPACES, 1) or trainer.get(parts.WHITESPACE_AS_SUFFIX, 0):
        raise ValueError("it does not write a space as U+2581 at the start of a word, as the page requires")
    for piece in pieces:
        if piece.kind not in KINDS:
            raise ValueError(f"its piece {piece.text!r} is user-defined or unused, which the page does not support")
    kinds = "".join(KINDS[piece.kind] for piece in pieces)
    is_bpe = kind == parts.BPE
    # Whole scores as integers, which take half the space in JSON
    scores = [int(piece.score) if piece.score.is_integer() else piece.score for piece in pieces]
    return {
        "type": "SentencePiece",
        "kind": "BPE" if is_bpe else "characters",
        "pieces": [piece.text for piece in pieces],
        "kinds": kinds,
        "scores": scores if is_bpe else [0] * len(scores),
        "addsSpace": bool(normalizer.get(parts.ADD_DUMMY_PREFIX, 1)),
        "collapses": bool(normalizer.get(parts.REMOVE_EXTRA_WHITESPACES, 1)),
        # As in SentencePieceTokenizer, which says why. tokenizer.adds_space is the same setting as addsSpace.
        "encodesU2581AsBytes": not tokenizer.adds_space and kinds.count("b") == 256,
    }


# ---- tokenizer.json


def _tokenizer_json(tokenizer: HFTokenizer) -> dict[str, Any]:
    content = json.loads(tokenizer.content)
    model = content["model"]
    kind = model.get("type", "BPE")  # old files have no type
    if kind != "BPE":
        raise ValueError(f"its model is {kind}, but the page supports only BPE")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ValueError(f"its BPE model has {name}, which the page does not support")
    ids: dict[str, int] = model["vocab"]
    pieces: list[str | None] = [None] * (max(ids.values()) + 1)
    for piece, token in ids.items():
        pieces[token] = piece
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    steps = list(_normalizer(content.get("normalizer")))
    decoder = list(_decoder(content.get("decoder")))
    if not decoder:
        raise ValueError("it has no decoder")
    return {
        "type": "JsonTokenizer",
        "kind": "BPE",
        "pieces": pieces,
        "merges": [ids[part] for pair in pairs for part in pair],
        "added": [_added(token, steps, tokenizer) for token in content.get("added_tokens") or []],
        "normalizer": steps,
        "preTokenizer": list(_pre_tokenizer(content.get("pre_tokenizer"))),
        "decoder": decoder,
        "isByteLevel": {"type": "bytes"} in decoder,
        "ignoreMerges": bool(model.get("ignore_merges")),
        "byteFallback": bool(model.get("byte_fallback")),
        "fuseUnk": bool(model.get("fuse_unk")),
        "unkId": ids.get(model.get("unk_token")),
        "startsWithBos": len(tokenizer.encode("a")) > len(tokenizer.encode("a", bos=False)),
    }


def _added(token: dict[str, Any], normalizer: Steps, tokenizer: HFTokenizer) -> dict[str, Any]:
    """An added token. If it is matched in normalized text, its content is normalized, too."""
    content = token["content"]
    for flag in ("single_word", "lstrip", "rstrip"):
        if token.get(flag):
            raise ValueError(f"its added token {content!r} has {flag}, which the page does not support")
    matched = content
    for step in normalizer if token.get("normalized") else []:
        if step["type"] == "prepend":
            matched = step["content"] + matched
        elif step["type"] == "replace":
            matched = matched.replace(step["pattern"], step["content"])
        elif not matched.isascii():
            raise ValueError(
                f"its added token {content!r} is normalized but not ASCII, which the page does not support"
            )
    # When decoding, the library skips special tokens, but not those whose content the normalizer changes. So ask it.
    skipped = bool(token.get("special")) and not tokenizer.decode([token["id"]])
    return {"id": token["id"], "content": matched, "skipped": skipped, "normalized": bool(token.get("normalized"))}


def _sequence(component: dict[str, Any] | None, key: str) -> Iterator[dict[str, Any]]:
    """The steps of a component of tokenizer.json: none, one, or those of a Sequence, listed under ``key``."""
    if component is None:
        return
    if component["type"] == "Sequence":
        for step in component[key]:
            yield from _sequence(step, key)
    else:
        yield component


def _normalizer(component: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    for step in _sequence(component, "normalizers"):
        match step["type"]:
            case "Prepend":
                yield {"type": "prepend", "content": step["prepend"]}
            case "Replace":
                yield _replace(step)
            case "NFC" | "NFD" | "NFKC" | "NFKD" as form:
                yield {"type": "unicode", "form": form}
            case other:
                raise ValueError(f"it has the normalizer {other}, which the page does not support")


def _replace(step: dict[str, Any]) -> dict[str, Any]:
    pattern = step["pattern"].get("String")
    if not pattern:
        raise ValueError(f"it replaces the expression {step['pattern'].get('Regex')!r}; the page replaces only strings")
    return {"type": "replace", "pattern": pattern, "content": step["content"]}


def _pre_tokenizer(component: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    for step in _sequence(component, "pretokenizers"):
        match step["type"]:
            case "Split":
                yield _split(step)
            case "Digits":
                yield {"type": "split", "pattern": "digit" if step.get("individual_digits") else "digits"}
            case "ByteLevel":
                if step.get("add_prefix_space"):
                    raise ValueError("it adds a space before every text, which the page does not support")
                if step.get("use_regex", True):
                    yield {"type": "split", "pattern": "gpt2"}
                yield {"type": "bytes"}
            case "Metaspace":
                yield _metaspace(step) | {"split": step.get("split", True)}
            case other:
                raise ValueError(f"it has the pre-tokenizer {other}, which the page does not support")


def _split(step: dict[str, Any]) -> dict[str, Any]:
    name = PATTERNS.get(step["pattern"].get("Regex"))
    if name is None or step["behavior"] != "Isolated" or step.get("invert"):
        raise ValueError(
            f"it splits words by {step['pattern']}; the page knows the patterns of GPT-2, Llama 3 and Qwen only"
        )
    return {"type": "split", "pattern": name}


def _metaspace(step: dict[str, Any]) -> dict[str, Any]:
    if step["replacement"] != "\u2581":
        raise ValueError(f"its Metaspace replaces a space by {step['replacement']!r}; the page supports only U+2581")
    scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
    return {"type": "metaspace", "replacement": step["replacement"], "scheme": scheme}


def _decoder(component: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    for step in _sequence(component, "decoders"):
        match step["type"]:
            case "Replace":
                yield _replace(step)
            case "ByteFallback":
                yield {"type": "byteFallback"}
            case "Fuse":
                yield {"type": "fuse"}
            case "Strip":
                yield {"type": "strip"} | {name: step[name] for name in ("content", "start", "stop")}
            case "ByteLevel":
                yield {"type": "bytes"}
            case "Metaspace":
                yield _metaspace(step)
            case other:
                raise ValueError(f"it has the decoder {other}, which the page does not support")
