"""The pieces of a SentencePiece `tokenizer.model`, read without the sentencepiece package.

The file is a protobuf; only the pieces and two fields of the normalizer matter. Untrusted input:
every length is checked against what is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from convert_error import ConvertError

MAX_MODEL_BYTES: Final = 64 << 20

# protobuf wire types
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Piece:
    """One piece; type 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte."""

    text: bytes
    score: float
    type: int


@dataclass(frozen=True)
class SpmVocab:
    pieces: tuple[Piece, ...]
    add_space_prefix: bool
    remove_extra_whitespaces: bool


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message; fixed32 and fixed64 as their bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
            if shift > 63:
                raise ValueError("varint too long")

    while at < len(data):
        tag = varint()
        wire = tag & 7
        if wire == _VARINT:
            yield tag >> 3, varint()
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if size is None:
            if wire != _BYTES:
                raise ValueError(f"wire type {wire}")
            size = varint()
        if size > len(data) - at:
            raise ValueError("field longer than the message")
        yield tag >> 3, data[at : at + size]
        at += size


def _piece(data: bytes) -> Piece:
    text, score, kind = b"", 0.0, 1
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            text = value
        elif field == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            kind = value
    if not 1 <= kind <= 6:
        raise ValueError(f"piece type {kind}")
    return Piece(text, score, kind)


def read_spm(path: Path) -> SpmVocab:
    """Reads a tokenizer.model. Raises ConvertError when it is damaged or has no pieces."""
    if path.stat().st_size > MAX_MODEL_BYTES:
        raise ConvertError(f"{path}: expected at most {MAX_MODEL_BYTES} bytes")
    pieces: list[Piece] = []
    add_prefix = remove_extra = True
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1 and isinstance(value, bytes):
                pieces.append(_piece(value))
            elif field == 3 and isinstance(value, bytes):
                normalizer = dict(_fields(value))
                add_prefix = bool(normalizer.get(3, True))
                remove_extra = bool(normalizer.get(4, True))
    except (ValueError, IndexError, struct.error) as e:
        raise ConvertError(f"{path}: expected a SentencePiece model, {e}") from e
    if not pieces:
        raise ConvertError(f"{path}: expected a SentencePiece model, found no pieces")
    return SpmVocab(tuple(pieces), add_prefix, remove_extra)
