"""Importance matrices in llama.cpp's GGUF format: how much each column of a tensor matters.

For a tensor NAME of the model the file holds `NAME.in_sum2`, the sum of squares of each column's
input, and `NAME.counts`, over how many tokens. Untrusted input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from convert_error import ConvertError
from dflash2.gguf_raw import Header, Tensor, Value, string, u32
from gguf import GGMLQuantizationType
from gguf_source import read_header
from numpy.typing import NDArray
from tensor_map import MappedTensor

SUMS: Final = ".in_sum2"
COUNTS: Final = ".counts"
KEY_DATASETS: Final = "imatrix.datasets"
KEY_CHUNK_COUNT: Final = "imatrix.chunk_count"
KEY_CHUNK_SIZE: Final = "imatrix.chunk_size"
MAX_MEAN_SQUARE: Final = 1e20
MAX_DATASET_BYTES: Final = 127  # that llama-quantize keeps
TOKEN_EMBD: Final = "token_embd.weight"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Imatrix:
    """means: mean square of each column's input by tensor name, (columns,) each."""

    path: Path
    means: Mapping[str, Floats]
    datasets: tuple[str, ...]
    n_chunks: int

    def values(self) -> dict[str, Value]:
        """The keys that llama-quantize adds to a file that it quantizes with this matrix."""
        values = {"quantize.imatrix.file": string(self.path.name)}
        if self.datasets:
            text = self.datasets[0].encode()[:MAX_DATASET_BYTES].decode("utf-8", "ignore")
            values["quantize.imatrix.dataset"] = string(text)
        values["quantize.imatrix.entries_count"] = u32(len(self.means))
        if self.n_chunks:
            values["quantize.imatrix.chunks_count"] = u32(self.n_chunks)
        return values

    def importances(self, tensors: Sequence[MappedTensor]) -> list[Floats | None]:
        """One array or None per tensor.

        Raises ConvertError when it fits none of them, or one has another number of columns.
        """
        found = [self._importance(tensor) for tensor in tensors]
        if all(importance is None for importance in found):
            raise ConvertError(
                f"{self.path}: expected data for tensors of this drafter, got "
                f"{', '.join(sorted(self.means)[:3])}; it was measured on another model"
            )
        return found

    def _importance(self, tensor: MappedTensor) -> Floats | None:
        means = self.means.get(tensor.name)
        if means is None or len(tensor.shape) != 2:
            return None
        if means.size != tensor.shape[-1]:
            if tensor.name == TOKEN_EMBD:  # llama-quantize ignores it there
                return None
            raise ConvertError(
                f"{self.path}: {tensor.name}: expected {tensor.shape[-1]} values, "
                f"got {means.size}; it was measured on another model"
            )
        return means


def _count(header: Header, path: Path, key: str) -> int:
    value = header.values[key].integer() if key in header.values else None
    if value is None or not 0 <= value < 2**31:
        raise ConvertError(
            f"{path}: {key}: expected a count, got {value}; "
            "make the file with llama-imatrix --output-format gguf"
        )
    return value


def _read(path: Path, tensor: Tensor) -> Floats:
    """A tensor of the file, flat."""
    where = f"{path}: {tensor.name}"
    if tensor.type_id != GGMLQuantizationType.F32:
        raise ConvertError(f"{where}: expected f32, got type {tensor.type_id}")
    if not 1 <= len(tensor.shape) <= 2 or (len(tensor.shape) == 2 and tensor.shape[1] != 1):
        raise ConvertError(
            f"{where}: expected one row, got shape {list(tensor.shape)}; drafters have no experts"
        )
    n_bytes = tensor.shape[0] * 4
    if not n_bytes or tensor.offset + n_bytes > path.stat().st_size:
        raise ConvertError(f"{where}: expected {n_bytes} bytes in the file, it is truncated")
    return np.fromfile(path, "<f4", tensor.shape[0], offset=tensor.offset)


def _means(path: Path, name: str, sums: Floats, counts: Floats) -> Floats:
    where = f"{path}: {name}"
    if counts.size != 1 or not 0 <= counts[0] < 2**53:  # NaN too
        raise ConvertError(f"{where}{COUNTS}: expected one count, got {counts[:3].tolist()}")
    count = np.floor(counts[0] + np.float32(0.5))  # as llama.cpp rounds it
    if count == 0:  # of no token: every column matters alike
        return np.ones_like(sums)
    with np.errstate(invalid="ignore"):
        means: Floats = sums / count
    if not ((means >= 0) & (means <= MAX_MEAN_SQUARE)).all() or not means.any():
        raise ConvertError(
            f"{where}{SUMS}: expected sums of squares, got negative or infinite ones"
        )
    return means


def read_imatrix(path: Path) -> Imatrix:
    """Raises ConvertError when the file is something else or damaged."""
    if not path.is_file():
        raise ConvertError(f"{path}: expected an importance matrix, found none")
    header = read_header(path)
    names = {n.removesuffix(SUMS) for n in header.tensors if n.endswith(SUMS)}
    names |= {n.removesuffix(COUNTS) for n in header.tensors if n.endswith(COUNTS)}
    if not names:
        raise ConvertError(f"{path}: expected an importance matrix, got no tensor named *{SUMS}")
    means = {}
    for name in sorted(names):
        sums, counts = header.tensors.get(name + SUMS), header.tensors.get(name + COUNTS)
        if sums is None or counts is None:
            raise ConvertError(f"{path}: {name}: expected both {SUMS} and {COUNTS}, got one")
        means[name] = _means(path, name, _read(path, sums), _read(path, counts))
    _count(header, path, KEY_CHUNK_SIZE)
    datasets = header.values[KEY_DATASETS].strings() if KEY_DATASETS in header.values else ()
    return Imatrix(
        path=path,
        means=means,
        datasets=tuple(name.decode("utf-8", "replace") for name in datasets),
        n_chunks=_count(header, path, KEY_CHUNK_COUNT),
    )
