"""Writes a GGUF file, a few rows at a time, under a temporary name until it is complete."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from convert_error import ConvertError
from gguf_raw import ALIGNMENT, MAGIC, VERSION, Value
from tensor_map import MappedTensor
from tensor_source import n_cols, n_rows
from tensor_types import encode, tensor_bytes, type_id

CHUNK_VALUES = 4 << 20  # values of a tensor held at once

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the file and the ggml type it gets."""

    tensor: MappedTensor
    type: str

    @property
    def n_bytes(self) -> int:
        return tensor_bytes(self.tensor.shape, self.type)

    def row_chunks(self) -> Iterator[tuple[int, int]]:
        """(start, stop) rows that fit into CHUNK_VALUES."""
        shape = self.tensor.shape
        step, stop = max(1, CHUNK_VALUES // n_cols(shape)), n_rows(shape)
        for start in range(0, stop, step):
            yield start, min(start + step, stop)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _header(values: Mapping[str, Value], tensors: Sequence[PlannedTensor]) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(values))]
    for key, value in values.items():
        name = key.encode("utf-8")
        parts += [struct.pack("<Q", len(name)), name, struct.pack("<I", value.kind), value.data]
    offset = 0
    for planned in tensors:
        name = planned.tensor.name.encode("utf-8")
        shape = planned.tensor.shape[::-1]
        parts += [struct.pack("<Q", len(name)), name]
        parts.append(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        parts.append(struct.pack("<IQ", int(type_id(planned.type)), offset))
        offset += _padded(planned.n_bytes)
    header = b"".join(parts)
    return header.ljust(_padded(len(header)), b"\0")


def file_bytes(values: Mapping[str, Value], tensors: Sequence[PlannedTensor]) -> int:
    """Size of the file that write_gguf would write."""
    return len(_header(values, tensors)) + sum(_padded(t.n_bytes) for t in tensors)


def memory_bytes(values: Mapping[str, Value], tensors: Sequence[PlannedTensor]) -> int:
    """About the most memory that writing and verifying take: Python, chunks, metadata copies."""
    metadata = sum(len(value.data) for value in values.values())
    largest = max(math.prod(t.tensor.shape) for t in tensors)
    return (64 << 20) + 24 * min(CHUNK_VALUES, largest) + 3 * metadata


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
    for planned in tensors:
        source = planned.tensor.source
        where = source.where
        written = 0
        for start, stop in planned.row_chunks():
            data = encode(source.read(start, stop), source.dtype, planned.type, where, n_threads)
            f.write(data.tobytes())
            written += data.nbytes
            on_bytes(data.nbytes)
        if written != planned.n_bytes:
            raise ConvertError(f"{where}: expected {planned.n_bytes} bytes encoded, got {written}")
        f.write(b"\0" * (_padded(written) - written))


def check_outfile(path: Path, *, force: bool) -> None:
    """Raises ConvertError when the file cannot be placed there."""
    if path.exists() and not force:
        raise ConvertError(f"{path}: exists; pass --force to overwrite it")
    if not path.parent.is_dir():
        raise ConvertError(f"{path.parent}: expected a folder to write into, found none")
    if not os.access(path.parent, os.W_OK):
        raise ConvertError(f"{path.parent}: the folder is not writable; pass --outfile")


@contextmanager
def temporary_file(path: Path, *, force: bool) -> Iterator[Path]:
    """A temporary name beside path, moved to path when the block that writes it succeeds.

    Whatever the block raises, the temporary file is gone and path is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        check_outfile(path, force=force)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def sync(f: BinaryIO) -> None:
    """Forces what was written to the disk, so that a rename cannot expose a half-written file."""
    f.flush()
    os.fsync(f.fileno())
