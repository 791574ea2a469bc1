"""Writes the tensors of a GGUF file, a few rows at a time and in several threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from convert_error import ConvertError
from dflash2.gguf_raw import Value
from dflash2.gguf_write import TensorEntry, header_bytes, padded
from numpy.typing import NDArray
from ordered_map import ordered_map
from tensor_map import MappedTensor
from tensor_source import n_cols, n_rows
from tensor_types import encode, tensor_bytes, type_id

CHUNK_VALUES = 512 << 10  # values that a thread holds at once: they fit into its caches

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the file and the ggml type it gets.

    importance: mean square of each column's input, (columns,), or None.
    """

    tensor: MappedTensor
    type: str
    importance: NDArray[np.float32] | None = None

    @property
    def n_bytes(self) -> int:
        return tensor_bytes(self.tensor.shape, self.type)

    def row_chunks(self) -> Iterator[tuple[int, int]]:
        """(start, stop) rows that fit into CHUNK_VALUES."""
        shape = self.tensor.shape
        step, stop = max(1, CHUNK_VALUES // n_cols(shape)), n_rows(shape)
        for start in range(0, stop, step):
            yield start, min(start + step, stop)


def _header(values: Mapping[str, Value], tensors: Sequence[PlannedTensor]) -> bytes:
    entries, offset = [], 0
    for planned in tensors:
        shape = planned.tensor.shape[::-1]
        entries.append(TensorEntry(planned.tensor.name, shape, int(type_id(planned.type)), offset))
        offset += padded(planned.n_bytes)
    return header_bytes(values, entries)


def file_bytes(values: Mapping[str, Value], tensors: Sequence[PlannedTensor]) -> int:
    """Size of the file that write_gguf would write."""
    return len(_header(values, tensors)) + sum(padded(t.n_bytes) for t in tensors)


def memory_bytes(
    values: Mapping[str, Value], tensors: Sequence[PlannedTensor], n_threads: int
) -> int:
    """About the most memory that writing and verifying take: Python, chunks, metadata copies."""
    metadata = sum(len(value.data) for value in values.values())
    largest = max(math.prod(t.tensor.shape) for t in tensors)
    return (56 << 20) + 32 * n_threads * min(CHUNK_VALUES, largest) + 3 * metadata


def _encode(task: tuple[PlannedTensor, int, int]) -> NDArray[np.uint8]:
    """Rows start..stop of a tensor in its type, (rows, bytes)."""
    planned, start, stop = task
    source = planned.tensor.source
    rows = source.read(start, stop)
    return encode(rows, source.dtype, planned.type, source.where, planned.importance)


def write_gguf(
    f: BinaryIO,
    values: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    *,
    n_threads: int,
    on_bytes: OnBytes,
) -> None:
    """Writes header and tensor data. on_bytes: called with the number of data bytes just written.

    Raises ConvertError when a source holds values that cannot be stored, OSError on a full disk.
    """
    f.write(_header(values, tensors))
    tasks = ((planned, *rows) for planned in tensors for rows in planned.row_chunks())
    chunks = ordered_map(_encode, tasks, n_threads)
    for planned in tensors:
        written = 0
        while written < planned.n_bytes:
            data = next(chunks)
            f.write(data.data)
            written += data.nbytes
            on_bytes(data.nbytes)
        if written != planned.n_bytes:
            where = planned.tensor.source.where
            raise ConvertError(f"{where}: expected {planned.n_bytes} bytes encoded, got {written}")
        f.write(b"\0" * (padded(written) - written))
