"""ggml tensor types: sizes, and encoding into them. Quantization itself is ggml's."""

from __future__ import annotations

from typing import Any, Final

import gguf
import numpy as np
from convert_error import ConvertError
from dflash2._native import core
from gguf import GGMLQuantizationType
from gguf_schema import Shape
from numpy.typing import NDArray
from tensor_source import to_f32

PLAIN: Final = ("f32", "f16", "bf16")
# safetensors dtype and ggml type with the same bytes
SAME_STORAGE: Final = {("F32", "f32"), ("F16", "f16"), ("BF16", "bf16"), ("I64", "i64")}


def type_id(type_name: str) -> GGMLQuantizationType:
    """ggml's type for a name such as "q4_K"."""
    return GGMLQuantizationType[type_name.upper()]


def block_size(type_name: str) -> int:
    """Values that are stored together; a row must be a multiple of it."""
    return int(gguf.GGML_QUANT_SIZES[type_id(type_name)][0])


def tensor_bytes(shape: Shape, type_name: str) -> int:
    """Bytes of a tensor, shape in torch order."""
    block, size = gguf.GGML_QUANT_SIZES[type_id(type_name)]
    n_values = int(np.prod(shape, dtype=np.int64))
    return n_values // block * size


def _check_finite(data: NDArray[Any], dtype: str, where: str) -> None:
    finite = (data & 0x7F80) != 0x7F80 if dtype == "BF16" else np.isfinite(data)
    if not finite.all():
        raise ConvertError(f"{where}: expected finite weights, got NaN or infinity")


def _to_f16(values: NDArray[np.float32], where: str) -> NDArray[np.uint8]:
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    if not np.isfinite(half).all():
        raise ConvertError(f"{where}: expected values within f16's 65504; use --outtype bf16")
    return half.view(np.uint8)


def encode(
    data: NDArray[Any],
    dtype: str,
    type_name: str,
    where: str,
    importance: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """Stored rows (rows, columns) of a safetensors dtype as bytes of a ggml type (rows, bytes).

    importance: mean square of each column's input, (columns,), for quantized types.
    Raises ConvertError on NaN or infinity, and on values that the type cannot hold.
    """
    _check_finite(data, dtype, where)
    if (dtype, type_name) in SAME_STORAGE:
        return np.ascontiguousarray(data).view(np.uint8)
    values = np.ascontiguousarray(to_f32(data, dtype))
    if type_name == "f16":
        return _to_f16(values, where)
    if type_name in PLAIN:
        plain: NDArray[np.uint8] = gguf.quants.quantize(values, type_id(type_name)).view(np.uint8)
        return plain
    try:
        return core.quantize(values, type_name, imatrix=importance)
    except ValueError as e:
        raise ConvertError(f"{where}: {e}") from e
