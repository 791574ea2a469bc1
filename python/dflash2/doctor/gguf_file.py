"""A GGUF file: its values, and copies of it with something changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

from dflash2.errors import ModelFormatError
from dflash2.gguf_raw import Value, read_header
from dflash2.gguf_write import TensorEntry, header_bytes, padded

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_T = gguf.GGMLQuantizationType
# Bytes at which the F16 scales and minima stand in a block.
SCALES = {
    _T.Q4_0: (0,), _T.Q4_1: (0, 2), _T.Q5_0: (0,), _T.Q5_1: (0, 2), _T.Q8_0: (0,),
    _T.Q2_K: (80, 82), _T.Q3_K: (108,), _T.Q4_K: (0, 2), _T.Q5_K: (0, 2), _T.Q6_K: (208,),
    _T.IQ4_NL: (0,), _T.IQ4_XS: (0,),
}  # fmt: skip


@dataclass(frozen=True)
class TensorData:
    """rows: (n_rows, bytes per row), all dimensions but the first counted as rows."""

    type_id: int
    rows: Bytes


@dataclass(frozen=True)
class Edit:
    """What a copy has instead. A value of None leaves the key out."""

    values: Mapping[str, Value | None] = field(default_factory=dict)
    tensors: Mapping[str, TensorData] = field(default_factory=dict)


class GgufFile:
    """A GGUF file of which nothing but the header is held in memory.

    Raises:
        OSError: it cannot be read.
        ModelFormatError: it is not a whole GGUF, or holds a tensor type that is not known.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._header = read_header(self.path)
        self._data = np.memmap(self.path, np.uint8, mode="r")
        for tensor in self._header.tensors.values():
            try:
                gguf.GGMLQuantizationType(tensor.type_id)
            except ValueError as e:
                raise ModelFormatError(
                    f"{self.path}: {tensor.name}: unknown tensor type {tensor.type_id}"
                ) from e
            if tensor.offset + self._size(tensor.name) > len(self._data):
                raise ModelFormatError(f"{self.path}: {tensor.name}: the file ends before its data")

    @property
    def names(self) -> list[str]:
        return list(self._header.tensors)

    @property
    def values(self) -> Mapping[str, Value]:
        return self._header.values

    def shape(self, name: str) -> tuple[int, ...]:
        """In ggml order, the row first."""
        return self._header.tensors[name].shape

    def type_name(self, name: str) -> str:
        return gguf.GGMLQuantizationType(self._header.tensors[name].type_id).name

    def data(self, name: str) -> TensorData:
        tensor = self._header.tensors[name]
        raw = self._data[tensor.offset : tensor.offset + self._size(name)]
        return TensorData(tensor.type_id, raw.reshape(-1, self._row_size(name)))

    def floats(self, name: str, rows: Sequence[int] | None = None) -> Floats:
        """(n_rows, row), dequantized; rows: these only."""
        data = self.data(name)
        kind = gguf.GGMLQuantizationType(data.type_id)
        wanted = np.ascontiguousarray(data.rows if rows is None else data.rows[list(rows)])
        return np.asarray(gguf.quants.dequantize(wanted, kind), np.float32)

    def scales(self, name: str) -> Floats:
        """(n_rows, k): what decides whether values are finite or zero, without dequantizing.

        The F16 scales of each block; the values themselves for types that have none.
        """
        data = self.data(name)
        kind = gguf.GGMLQuantizationType(data.type_id)
        if kind not in SCALES:
            return self.floats(name)
        n_rows, block = len(data.rows), gguf.GGML_QUANT_SIZES[kind][1]
        blocks = np.ascontiguousarray(data.rows).reshape(n_rows, -1, block)
        found = [blocks[:, :, at : at + 2].copy().view(np.float16) for at in SCALES[kind]]
        return np.asarray(np.concatenate(found, axis=2).reshape(n_rows, -1), np.float32)

    def write_copy(self, path: Path, edit: Edit) -> None:
        """Raises OSError."""
        values = {**self._header.values, **edit.values}
        entries, offset = [], 0
        tensors = {name: edit.tensors.get(name) or self.data(name) for name in self.names}
        for name, data in tensors.items():
            entries.append(TensorEntry(name, self.shape(name), data.type_id, offset))
            offset += padded(data.rows.size, self._header.alignment)
        kept = {key: value for key, value in values.items() if value is not None}
        with path.open("wb") as out:
            out.write(header_bytes(kept, entries, self._header.alignment))
            for data in tensors.values():
                out.write(np.ascontiguousarray(data.rows).data)
                out.write(bytes(padded(data.rows.size, self._header.alignment) - data.rows.size))

    def _row_size(self, name: str) -> int:
        tensor = self._header.tensors[name]
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type_id)]
        return tensor.shape[0] // block * size

    def _size(self, name: str) -> int:
        n_rows = int(np.prod(self._header.tensors[name].shape[1:], dtype=np.int64))
        return self._row_size(name) * n_rows
