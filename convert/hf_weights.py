"""Safetensors checkpoints, read row by row without torch. Headers are untrusted input."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from convert_error import ConvertError
from json_values import load_json
from numpy.typing import NDArray
from tensor_source import n_cols

MAX_HEADER_BYTES: Final = 100 << 20
INDEX_NAME: Final = "model.safetensors.index.json"

# safetensors dtype -> how the bytes are held in numpy (BF16 has no numpy type: its bits)
STORAGE: Final[Mapping[str, np.dtype[Any]]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "BOOL": np.dtype("?"),
}
FLOATS: Final = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a safetensors file (a TensorSource)."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def where(self) -> str:
        return f"{self.path}: {self.name}"

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop as stored. Raises ConvertError when the file has become shorter."""
        storage, columns = STORAGE[self.dtype], n_cols(self.shape)
        count = (stop - start) * columns
        offset = self.offset + start * columns * storage.itemsize
        data = np.fromfile(self.path, dtype=storage, count=count, offset=offset)
        if data.size != count:
            raise ConvertError(f"{self.where}: the file ends inside the tensor")
        return data.reshape(stop - start, columns)


def checkpoint_name(folder: Path) -> str:
    """owner/name when the folder is a Hugging Face cache snapshot, else the folder's name."""
    for part in folder.resolve().parts:
        if match := re.fullmatch(r"models--(.+?)--(.+)", part):
            return f"{match[1]}/{match[2]}"
    return folder.resolve().name


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("duplicate names")
    return names


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63 for v in value
    )


def _parse_entry(path: Path, name: str, entry: object, base: int) -> tuple[StoredTensor, int]:
    """(tensor, end offset in the data section)."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ConvertError(f"{path}: {name}: expected dtype, shape and data_offsets, got {entry!r}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORAGE:
        raise ConvertError(
            f"{path}: {name}: expected a dtype of {', '.join(STORAGE)}, got {dtype!r}; "
            "convert the original, unquantized checkpoint"
        )
    if not _is_counts(shape) or len(shape) > 8:
        raise ConvertError(f"{path}: {name}: expected a shape of integers, got {shape!r}")
    if not _is_counts(offsets) or len(offsets) != 2:
        raise ConvertError(f"{path}: {name}: expected two data_offsets, got {offsets!r}")
    begin, end = offsets
    n_bytes = math.prod(shape) * STORAGE[dtype].itemsize
    if end - begin != n_bytes:
        raise ConvertError(
            f"{path}: {name}: expected {n_bytes} bytes for {dtype} {shape}, got {end - begin}"
        )
    return StoredTensor(path, name, dtype, tuple(shape), base + begin), end


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name; reads only the header.

    Raises ConvertError when the header is malformed, tensors overlap or leave holes, or the file is
    shorter or longer than the header says.
    """
    size = path.stat().st_size
    if size < 8:
        raise ConvertError(f"{path}: expected a safetensors file, got {size} bytes")
    with path.open("rb") as f:
        (n_header,) = struct.unpack("<Q", f.read(8))
        if n_header > min(size - 8, MAX_HEADER_BYTES):
            raise ConvertError(
                f"{path}: expected a header inside the {size} bytes of the file, got {n_header} "
                "bytes; the file is truncated or not safetensors"
            )
        text = f.read(n_header)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as e:
        raise ConvertError(f"{path}: expected a JSON header, {e}") from e
    if not isinstance(header, dict):
        raise ConvertError(f"{path}: expected a JSON object as header, got {type(header).__name__}")

    header.pop("__metadata__", None)
    base = 8 + n_header
    entries = [_parse_entry(path, name, entry, base) for name, entry in header.items()]
    expected = base
    for tensor, end in sorted(entries, key=lambda e: (e[0].offset, e[1])):
        if tensor.offset != expected:
            raise ConvertError(
                f"{path}: {tensor.name}: expected data at byte {expected}, got {tensor.offset}; "
                "tensors overlap or leave a hole"
            )
        expected = base + end
    if expected != size:
        raise ConvertError(f"{path}: expected {expected} bytes, got {size}; download it again")
    return {tensor.name: tensor for tensor, _ in entries}


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard, from a checkpoint's index."""
    weight_map = load_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConvertError(f"{path}: weight_map: expected files by tensor, got {weight_map!r}")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard.endswith(".safetensors") and "\\" not in shard
        if not plain or PurePosixPath(shard).is_absolute() or ".." in PurePosixPath(shard).parts:
            raise ConvertError(f"{path}: {name}: expected a file in this folder, got {shard!r}")
    return weight_map


def read_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint folder by name, whatever its shards are called.

    With an index its shards are read and must hold what it says; else every *.safetensors file.
    Raises ConvertError when a shard or tensor is missing, or two shards hold one name.
    """
    index_path = folder / INDEX_NAME
    index = _read_index(index_path) if index_path.is_file() else None
    if index is not None:
        shards = [folder / name for name in sorted(set(index.values()))]
    else:
        shards = sorted(p for p in folder.glob("*.safetensors") if p.is_file())
        if not shards:
            raise ConvertError(f"{folder}: expected *.safetensors files, found none")
    tensors: dict[str, StoredTensor] = {}
    for path in shards:
        if not path.is_file():
            raise ConvertError(f"{path}: named by {INDEX_NAME}, found none; download it again")
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                raise ConvertError(f"{path}: {name}: also in {tensors[name].path.name}")
            tensors[name] = tensor
    if index is not None and (absent := sorted(index.keys() - tensors.keys())):
        raise ConvertError(f"{index_path}: {absent[0]}: expected in {index[absent[0]]}, found none")
    return tensors
