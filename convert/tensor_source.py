"""Where the values of a tensor come from: rows of a file, or rows derived from another source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gguf
import numpy as np
from convert_error import ConvertError
from gguf import GGMLQuantizationType
from numpy.typing import NDArray


class TensorSource(Protocol):
    """A tensor seen as a matrix: rows x its last dimension.

    where: how errors name it. dtype: a safetensors dtype name. shape: torch order.
    """

    @property
    def where(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop as stored: (stop - start, columns), BF16 as its uint16 bits."""
        ...


def n_cols(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1


def n_rows(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape[:-1]:
        count *= size
    return count


def to_f32(data: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Stored values of a float dtype as float32."""
    if dtype == "BF16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32, copy=False)


def from_f32(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """float32 values as a float dtype stores them."""
    if dtype == "BF16":
        rounded: NDArray[np.uint8] = gguf.quants.quantize(values, GGMLQuantizationType.BF16)
        return rounded.view(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(np.float16 if dtype == "F16" else np.float32)


@dataclass(frozen=True)
class Derived:
    """Rows computed from rows of another source when they are read."""

    where: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], NDArray[Any]]


def _gather(base: TensorSource, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Some rows of a source, in their order, read as one span when they are close together."""
    first, last = int(rows.min()), int(rows.max())
    if last - first < 4 * rows.size:
        return base.read(first, last + 1)[rows - first]
    return np.concatenate([base.read(int(row), int(row) + 1) for row in rows])


def select_rows(base: TensorSource, rows: Sequence[int]) -> Derived:
    """The given rows of a matrix, in that order."""
    index = np.asarray(rows, np.int64)
    shape = (len(rows), *base.shape[1:])
    return Derived(base.where, base.dtype, shape, lambda a, b: _gather(base, index[a:b]))


def permute_rope(base: TensorSource, head_dim: int) -> Derived:
    """Interleaved rotary pairs (0,1)(2,3).. as halves (0,d/2)(1,d/2+1).., in every head."""
    head = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])
    if len(base.shape) == 1:  # a norm over one head
        return Derived(base.where, base.dtype, base.shape, lambda a, b: base.read(a, b)[:, head])
    heads = np.arange(0, base.shape[0], head_dim)
    return select_rows(base, (heads[:, None] + head).ravel().tolist())


def pad_rows(base: TensorSource, count: int) -> Derived:
    """A matrix with rows of zeros below it, `count` rows in all."""
    stored = base.shape[0]

    def read(start: int, stop: int) -> NDArray[Any]:
        data = base.read(min(start, stored), min(stop, stored))
        return np.pad(data, ((0, stop - start - len(data)), (0, 0)))

    return Derived(base.where, base.dtype, (count, *base.shape[1:]), read)


def replace_row(base: TensorSource, row: int, values: NDArray[np.float32]) -> Derived:
    """A matrix with one row replaced, rounded to the dtype of the others."""
    stored = from_f32(values, base.dtype)

    def read(start: int, stop: int) -> NDArray[Any]:
        data = base.read(start, stop)
        if start <= row < stop:
            data = data.copy()
            data[row - start] = stored
        return data

    return Derived(base.where, base.dtype, base.shape, read)


def token_ids(ids: NDArray[np.int64], n_vocab: int, where: str) -> Derived:
    """A d2t table: the target's token id of each row of a reduced head.

    Raises ConvertError when ids are outside the vocabulary or repeat.
    """
    if ids.size == 0 or ids.min() < 0 or ids.max() >= n_vocab:
        raise ConvertError(f"{where}: expected token ids below {n_vocab}, got others")
    if np.unique(ids).size != ids.size:
        raise ConvertError(f"{where}: expected distinct token ids, got repeated ones")
    return Derived(where, "I64", ids.shape, lambda a, b: ids.reshape(1, -1)[a:b])
