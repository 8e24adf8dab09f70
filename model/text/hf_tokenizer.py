"""Hugging Face's tokenizer.json: read with the optional ``tokenizers`` package, written for SentencePiece models.

tokenizer.json is written because transformers would otherwise prepend a space to every text, even if the
SentencePiece model does not.
"""

import hashlib
import json
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from ..cli.files import read_json
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
        self.content = self.path.read_bytes()
        try:
            parsed = json.loads(self.content)
            self._model = Tokenizer.from_str(self.content.decode())
            self._model.no_truncation()
            self._model.no_padding()
            if isinstance(self._model.model, BPE):
                self._model.model.dropout = None
            self.vocab_size = max(self._model.get_vocab().values()) + 1
            self._special = {token for token, added in self._model.get_added_tokens_decoder().items() if added.special}
            prefix = self._model.encode("", add_special_tokens=True).ids
            pieces = self._model.encode("a", add_special_tokens=False).tokens
            self._model.decode(range(min(self.vocab_size, 1000)))  # a damaged file fails here, not while generating
        except BaseException as error:  # a Rust panic is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):  # Ctrl-C or SIGTERM
                raise
            raise ValueError(f"{path} is not a valid tokenizer.json ({error}): get the file again") from None
        self.fingerprint = hashlib.sha256(self.content).hexdigest()
        settings = read_settings(self.path.parent)
        named_bos = prefix[0] if prefix else self._id_of(settings.get("bos_token"))
        eos = self._id_of(settings.get("eos_token"))
        bos = eos if named_bos is None else named_bos
        if bos is None or bos >= self.vocab_size:
            raise ValueError(f"{path} names no BOS or EOS token of its own: put its tokenizer_config.json beside it")
        self.bos_id: int = bos
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)
        # If there is a post-processor that adds no BOS, the model was trained without one
        adds_named_bos = settings.get("add_bos_token", parsed.get("post_processor") is None)
        self._adds_bos = bool(prefix) or (named_bos is not None and bool(adds_named_bos))
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
        checked = [check_encodable(text) for text in texts]
        return [row.ids for row in self._model.encode_batch(checked, add_special_tokens=False)]

    def control_tokens(self, template: str) -> dict[str, int]:
        """The special tokens, and the other added tokens that the template names."""
        added = self._model.get_added_tokens_decoder().items()
        return {each.content: token for token, each in added if each.special or each.content in template}

    def encode_control(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def find_control(self, text: str, ids: Container[int]) -> list[tuple[int, int]]:
        """The library normalizes the text before it looks for some tokens: with NFKC it also finds ``＜eot＞``."""
        encoded = self._model.encode(text, add_special_tokens=False)
        return [span for token, span in zip(encoded.ids, encoded.offsets) if token in ids]

    def encode_literal(self, text: str) -> list[int]:
        """Skips the library's first step, which replaces the names of added tokens by the tokens."""
        if self._model.normalizer is not None:
            text = self._model.normalizer.normalize_str(text)
        split = self._model.pre_tokenizer
        words = [text] if split is None else [word for word, _ in split.pre_tokenize_str(text)]
        return [token.id for word in words for token in self._model.model.tokenize(word)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids), skip_special_tokens=True)

    def stream(self) -> TextStream:
        return TextStream(self.decode, self._is_incomplete)

    def _is_incomplete(self, token: int) -> bool:
        """True for byte tokens, because neighbouring ones are decoded together: one invalid byte garbles all of them.

        Also true for special tokens. They decode to nothing, so the byte tokens around one are decoded together.
        """
        piece = self._model.id_to_token(token)
        return piece is None or token in self._special or BYTE_PIECE.fullmatch(piece) is not None


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings of the tokenizer in a directory, among them its special tokens and perhaps its chat template."""
    settings: dict[str, Any] = {}
    for file in (directory / "special_tokens_map.json", directory / "tokenizer_config.json"):
        if file.is_file():
            settings |= {key: value for key, value in read_json(file).items() if value is not None}
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
    merges = []  # every pair of pieces that merges into a piece, the most frequent first
    for piece in (pieces[i] for i in merged):
        pairs = [[piece[:i], piece[i:]] for i in range(1, len(piece))]
        merges += [pair for pair in pairs if vocabulary.issuperset(pair)]
    adds_space = model.encode("a", out_type=str)[0].startswith(U2581)
    special = [i for i in range(len(pieces)) if model.is_control(i) or model.is_unknown(i)]
    names = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "unk_token": model.unk_id()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["add_prefix_space"] = adds_space  # llama.cpp's converter assumes true if it is missing
    config |= {name: pieces[i] for name, i in names.items() if i >= 0}
    bos = pieces[model.bos_id()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": U2581}]
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": U2581}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if adds_space:
        normalizers.insert(0, {"type": "Prepend", "prepend": U2581})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    tokenizer_json = {
        "version": "1.0",
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
            "unk_token": pieces[model.unk_id()],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": merges,
        },
    }
    return tokenizer_json, config
