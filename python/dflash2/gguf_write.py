"""Headers of GGUF files from raw values, and files that get their name only when complete."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dflash2.gguf_raw import ALIGNMENT, MAGIC, VERSION, Value


@dataclass(frozen=True)
class TensorEntry:
    """One line of the tensor table; shape: ggml order, offset: from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def padded(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of the alignment."""
    return -(-size // alignment) * alignment


def header_bytes(
    values: Mapping[str, Value], tensors: Sequence[TensorEntry], alignment: int = ALIGNMENT
) -> bytes:
    """Everything before the tensor data, padded to it."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(values))]
    for key, value in values.items():
        name = key.encode("utf-8")
        parts += [struct.pack("<Q", len(name)), name, struct.pack("<I", value.kind), value.data]
    for tensor in tensors:
        name = tensor.name.encode("utf-8")
        n_dims = len(tensor.shape)
        parts += [struct.pack("<Q", len(name)), name]
        parts.append(struct.pack(f"<I{n_dims}Q", n_dims, *tensor.shape))
        parts.append(struct.pack("<IQ", tensor.type_id, tensor.offset))
    header = b"".join(parts)
    return header.ljust(padded(len(header), alignment), b"\0")


def check_outfile(path: Path, *, force: bool) -> None:
    """Raises OSError when a file cannot be placed there."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a file or a new name, got something else of that name")
    if path.exists() and not force:
        raise FileExistsError(f"{path}: exists; pass --force to overwrite it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: expected a folder to write into, found none")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path.parent}: the folder is not writable; pass --outfile")


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
    except OSError as e:
        if e.errno is not None and e.filename is None:  # writing to a full disk names no file
            raise OSError(e.errno, e.strerror, str(path)) from e
        raise
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def sync(f: BinaryIO) -> None:
    """Forces what was written to the disk, so that a rename cannot expose a half-written file."""
    f.flush()
    os.fsync(f.fileno())
