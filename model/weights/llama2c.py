"""llama2.c's .bin files, version 0: a header of seven counts, then the tensors in float32, all little-endian.

convert.py reads and writes them. A negative vocabulary size in the header means that the embedding is not tied to the
output matrix. The format has no field for RoPE's base, which is 10000, nor for the epsilon of the norms, which is 1e-5.
Versions 1 and 2 (int8), which begin with a magic number, are not read.

Its tokenizer.bin does not say whether a space is put before a text, because llama2.c always does.
"""

import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cli.files import ZIP, kind_of_file, write_atomically, write_bytes
from ..config import ModelArgs
from ..text.sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN, Piece, bpe_model
from ..text.tokenizer import U2581, SentencePieceTokenizer, Tokenizer
from ..transformer import Transformer
from .checkpoint import Checkpoint
from .layout import check_read_back, check_sizes, tensor_shapes
from .tensors import Stored

HEADER = struct.Struct("<7i")
HEADER_COUNTS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
MAGIC = 0x616B3432  # "ak42", of the later versions
SPECIAL = Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)  # the first tokens
ROTATIONS = "rope"  # cosines and sines, which no program reads


def open_file(path: Path) -> Checkpoint:
    """Open a file: its header is read and compared with its size."""
    with path.open("rb") as file:
        raw = file.read(HEADER.size)
    try:
        args = parse_header(raw)
        check_sizes(args)
    except (ValueError, struct.error) as error:
        kind = kind_of_file(path)
        if kind in (None, ZIP):  # ZIP: PyTorch's .bin
            kind = (
                f"is not a llama2.c model in float32 ({error}): give a .bin that convert.py, or export.py with "
                "--version 0, wrote, or the directory of another model; GGUF files are not read"
            )
        raise ValueError(f"{path} {kind}") from None
    stored = {}
    offset = HEADER.size
    for name, shape in in_file(args):
        if name != ROTATIONS:
            stored[name] = Stored(shape, torch.float32, partial(read_tensor, path, offset, shape))
        offset += 4 * math.prod(shape)
    size = path.stat().st_size
    if size != offset:
        raise ValueError(f"{path} has {size} bytes, its header announces {offset}: not a llama2.c file, or cut short")
    return Checkpoint(path, args, stored)


def read_tensor(path: Path, offset: int, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.fromfile(path, "<f4", math.prod(shape), offset=offset)).view(shape)


def in_file(args: ModelArgs) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, shape) in the order of the file: that of ``tensor_shapes``, with the rotations after the norm."""
    for name, shape in tensor_shapes(args).items():
        yield name, shape
        if name == "norm.weight":
            yield ROTATIONS, (2, args.max_seq_len, args.head_dim // 2)


def parse_header(raw: bytes) -> ModelArgs:
    """Raises ValueError or struct.error if the bytes are not a header of this format."""
    counts: dict[str, Any] = dict(zip(HEADER_COUNTS, HEADER.unpack(raw)))
    if counts["dim"] == MAGIC:
        raise ValueError(f"it has version {counts['hidden_dim']}, only version 0, float32, is supported")
    tied = counts["vocab_size"] > 0
    counts["vocab_size"] = abs(counts["vocab_size"])
    return ModelArgs(**counts, norm_eps=1e-5, rope_theta=10000.0, tie_embeddings=tied)


def save(model: Transformer, path: Path) -> None:
    """Write a file for llama2.c's run.c. Raises ValueError if the format cannot express the architecture."""
    header = header_of(model.args)
    state = model.state_dict()
    state[ROTATIONS] = torch.stack((model.freqs_cis.real, model.freqs_cis.imag))  # (2, max_seq_len, D/2)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header)
            for name, _ in in_file(model.args):
                # Not tofile, which ignores a full disk.
                file.write(np.ascontiguousarray(state[name].detach().cpu().float().numpy(), "<f4").data)

    write_atomically(path, write)


def header_of(args: ModelArgs) -> bytes:
    """The header of a file. Raises ValueError if it cannot express ``args``."""
    counts = {name: getattr(args, name) for name in HEADER_COUNTS}
    if not args.tie_embeddings:
        counts["vocab_size"] *= -1
    raw = HEADER.pack(*counts.values())
    check_read_back(args, parse_header(raw), "llama2.c's format")
    return raw


def open_tokenizer(path: Path) -> SentencePieceTokenizer:
    """Read a tokenizer.bin, as ``save_tokenizer`` or llama2.c's exporter wrote it."""
    content = path.read_bytes()
    pieces: list[Piece] = []
    position = 4
    try:
        while position < len(content):
            score, size = struct.unpack_from("<fi", content, position)
            start, position = position + 8, position + 8 + size
            if not start <= position <= len(content):
                raise ValueError("it is cut short")
            text = content[start:position].decode().replace(" ", U2581)
            pieces.append(Piece(text, score, BYTE if 3 <= len(pieces) < 259 else NORMAL))
        if [piece.text for piece in pieces[3:259]] != [f"<0x{byte:02X}>" for byte in range(256)]:
            raise ValueError("its tokens 3 to 258 are not the bytes")
        return SentencePieceTokenizer(path, bpe_model([*SPECIAL, *pieces[3:]]))
    except (ValueError, struct.error) as error:
        raise ValueError(f"{path} is not a tokenizer.bin of llama2.c ({error}): give a tokenizer.model") from None


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer.bin: int32 longest piece, then for each token float32 score, int32 length, that many bytes.

    Raises ValueError if the format cannot express the tokenizer. llama2.c puts a space before every text, even if
    ``tokenizer`` does not: the caller must warn.
    """
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise ValueError(f"{tokenizer.path} is not a SentencePiece model: llama2.c cannot use it")
    model = tokenizer.model
    ids = [model.unk_id(), model.bos_id(), model.eos_id()]
    byte_ids = [i for i in range(tokenizer.vocab_size) if model.is_byte(i)]
    has_space = not model.is_unknown(model.piece_to_id(U2581))
    if ids != [0, 1, 2] or byte_ids != list(range(3, 259)) or not has_space:
        raise ValueError(f"{tokenizer.path} lacks llama2.c's first 259 tokens, or a piece for the space")
    # As llama2.c's exporter writes them. run.c prints the byte that the name of a byte piece gives.
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n"]
    pieces += [model.id_to_piece(i).replace(U2581, " ") for i in range(3, tokenizer.vocab_size)]
    encoded = [piece.encode() for piece in pieces]
    packed = [struct.pack("<fi", model.get_score(i), len(piece)) + piece for i, piece in enumerate(encoded)]
    content = struct.pack("<i", max(map(len, encoded))) + b"".join(packed)
    write_bytes(path, content)
