"""File types, the type of each tensor, and encoding into it. Quantization itself is ggml's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gguf
import numpy as np
from convert_error import ConvertError
from gguf import GGMLQuantizationType, LlamaFileType
from gguf_schema import Shape
from hf_config import DrafterConfig
from numpy.typing import NDArray
from tensor_map import MappedTensor
from tensor_source import to_f32

FILE_TYPES: Final[Mapping[str, LlamaFileType]] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
}
PLAIN: Final = ("f32", "f16", "bf16")
_SAME_STORAGE: Final = {("F32", "f32"), ("F16", "f16"), ("BF16", "bf16"), ("I64", "i64")}


def ggml_core() -> Any:
    """The compiled module. Raises ConvertError that says how to get it."""
    try:
        from dflash2._native import core
    except ImportError as e:
        raise ConvertError(
            f"quantized types need the dflash2 package ({e}); install it with `pip install .`, "
            "or use --outtype f32, f16 or bf16"
        ) from e
    return core


def type_id(type_name: str) -> GGMLQuantizationType:
    """ggml's type for a name such as "q4_K"."""
    return GGMLQuantizationType[type_name.upper()]


def tensor_bytes(shape: Shape, type_name: str) -> int:
    """Bytes of a tensor, shape in torch order."""
    block, size = gguf.GGML_QUANT_SIZES[type_id(type_name)]
    n_values = int(np.prod(shape, dtype=np.int64))
    return n_values // block * size


def stays_f32(name: str, shape: Shape) -> bool:
    """Upstream's rule: vectors, norms and names without `.weight` are never converted."""
    return len(shape) < 2 or name.endswith("_norm.weight") or not name.endswith(".weight")


def _with_integers(tensors: Sequence[MappedTensor], types: list[str]) -> list[str]:
    pairs = zip(tensors, types, strict=True)
    return ["i64" if t.source.dtype == "I64" else name for t, name in pairs]


def choose_types(tensors: Sequence[MappedTensor], outtype: str, config: DrafterConfig) -> list[str]:
    """ggml type name of each tensor, as convert_hf_to_gguf and llama-quantize would choose."""
    if outtype in PLAIN:
        types = ["f32" if stays_f32(t.name, t.shape) else outtype for t in tensors]
        return _with_integers(tensors, types)
    chosen: list[str | None] = ggml_core().quantize_types(
        outtype.upper(),
        [(t.name, t.shape[::-1]) for t in tensors],
        n_embd=config.n_embd,
        n_ff=config.n_ff,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_head_kv=config.n_head_kv,
        head_dim=config.head_dim,
    )
    return _with_integers(tensors, [name or "f32" for name in chosen])


def check_finite(data: NDArray[Any], dtype: str, where: str) -> None:
    """Raises ConvertError when stored values hold NaN or infinity."""
    finite = (data & 0x7F80) != 0x7F80 if dtype == "BF16" else np.isfinite(data)
    if not finite.all():
        raise ConvertError(f"{where}: expected finite weights, got NaN or infinity")


def encode(
    data: NDArray[Any], dtype: str, type_name: str, where: str, n_threads: int
) -> NDArray[np.uint8]:
    """Stored rows (rows, columns) of a safetensors dtype as bytes of a ggml type (rows, bytes).

    Raises ConvertError on NaN or infinity, and on values outside the range of f16.
    """
    check_finite(data, dtype, where)
    if (dtype, type_name) in _SAME_STORAGE:
        return np.ascontiguousarray(data).view(np.uint8)
    values = to_f32(data, dtype)
    if type_name == "f16":
        with np.errstate(over="ignore"):
            half = values.astype("<f2")
        if not np.isfinite(half).all():
            raise ConvertError(f"{where}: expected values within f16's 65504; use --outtype bf16")
        return half.view(np.uint8)
    if type_name in PLAIN:
        encoded: NDArray[np.uint8] = gguf.quants.quantize(values, type_id(type_name)).view(np.uint8)
        return encoded
    quantized: NDArray[np.uint8] = ggml_core().quantize(
        np.ascontiguousarray(values), type_name, n_threads
    )
    return quantized
