"""Hugging Face's tokenizer.json: read with the optional ``tokenizers`` package, written for SentencePiece models.

tokenizer.json is written because transformers would otherwise prepend a space to every text, even if the
SentencePiece model does not.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli.files import kind_of_file, read_json
from .sentencepiece_model import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, pieces_of
from .tokenizer import U2581, SentencePieceTokenizer, TextStream, check_encodable

BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class HFTokenizer:
    """A tokenizer.json and the settings beside it, read with the ``tokenizers`` package as transformers reads them.

    BOS comes first in a text if the file's post-processor puts it there, or if the settings have ``add_bos_token``.
    Transformers 5 ignores that setting of DeepSeek's models, but their authors document that texts begin with BOS.

    What a post-processor puts after a text, and the file's truncation and padding are left out, because they are for
    the batches of a training. If no file names a BOS token, as for Qwen, EOS takes its place in the empty text and
    between the documents of a training. Raises ValueError if no file names either.
    """

    def __init__(self, path: str | Path):
        try:
            from tokenizers import AddedToken, Tokenizer, __version__
        except ImportError:
            raise ValueError(f"{path} needs the extra hf: pip install tokenizers, or give a tokenizer.model") from None
        self.path = Path(path)
        self.is_restricted = False
        self.content = self.path.read_bytes()
        try:
            self._model = Tokenizer.from_str(self.content.decode())
            self._model.no_truncation()
            self._model.no_padding()
            for each in self._model.get_added_tokens_decoder().values():
                if each.special and each.normalized:  # a space that is put before every text would hide its name
                    options = {name: getattr(each, name) for name in ("single_word", "lstrip", "rstrip")}
                    self._model.add_special_tokens([AddedToken(each.content, normalized=False, **options)])
            self.vocab_size = max(self._model.get_vocab().values()) + 1
            probe, plain = self._known_text()
            ids = self._model.encode(probe).ids
            self._prefix = ids[: ids.index(plain.ids[0])]
        except Exception as error:
            kind = kind_of_file(self.content) or (
                f"is damaged, or newer than tokenizers {__version__} ({error}): get the file again, or run "
                "`pip install --upgrade tokenizers`"
            )
            raise ValueError(f"{path} {kind}") from None
        for token, number in added_tokens(self.path.parent).items():
            if self._model.token_to_id(token) != number:
                raise ValueError(
                    f"{path} gives the token {token!r} the id {self._model.token_to_id(token)}, but "
                    f"tokenizer_config.json or added_tokens.json {number}: get these files again"
                )
        added = self._model.get_added_tokens_decoder().items()
        self._special = {token for token, each in added if each.special}
        self.adds_space = plain.tokens[0][0] in "\u2581\u0120 "

        settings = read_settings(self.path.parent)
        named_bos, eos = self._special_id(settings.get("bos_token")), self._special_id(settings.get("eos_token"))
        if not self._prefix and named_bos is not None and settings.get("add_bos_token") is True:
            self._prefix = [named_bos]
        bos = next((token for token in (*self._prefix, named_bos, eos) if token is not None), None)
        if bos is None:
            raise ValueError(f"{path} names no BOS or EOS token: put its tokenizer_config.json beside it")
        self.bos_id: int = bos
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)

    def _known_text(self) -> tuple[str, Any]:
        """A text without a space that has tokens, and its encoding: "a", unless the tokenizer is for DNA or digits."""
        texts = ["a", *(self._model.decode([token]).strip() for token in range(self.vocab_size))]
        encodings = ((text, self._model.encode(text, add_special_tokens=False)) for text in texts if text)
        return next((text, encoding) for text, encoding in encodings if encoding.ids)

    def restrict(self, vocab_size: int) -> None:
        """Refuse texts with tokens from this id on, which a network lacks, if these are added ones such as [PAD]."""
        added = self._model.get_added_tokens_decoder()
        numbers = self._model.get_vocab().values()
        if self.bos_id >= vocab_size or any(number >= vocab_size and number not in added for number in numbers):
            return  # the tokenizer of another network
        self.is_restricted, self.vocab_size = True, vocab_size
        self.eos_ids = tuple(token for token in self.eos_ids if token < vocab_size)

    def _special_id(self, token: Any) -> int | None:
        """The id of a token that the settings name, which makes it special even if tokenizer.json does not."""
        name = token.get("content") if isinstance(token, dict) else token
        number = self._model.token_to_id(name) if isinstance(name, str) else None
        if number is not None and number not in self._special:
            self._model.add_special_tokens([name])
            self._special.add(number)
        return number

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """BOS comes first if the model was trained with it, and in the empty text, which needs at least one token."""
        ids = self.encode_batch([text])[0]
        return [*self._prefix, *ids] or [self.bos_id] if bos else ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        checked = [check_encodable(text) for text in texts]
        rows = [row.ids for row in self._model.encode_batch(checked, add_special_tokens=False)]
        largest = max((max(row, default=0) for row in rows), default=0) if self.is_restricted else 0
        if largest >= self.vocab_size:
            raise ValueError(
                f"the text has {self._model.id_to_token(largest)}, token {largest} of {self.path}, but the vocabulary "
                f"of the model ends at {self.vocab_size - 1}: leave it out of the text"
            )
        return rows

    def control_tokens(self, template: str) -> dict[str, int]:
        """The special tokens, and the other added tokens that the template names."""
        added = self._model.get_added_tokens_decoder().items()
        return {each.content: token for token, each in added if each.special or each.content in template}

    def encode_control(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

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
    settings = read_if_present(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= read_if_present(directory / "special_tokens_map.json")
    return {key: value for key, value in settings.items() if value is not None}


def read_if_present(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def added_tokens(directory: Path) -> dict[str, int]:
    """Token -> id of the tokens in added_tokens.json and tokenizer_config.json.

    Raises ValueError if they are not in the form that these files have.
    """
    file = directory / "tokenizer_config.json"
    older, settings = read_if_present(directory / "added_tokens.json"), read_if_present(file)
    try:
        newer = settings.get("added_tokens_decoder", {}).items()
        found = {str(fields["content"]): int(number) for number, fields in newer}
        return {token: int(number) for token, number in older.items()} | found
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise ValueError(
            f"{file} or added_tokens.json: the added tokens are not valid ({error}): get it again"
        ) from None


def hugging_face_files(tokenizer: SentencePieceTokenizer) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The contents of tokenizer.json and tokenizer_config.json for a SentencePiece model; None for a unigram model."""
    pieces, model = pieces_of(tokenizer.content), tokenizer.model
    merged = [piece for piece in pieces if piece.kind == NORMAL and len(piece.text) > 1]
    if not all(piece.score.is_integer() for piece in merged):  # a unigram model: probabilities instead of ranks
        return None
    merged.sort(key=lambda piece: -piece.score)
    vocabulary = {piece.text for piece in pieces if piece.kind == NORMAL}
    merges = []  # every pair of pieces that merges into a piece, the most frequent first
    for piece, _, _ in merged:
        pairs = [[piece[:i], piece[i:]] for i in range(1, len(piece))]
        merges += [pair for pair in pairs if vocabulary.issuperset(pair)]
    names = {"bos_token": tokenizer.bos_id, "eos_token": model.eos_id(), "unk_token": model.unk_id()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["add_prefix_space"] = tokenizer.adds_space  # llama.cpp's converter assumes true if it is missing
    config |= {name: pieces[i].text for name, i in names.items() if i >= 0}
    bos = pieces[tokenizer.bos_id].text
    added = []
    for i, (piece, _, kind) in enumerate(pieces):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            added.append({"id": i, "content": piece, **flags, "special": kind != USER_DEFINED})
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": U2581}]
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": U2581}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if tokenizer.adds_space:
        normalizers.insert(0, {"type": "Prepend", "prepend": U2581})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    tokenizer_json = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [first, *({"Sequence": {"id": part, "type_id": 0}} for part in "AB")],
            "special_tokens": {bos: {"id": bos, "ids": [tokenizer.bos_id], "tokens": [bos]}},
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
