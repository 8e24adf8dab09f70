"""Hugging Face's tokenizer.json: read with the optional ``tokenizers`` package, written for SentencePiece models.

tokenizer.json is written because transformers would otherwise prepend a space to every text, even if the
SentencePiece model does not.
"""

import hashlib
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from ..cli.files import read_json
from .sentencepiece_model import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, pieces_of
from .tokenizer import U2581, TextStream, check_encodable

BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class HFTokenizer:
    """A tokenizer.json and the settings beside it, read with the ``tokenizers`` package as transformers reads them.

    Tokens that only ``tokenizer_config.json`` or ``added_tokens.json`` names are added. BOS comes first in a text if
    the file's post-processor puts it there, whatever ``add_bos_token`` says, with one exception: DeepSeek's models have
    ``add_bos_token``, the class LlamaTokenizer and a post-processor without BOS. Transformers 5 begins their texts
    without BOS, but their authors document that they begin with it, and transformers 4 did so.

    What a post-processor puts after a text, and the file's truncation, padding and dropout are left out, because they
    are for the batches of a training. If no file names a BOS token, as for Qwen, EOS takes its place in the empty text
    and between the documents of a training. Raises ValueError if no file names either.
    """

    def __init__(self, path: str | Path, content: bytes | None = None):
        """``content`` is the tokenizer.json if the file at ``path`` is in another format."""
        try:
            from tokenizers import Tokenizer
            from tokenizers.models import BPE
        except ImportError:
            raise ValueError(f"{path} needs the extra hf: pip install tokenizers, or give a tokenizer.model") from None
        self.path = Path(path)
        self.content = self.path.read_bytes() if content is None else content
        settings = read_settings(self.path.parent)
        added = added_tokens(self.path.parent)
        try:
            self._model = Tokenizer.from_str(self.content.decode())
            self._model.no_truncation()
            self._model.no_padding()
            if isinstance(self._model.model, BPE):
                self._model.model.dropout = None
            base = self._model.get_vocab(with_added_tokens=False)
            self.base_vocab_size = max(base.values()) + 1  # without added tokens
            self._add_tokens(settings, added)
            self.vocab_size = max(self._model.get_vocab().values()) + 1
            self._special = {token for token, added in self._model.get_added_tokens_decoder().items() if added.special}
            pieces = self._model.encode("a", add_special_tokens=False)
            processed = self._model.encode("a", add_special_tokens=True).ids
            prefix = processed[: processed.index(pieces.ids[0])] if pieces.ids else processed
            self._model.decode(range(min(self.vocab_size, 1000)))  # a damaged file fails here, not while generating
        except BaseException as error:
            # A panic of the library is no Exception, and its class cannot be imported.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"{path} is not a valid tokenizer.json ({error}): get the file again") from None
        for token, (number, _) in added.items():
            if self._model.token_to_id(token) != number:
                raise ValueError(
                    f"{path} gives the token {token!r} the id {self._model.token_to_id(token)}, but "
                    f"tokenizer_config.json or added_tokens.json {number}: get these files again"
                )
        others = repr((sorted(added.items()), sorted(named_tokens(settings))))
        self.fingerprint = hashlib.sha256(self.content + others.encode()).hexdigest()
        named_bos = self._id_of(settings.get("bos_token"))
        eos = self._id_of(settings.get("eos_token"))
        is_llama = str(settings.get("tokenizer_class")).startswith("LlamaTokenizer")
        if not prefix and named_bos is not None and is_llama and settings.get("add_bos_token") is True:
            prefix = [named_bos]
        self._prefix = prefix
        self._splits_special = settings.get("split_special_tokens") is True
        bos = next((token for token in (*prefix, named_bos, eos) if token is not None), None)
        if bos is None or bos >= self.vocab_size:
            raise ValueError(f"{path} names no BOS or EOS token of its own: put its tokenizer_config.json beside it")
        self.bos_id: int = bos
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)
        self.adds_space = bool(pieces.tokens) and pieces.tokens[0][0] in "\u2581\u0120 "
        self.model_vocab_size = self.vocab_size  # the model may have fewer tokens: see ``_checked``

    def _add_tokens(self, settings: dict[str, Any], added: dict[str, tuple[int, dict[str, Any]]]) -> None:
        """Add the tokens that only the files beside tokenizer.json name, and mark those with a role as special."""
        from tokenizers import AddedToken

        for token, (_, flags) in sorted(added.items(), key=lambda item: item[1][0]):
            self._model.add_tokens([AddedToken(token, **flags)])
        known = {each.content: each for each in self._model.get_added_tokens_decoder().values()}
        for token in named_tokens(settings):
            if self._model.token_to_id(token) is not None:  # others have no row in the model
                self._model.add_special_tokens([known.get(token) or AddedToken(token, special=True, normalized=False)])

    def _id_of(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return self._model.token_to_id(content) if isinstance(content, str) else None

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """BOS comes first if the model was trained with it, and in the empty text, which needs at least one token."""
        ids = self.encode_batch([text])[0]
        if bos:
            ids = [*self._prefix, *ids] or [self.bos_id]
        return self._checked(ids)

    def _checked(self, ids: list[int]) -> list[int]:
        """Raise ValueError for a token beyond the vocabulary of the model, as CodeLlama-34b's tokenizer has."""
        if max(ids, default=0) >= self.model_vocab_size:
            token = self._model.id_to_token(max(ids))
            raise ValueError(
                f"the text contains {token!r}, which is token {max(ids)}, but the model has only "
                f"{self.model_vocab_size} tokens: leave it out"
            )
        return ids

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Many texts at once. The library uses all cores and ignores ``threads``."""
        checked = [check_encodable(text) for text in texts]
        self._model.encode_special_tokens = self._splits_special  # into characters
        return [self._checked(row.ids) for row in self._model.encode_batch(checked, add_special_tokens=False)]

    def control_tokens(self, template: str) -> dict[str, int]:
        """The special tokens, and the other added tokens that the template names."""
        added = self._model.get_added_tokens_decoder().items()
        return {each.content: token for token, each in added if each.special or each.content in template}

    def encode_control(self, text: str) -> list[int]:
        self._model.encode_special_tokens = False
        return self._checked(self._model.encode(check_encodable(text), add_special_tokens=False).ids)

    def find_control(self, text: str, ids: Container[int]) -> list[tuple[int, int]]:
        """The library normalizes the text before it looks for some tokens: with NFKC it also finds ``＜eot＞``."""
        self._model.encode_special_tokens = False
        encoded = self._model.encode(text, add_special_tokens=False)
        return [span for token, span in zip(encoded.ids, encoded.offsets) if token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids), skip_special_tokens=True)

    def stream(self, prefix: Sequence[int] = ()) -> TextStream:
        return TextStream(self.decode, self._is_incomplete, prefix)

    def _is_incomplete(self, token: int) -> bool:
        """True for byte tokens, because neighbouring ones are decoded together: one invalid byte garbles all of them.

        Also true for special tokens. They decode to nothing, so the byte tokens around one are decoded together.
        """
        piece = self._model.id_to_token(token)
        return piece is None or token in self._special or BYTE_PIECE.fullmatch(piece) is not None


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings of the tokenizer in a directory, among them its special tokens and perhaps its chat template.

    As in transformers, special_tokens_map.json overrides tokenizer_config.json, but is ignored if the latter has
    added_tokens_decoder, which newer files have.
    """
    settings = _read_if_present(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= _read_if_present(directory / "special_tokens_map.json")
    return {key: value for key, value in settings.items() if value is not None}


def _read_if_present(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token


def named_tokens(settings: dict[str, Any]) -> list[str]:
    """The tokens that the settings of a tokenizer name as special."""
    more: list[Any] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = settings.get(name)
        more += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    tokens = [settings.get(role) for role in ROLES] + more
    contents = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    return [content for content in contents if isinstance(content, str) and content]


def added_tokens(directory: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """Token -> (id, flags) of the tokens in added_tokens.json and tokenizer_config.json, which may not be elsewhere.

    Raises ValueError if they are not in the form that these files have.
    """
    settings = read_settings(directory)
    special = named_tokens(settings)
    file = directory / "added_tokens.json"
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for token, number in _read_if_present(file).items():
        found[token] = number, {"special": token in special, "normalized": token not in special}
    config = directory / "tokenizer_config.json"
    decoder = settings.get("added_tokens_decoder", {})
    try:
        for number, fields in decoder.items():
            found[fields["content"]] = int(number), {flag: bool(fields[flag]) for flag in FLAGS if flag in fields}
        numbers = {number for number, _ in found.values()}
        if not all(type(number) is int and number >= 0 for number in numbers) or len(numbers) < len(found):
            raise ValueError("two tokens have the same id")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{config} or {file.name}: the added tokens are not valid ({error}): get it again") from None
    return found


def hugging_face_files(path: Path, adds_bos: bool = True) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The contents of tokenizer.json and tokenizer_config.json for a SentencePiece model; None for a unigram model."""
    content = path.read_bytes()
    pieces = pieces_of(content)
    merged = [piece for piece in pieces if piece.kind == NORMAL and len(piece.text) > 1]
    if not all(piece.score.is_integer() for piece in merged):  # a unigram model: probabilities instead of ranks
        return None
    merged.sort(key=lambda piece: -piece.score)
    vocabulary = {piece.text for piece in pieces if piece.kind == NORMAL}
    merges = []  # every pair of pieces that merges into a piece, the most frequent first
    for piece, _, _ in merged:
        pairs = [[piece[:i], piece[i:]] for i in range(1, len(piece))]
        merges += [pair for pair in pairs if vocabulary.issuperset(pair)]
    model = SentencePieceProcessor(model_proto=content)
    adds_space = model.encode("a", out_type=str)[0].startswith(U2581)
    names = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "unk_token": model.unk_id()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["add_prefix_space"] = adds_space  # llama.cpp's converter assumes true if it is missing
    config |= {name: pieces[i].text for name, i in names.items() if i >= 0}
    bos = pieces[model.bos_id()].text
    added = []
    for i, (piece, _, kind) in enumerate(pieces):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            added.append({"id": i, "content": piece, **flags, "special": kind != USER_DEFINED})
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": U2581}]
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": U2581}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if adds_space:
        normalizers.insert(0, {"type": "Prepend", "prepend": U2581})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    if not adds_bos:
        config["add_bos_token"] = False
    first = [{"SpecialToken": {"id": bos, "type_id": 0}}] if adds_bos else []
    tokenizer_json = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [*first, *({"Sequence": {"id": part, "type_id": 0}} for part in "AB")],
            "special_tokens": {bos: {"id": bos, "ids": [model.bos_id()], "tokens": [bos]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": pieces[model.unk_id()].text,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece.text: i for i, piece in enumerate(pieces)},
            "merges": merges,
        },
    }
    return tokenizer_json, config


def with_added_tokens(path: Path, settings: dict[str, Any], adds_bos: bool) -> dict[str, Any] | None:
    """The tokenizer.json of a SentencePiece model to which the files beside it add tokens, as transformers makes it.

    ``HFTokenizer`` then adds the tokens. None for a unigram model.
    """
    files = hugging_face_files(path, adds_bos)
    if files is None:
        return None
    tokenizer_json, config = files
    if config["add_prefix_space"]:
        # SentencePiece's space before the text comes before every part between added tokens only if "legacy" is true.
        scheme = "always" if settings.get("legacy") else "first"
        space = {"type": "Metaspace", "replacement": U2581, "prepend_scheme": scheme, "split": False}
        tokenizer_json |= {"normalizer": None, "pre_tokenizer": space}
    return tokenizer_json
