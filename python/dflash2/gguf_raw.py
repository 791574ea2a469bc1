"""The header of a GGUF file with every value kept as its bytes, so that copies are exact.

Untrusted input: every count and length is checked against the file before it is used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dflash2.errors import ModelFormatError

MAGIC: Final = b"GGUF"
VERSION: Final = 3
ALIGNMENT: Final = 32

# value types
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS: Final = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f",
    BOOL: "?", U64: "Q", I64: "q", F64: "d",
}  # fmt: skip
_SIZES: Final = {kind: struct.calcsize("<" + f) for kind, f in _FORMATS.items()}
_LENGTH: Final = struct.Struct("<Q")
_ARRAY_HEAD: Final = struct.Struct("<IQ")


@dataclass(frozen=True)
class Value:
    """One metadata value: its type and its bytes exactly as a GGUF file stores them."""

    kind: int
    data: bytes

    def integer(self) -> int | None:
        """The number of an integer value, else None."""
        if self.kind in (U8, I8, U16, I16, U32, I32, U64, I64):
            return int(struct.unpack("<" + _FORMATS[self.kind], self.data)[0])
        return None

    def text(self) -> str | None:
        """The text of a string value, else None."""
        return self.data[8:].decode("utf-8", "replace") if self.kind == STRING else None

    def strings(self) -> Iterator[bytes]:
        """The items of an array of strings; nothing for other values."""
        if self.kind == ARRAY and _ARRAY_HEAD.unpack_from(self.data)[0] == STRING:
            at = _ARRAY_HEAD.size
            while at < len(self.data):
                start = at + 8
                at = start + _LENGTH.unpack_from(self.data, at)[0]
                yield self.data[start:at]

    def integers(self) -> list[int]:
        """The items of an array of integers; empty for other values."""
        if self.kind != ARRAY:
            return []
        item, _ = _ARRAY_HEAD.unpack_from(self.data)
        if item not in (U8, I8, U16, I16, U32, I32, U64, I64):
            return []
        dtype = np.dtype(_FORMATS[item]).newbyteorder("<")
        values: list[int] = np.frombuffer(self.data, dtype, offset=_ARRAY_HEAD.size).tolist()
        return values


def u32(value: int) -> Value:
    return Value(U32, struct.pack("<I", value))


def u64(value: int) -> Value:
    return Value(U64, struct.pack("<Q", value))


def f32(value: float) -> Value:
    return Value(F32, struct.pack("<f", value))


def boolean(value: bool) -> Value:
    return Value(BOOL, struct.pack("<?", value))


def string(value: str) -> Value:
    data = value.encode("utf-8")
    return Value(STRING, _LENGTH.pack(len(data)) + data)


def f32_array(values: Sequence[float]) -> Value:
    n = len(values)
    return Value(ARRAY, _ARRAY_HEAD.pack(F32, n) + struct.pack(f"<{n}f", *values))


def string_array(values: Sequence[bytes]) -> Value:
    parts = [_ARRAY_HEAD.pack(STRING, len(values))]
    for value in values:
        parts += [_LENGTH.pack(len(value)), value]
    return Value(ARRAY, b"".join(parts))


def i32_array(values: tuple[int, ...]) -> Value:
    n = len(values)
    return Value(ARRAY, _ARRAY_HEAD.pack(I32, n) + struct.pack(f"<{n}i", *values))


def bool_array(values: tuple[bool, ...]) -> Value:
    return Value(ARRAY, _ARRAY_HEAD.pack(BOOL, len(values)) + bytes(values))


class _Cursor:
    """Walks a mapped file; never reads past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.at = 0

    def error(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self._path}: {what} at byte {self.at}; the GGUF file is damaged")

    def skip(self, count: int) -> None:
        if count > len(self._data) - self.at:
            raise self.error(f"expected {count} more bytes, got {len(self._data) - self.at}")
        self.at += count

    def take(self, count: int) -> bytes:
        start = self.at
        self.skip(count)
        return self._data[start : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0])

    def name(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.error("expected a UTF-8 name") from e

    def value(self) -> Value:
        kind = self.number("I")
        start = self.at
        self._skip_value(kind)
        return Value(kind, self._data[start : self.at])

    def _skip_value(self, kind: int) -> None:
        if kind in _SIZES:
            self.skip(_SIZES[kind])
        elif kind == STRING:
            self.skip(self.number("Q"))
        elif kind == ARRAY:
            item, count = self.number("I"), self.number("Q")
            if item in _SIZES:
                self.skip(count * _SIZES[item])
            elif item == STRING:
                self._skip_strings(count)
            else:
                raise self.error(f"expected an array of numbers or strings, got type {item}")
        else:
            raise self.error(f"expected a value type, got {kind}")

    def _skip_strings(self, count: int) -> None:
        at, end, unpack = self.at, len(self._data), _LENGTH.unpack_from
        if count > (end - at) // 8:
            raise self.error(f"expected {count} strings, the file is too short")
        for _ in range(count):
            if at > end - 8:
                raise self.error("expected a string, the file ends")
            at += 8 + unpack(self._data, at)[0]
        if at > end:
            raise self.error("expected a string, the file ends")
        self.at = at


@dataclass(frozen=True)
class Tensor:
    """A tensor as the header describes it; shape in ggml order (ne[0] first)."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # in the file


@dataclass(frozen=True)
class Header:
    """data_offset: where the tensor data begins in the file."""

    values: dict[str, Value]
    tensors: dict[str, Tensor]
    alignment: int
    data_offset: int


def read_header(path: Path) -> Header:
    """Metadata and tensor table of a GGUF file; no tensor data is read.

    Raises:
        OSError: the file cannot be read.
        ModelFormatError: it is not GGUF version 2 or 3, or is damaged.
    """
    with path.open("rb") as f:
        if f.read(4) != MAGIC:
            raise ModelFormatError(f"{path}: expected a GGUF file, got another format")
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_header(_Cursor(path, data))


def _read_header(cur: _Cursor) -> Header:
    cur.skip(4)
    version = cur.number("I")
    if version not in (2, VERSION):
        raise cur.error(f"expected GGUF version 2 or {VERSION}, got {version}")
    n_tensors, n_values = cur.number("Q"), cur.number("Q")
    values: dict[str, Value] = {}
    for _ in range(n_values):
        key = cur.name()
        if key in values:
            raise cur.error(f"expected one value for {key}, got two")
        values[key] = cur.value()

    stored = values.get("general.alignment")
    alignment = stored.integer() if stored else ALIGNMENT
    if not alignment or alignment & (alignment - 1):
        raise cur.error(f"general.alignment: expected a power of two, got {alignment}")
    table: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(n_tensors):
        name = cur.name()
        n_dims = cur.number("I")
        if n_dims > 4:
            raise cur.error(f"{name}: expected at most 4 dimensions, got {n_dims}")
        shape = tuple(cur.number("Q") for _ in range(n_dims))
        table.append((name, shape, cur.number("I"), cur.number("Q")))
    base = -(-cur.at // alignment) * alignment
    tensors = {name: Tensor(name, shape, kind, base + at) for name, shape, kind, at in table}
    if len(tensors) != len(table):
        raise cur.error("expected distinct tensor names")
    return Header(values, tensors, alignment, base)
