"""Hugging Face's tokenizer.json: read with the optional ``tokenizers`` package, written for SentencePiece models.

tokenizer.json is written because transformers would otherwise prepend a space to every text, even if the
SentencePiece model does not.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from ..cli.files import FLAG, TOKEN, Check, read_json
from .tokenizer import U2581, TextStream, check_encodable

BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class HFTokenizer:
    """A tokenizer.json and its special tokens, read with the ``tokenizers`` package.

    BOS and EOS are defined by the file's post-processor and by ``tokenizer_config.json`` and
    ``special_tokens_map.json`` beside it. The file's truncation, padding and dropout are switched off, because they are
    for the batches of a training. If no file names a BOS token, as for Qwen, texts begin without one, and EOS takes its
    place in the empty text and between the documents of a training. Raises ValueError if no file names either.
    """

    def __init__(self, path: str | Path):
        try:
            from tokenizers import Tokenizer
            from tokenizers.models import BPE
        except ImportError:
            raise ValueError(f"{path} needs the extra hf: pip install tokenizers, or give a tokenizer.model") from None
        self.path = Path(path)
        content = self.path.read_bytes()
        with _silence_native_stderr(), self._library_errors():
            self._model = Tokenizer.from_str(content.decode())
            self._model.no_truncation()
            self._model.no_padding()
            if isinstance(self._model.model, BPE):
                self._model.model.dropout = None
            self.vocab_size = max(self._model.get_vocab().values()) + 1
            self._special = {token for token, added in self._model.get_added_tokens_decoder().items() if added.special}
            prefix = self._model.encode("", add_special_tokens=True).ids
            pieces = self._model.encode("a", add_special_tokens=False).tokens
            self._model.decode(range(min(self.vocab_size, 1000)))  # a damaged file fails here, not while generating
            parsed = json.loads(content)
        self.file_hash = self.fingerprint = hashlib.sha256(content).hexdigest()
        settings = _read_settings(self.path.parent)
        named_bos = prefix[0] if prefix else self._id_of(settings.get("bos_token"))
        eos = self._id_of(settings.get("eos_token"))
        bos = eos if named_bos is None else named_bos
        if bos is None:
            raise ValueError(f"{path} names no BOS or EOS token: put its tokenizer_config.json beside it")
        if bos >= self.vocab_size:
            raise ValueError(
                f"{path} begins a text with token {bos}, but has only {self.vocab_size}: get the file again"
            )
        self.bos_id: int = bos
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)
        if prefix or named_bos is None:
            self._adds_bos = bool(prefix)
        elif settings.get("add_bos_token") is True:
            self._adds_bos = True
        else:
            # Without a post-processor, add BOS. A post-processor that adds none means that the model was trained
            # without BOS.
            self._adds_bos = parsed.get("post_processor") is None and settings.get("add_bos_token") is not False
        self.adds_space = bool(pieces) and pieces[0][0] in "\u2581\u0120 "

    def _id_of(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return self._model.token_to_id(content) if isinstance(content, str) else None

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """BOS comes first if the model was trained with it, and in the empty text, which needs at least one token."""
        ids = self.encode_batch([text])[0]
        if bos and (self._adds_bos or not text):
            return [self.bos_id, *ids]
        return ids

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Many texts at once. The library uses all cores and ignores ``threads``."""
        texts = [check_encodable(text) for text in texts]
        with self._library_errors():
            return [row.ids for row in self._model.encode_batch(texts, add_special_tokens=False)]

    def control_tokens(self, template: str) -> dict[str, int]:
        """The special tokens, and the other added tokens that the template names."""
        added = self._model.get_added_tokens_decoder().items()
        return {each.content: token for token, each in added if each.special or each.content in template}

    def encode_control(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def find_control(self, text: str, ids: Container[int]) -> list[tuple[int, int]]:
        """The library normalizes the text before it looks for some tokens: with NFKC it also finds ``＜eot＞``."""
        with self._library_errors():
            encoded = self._model.encode(check_encodable(text), add_special_tokens=False)
        return [span for token, span in zip(encoded.ids, encoded.offsets) if token in ids]

    def encode_literal(self, text: str) -> list[int]:
        """Skips the library's first step, which replaces the names of added tokens by the tokens."""
        text = check_encodable(text)
        if self._model.normalizer is not None:
            text = self._model.normalizer.normalize_str(text)
        split = self._model.pre_tokenizer
        words = [text] if split is None else [word for word, _ in split.pre_tokenize_str(text)]
        return [token.id for word in words for token in self._model.model.tokenize(word)]

    def decode(self, ids: Sequence[int]) -> str:
        with self._library_errors():
            return self._model.decode(list(ids), skip_special_tokens=True)

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """Report a damaged file as a ValueError. A Rust panic is a BaseException, other errors are Exceptions."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise ValueError(f"{self.path} is not a valid tokenizer.json ({error}): get the file again") from None

    def stream(self) -> TextStream:
        return TextStream(self.decode, self._is_incomplete)

    def _is_incomplete(self, token: int) -> bool:
        """True for byte tokens, because neighbouring ones are decoded together: one invalid byte garbles all of them.

        Also true for special tokens. They decode to nothing, so the byte tokens around one are decoded together.
        """
        piece = self._model.id_to_token(token)
        return piece is None or token in self._special or BYTE_PIECE.fullmatch(piece) is not None


@contextmanager
def _silence_native_stderr() -> Iterator[None]:
    """Discard what native code prints when it panics: the exception has the same text."""
    try:
        saved = os.dup(2)
    except OSError:  # stderr is closed
        saved = None
    if saved is None:
        yield
        return
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


SETTING_CHECKS: dict[str, Check] = {"bos_token": TOKEN, "eos_token": TOKEN, "add_bos_token": FLAG}


def _read_settings(directory: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            found = read_json(directory / name, SETTING_CHECKS)
            settings |= {key: value for key, value in found.items() if value is not None}
    return settings


def hugging_face_files(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The contents of tokenizer.json and tokenizer_config.json for a SentencePiece model; None for a unigram model."""
    model = SentencePieceProcessor(model_proto=path.read_bytes())
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    plain = {i for i in range(len(pieces)) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))}
    merged = [i for i in plain if len(pieces[i]) > 1]
    if not all(model.get_score(i).is_integer() for i in merged):  # a unigram model: probabilities instead of ranks
        return None
    merged.sort(key=lambda i: -model.get_score(i))
    vocabulary = {pieces[i] for i in plain}
    merges = [pair for i in merged for pair in _merge_pairs(pieces[i], vocabulary)]
    adds_space = model.encode("a", out_type=str)[0].startswith(U2581)
    special = [i for i in range(len(pieces)) if model.is_control(i) or model.is_unknown(i)]
    names = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "unk_token": model.unk_id()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["add_prefix_space"] = adds_space  # llama.cpp's converter assumes true if it is missing
    config |= {name: pieces[i] for name, i in names.items() if i >= 0}
    return _tokenizer_json(pieces, merges, special, model, adds_space), config


def _merge_pairs(piece: str, vocabulary: set[str]) -> list[list[str]]:
    """Every pair of pieces that merges into ``piece``."""
    pairs = []
    for i in range(1, len(piece)):
        left, right = piece[:i], piece[i:]
        if left in vocabulary and right in vocabulary:
            pairs.append([left, right])
    return pairs


def _tokenizer_json(
    pieces: list[str], merges: list[list[str]], special: list[int], model: SentencePieceProcessor, adds_space: bool
) -> dict[str, Any]:
    bos = pieces[model.bos_id()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": U2581}]
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": U2581}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if adds_space:
        normalizers.insert(0, {"type": "Prepend", "prepend": U2581})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": pieces[i], **flags} for i in special],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [first, *({"Sequence": {"id": part, "type_id": 0}} for part in "AB")],
            "special_tokens": {bos: {"id": bos, "ids": [model.bos_id()], "tokens": [bos]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[model.unk_id()],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": merges,
        },
    }
