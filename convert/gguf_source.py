"""A tensor of a GGUF file as a source of float32 rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from convert_error import ConvertError
from dflash2 import gguf_raw
from dflash2.errors import ModelFormatError
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from tensor_source import n_rows


def read_header(path: Path) -> gguf_raw.Header:
    """Metadata and tensor table. Raises ConvertError when the file is not a well-formed GGUF."""
    try:
        return gguf_raw.read_header(path)
    except ModelFormatError as e:
        raise ConvertError(str(e)) from e


_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file, dequantized row by row (a TensorSource)."""

    path: Path
    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]  # torch order
    offset: int
    dtype: str = "F32"

    @property
    def where(self) -> str:
        return f"{self.path}: {self.name}"

    @property
    def row_bytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block * size

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop as float32. Raises ConvertError when the file ends before them."""
        size = self.row_bytes
        raw = np.fromfile(
            self.path, np.uint8, count=(stop - start) * size, offset=self.offset + start * size
        )
        if raw.size != (stop - start) * size:
            raise ConvertError(f"{self.where}: the file ends inside the tensor")
        values: NDArray[np.float32] = gguf.quants.dequantize(
            raw.reshape(stop - start, size), self.type
        )
        return values


def _shards(path: Path) -> list[Path]:
    """All parts of a split model, given one."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    stem, _, count = match.groups()
    return [path.with_name(f"{stem}-{i:05}-of-{count}.gguf") for i in range(1, int(count) + 1)]


def find_tensor(path: Path, name: str) -> GgufTensor | None:
    """A tensor of a (possibly split) model, None when it has none of that name.

    Raises ConvertError when a part is missing or the tensor has an impossible type, shape or place.
    """
    for part in _shards(path):
        if not part.is_file():
            raise ConvertError(f"{part}: expected a part of {path.name}, found none")
        stored = read_header(part).tensors.get(name)
        if stored is None:
            continue
        where = f"{part}: {name}"
        try:
            kind = GGMLQuantizationType(stored.type_id)
            block, _ = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as e:
            raise ConvertError(f"{where}: expected a known type, got {stored.type_id}") from e
        if len(stored.shape) != 2 or 0 in stored.shape or stored.shape[0] % block != 0:
            raise ConvertError(f"{where}: expected a matrix, got shape {list(stored.shape)}")
        tensor = GgufTensor(part, name, kind, stored.shape[::-1], stored.offset)
        end = stored.offset + n_rows(tensor.shape) * tensor.row_bytes
        if end > part.stat().st_size:
            raise ConvertError(f"{where}: expected {end} bytes in the file, it is truncated")
        return tensor
    return None
