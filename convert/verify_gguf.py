"""Reads a written file back with gguf-py and compares it with its sources, in several threads."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from convert_error import ConvertError
from dflash2.gguf_raw import ARRAY, STRING, Value
from gguf_emit import PlannedTensor
from numpy.typing import NDArray
from ordered_map import ordered_map
from tensor_source import n_rows, to_f32
from tensor_types import SAME_STORAGE, type_id

# ggml type -> (largest error / largest |value|, RMS error / RMS value) of a tensor.
# The plain types have their rounding; the others several times what normal weights give, so that no
# honest distribution fails, and still well below what swapped rows, nibbles or scales give (> 1).
ERROR_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "f32": (0.0, 0.0),
    "i64": (0.0, 0.0),
    "f16": (2**-11, 2**-11),
    "bf16": (2**-8, 2**-8),
    "q8_0": (0.01, 0.03),
    "q6_K": (0.06, 0.10),
    "q5_1": (0.08, 0.20),
    "q5_K": (0.10, 0.20),
    "q5_0": (0.10, 0.20),
    "q4_1": (0.15, 0.35),
    "q4_K": (0.20, 0.35),
    "q4_0": (0.20, 0.35),
    "iq4_xs": (0.25, 0.35),
    "iq4_nl": (0.25, 0.35),
    "q3_K": (0.40, 0.50),
    "q2_K": (0.70, 0.70),
}


@dataclass(frozen=True)
class TensorError:
    """How far a stored tensor is from its source."""

    max_error: float
    rms_error: float
    relative_rms: float  # RMS error / RMS value


class Reader(gguf.GGUFReader):
    """gguf-py's reader; arrays stay one block instead of some numpy objects per item."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[gguf.GGUFValueType]]:
        if raw_type != ARRAY:
            parts: tuple[int, list[NDArray[Any]], list[int], list[gguf.GGUFValueType]]
            parts = super()._get_field_parts(orig_offs, raw_type)
            return parts
        data = self.data.data
        item, count = struct.unpack_from("<IQ", data, orig_offs)
        start = end = orig_offs + 12
        if item == STRING:
            for _ in range(count):
                end += 8 + struct.unpack_from("<Q", data, end)[0]
        else:
            end += count * np.dtype(self.gguf_scalar_to_np[gguf.GGUFValueType(item)]).itemsize
        block = np.asarray(self.data[orig_offs:end])
        types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(item)]
        return end - orig_offs, [block], [0] if end > start else [], types


def _check_values(reader: Reader, values: Mapping[str, Value], path: Path) -> None:
    written = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    if list(written) != list(values):
        raise ConvertError(f"{path}: expected keys {list(values)}, read {list(written)}")
    for key, value in values.items():
        field = written[key]
        # name length, name, type, then the value
        data = b"".join(part.tobytes() for part in field.parts[3:])
        if int(field.types[0]) != value.kind or data != value.data:
            raise ConvertError(f"{path}: {key}: read another value than was written")


@dataclass(frozen=True)
class _Sums:
    """Of some rows: largest |value| and |error|, sums of squares, plain and weighted."""

    largest: float
    max_error: float
    error: float
    value: float
    weighted_error: float = 0.0
    weighted_value: float = 0.0

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(
            max(self.largest, other.largest),
            max(self.max_error, other.max_error),
            self.error + other.error,
            self.value + other.value,
            self.weighted_error + other.weighted_error,
            self.weighted_value + other.weighted_value,
        )


def _largest(values: NDArray[np.float32]) -> float:
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def _measure(task: tuple[Path, PlannedTensor, int, int, int]) -> _Sums:
    """Compares rows start..stop of a tensor whose data begins at offset with their source.

    Raises ConvertError when bytes that are copied as they are differ.
    """
    path, planned, offset, start, stop = task
    source, weight = planned.tensor.source, planned.importance
    row_bytes = planned.n_bytes // n_rows(source.shape)
    count = (stop - start) * row_bytes
    raw = np.fromfile(path, dtype=np.uint8, count=count, offset=offset + start * row_bytes)
    stored = source.read(start, stop)
    if (source.dtype, planned.type) in SAME_STORAGE:
        if not np.array_equal(raw, np.ascontiguousarray(stored).reshape(-1).view(np.uint8)):
            raise ConvertError(f"{path}: {planned.tensor.name}: read other bytes than were written")
        return _Sums(0.0, 0.0, 0.0, 0.0)
    values = to_f32(stored, source.dtype)
    # one row, because gguf-py is slow on many short ones; blocks are the same
    decoded = gguf.quants.dequantize(raw.reshape(1, -1), type_id(planned.type))
    error = decoded.reshape(values.shape) - values
    sums = _Sums(
        _largest(values),
        _largest(error),
        float(np.vdot(error, error)),
        float(np.vdot(values, values)),
    )
    if weight is None:
        return sums
    weighted = float(np.vdot(error * weight, error)), float(np.vdot(values * weight, values))
    return replace(sums, weighted_error=weighted[0], weighted_value=weighted[1])


def _relative(sum_error: float, sum_value: float) -> float:
    """RMS error / RMS value, from sums of squares."""
    return math.sqrt(sum_error / sum_value) if sum_value else float(sum_error > 0)


def _judge(planned: PlannedTensor, sums: _Sums, path: Path) -> TensorError:
    """With an importance matrix the bound is on errors weighted by it, as the quantizer saw them.

    Not-a-number fits no bound.
    """
    max_bound, rms_bound = ERROR_BOUNDS[planned.type]
    relative = _relative(sums.error, sums.value)
    if planned.importance is None:
        fits = sums.max_error <= max_bound * sums.largest and relative <= rms_bound
    else:
        fits = _relative(sums.weighted_error, sums.weighted_value) <= rms_bound
    if not fits:
        raise ConvertError(
            f"{path}: {planned.tensor.name}: expected {planned.type} within {rms_bound:.2g} of the "
            f"source (RMS), got {relative:.2g}, "
            f"largest error {sums.max_error:.3g} of {sums.largest:.3g}"
        )
    rms_error = math.sqrt(sums.error / max(1, math.prod(planned.tensor.shape)))
    return TensorError(sums.max_error, rms_error, relative)


def verify_gguf(
    path: Path,
    values: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    *,
    n_threads: int,
    on_bytes: Callable[[int], None],
) -> list[TensorError]:
    """Compares every key and every tensor of a written file with what it was made from.

    on_bytes: called with the number of tensor bytes just compared.
    Raises ConvertError that names the first difference.
    """
    try:
        reader = Reader(path)
    except (ValueError, KeyError, IndexError, struct.error) as e:
        raise ConvertError(f"{path}: gguf-py cannot read what was written: {e}") from e
    _check_values(reader, values, path)
    if [t.name for t in reader.tensors] != [t.tensor.name for t in tensors]:
        raise ConvertError(f"{path}: read other tensors than were written")
    for planned, stored in zip(tensors, reader.tensors, strict=True):
        shape = tuple(int(n) for n in reversed(stored.shape))
        if shape != planned.tensor.shape or stored.tensor_type != type_id(planned.type):
            raise ConvertError(
                f"{path}: {stored.name}: expected {planned.type} {list(planned.tensor.shape)}, "
                f"read {stored.tensor_type.name} {list(shape)}"
            )
    offsets = [int(stored.data_offset) for stored in reader.tensors]
    tasks = (
        (path, planned, offset, *rows)
        for planned, offset in zip(tensors, offsets, strict=True)
        for rows in planned.row_chunks()
    )
    measured = ordered_map(_measure, tasks, n_threads)
    errors = []
    for planned in tensors:
        n_chunks = sum(1 for _ in planned.row_chunks())
        errors.append(_judge(planned, reduce(add, islice(measured, n_chunks)), path))
        on_bytes(planned.n_bytes)
    return errors
