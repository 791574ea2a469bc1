"""ggml's quantizers through `_core`: right bytes, and no abort on bad arguments."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from dflash2._native import core
from gguf.quants import dequantize

# RMS error relative to that of the data, as ggml's quantizers reach it on normal values
RELATIVE_ERROR = {
    "f32": 0.0,
    "f16": 3e-4,
    "bf16": 3e-3,
    "q8_0": 0.01,
    "q6_K": 0.025,
    "q5_K": 0.05,
    "q4_K": 0.1,
    "q4_0": 0.12,
    "iq4_nl": 0.11,
}

DATA = np.random.default_rng(0).standard_normal((7, 512)).astype(np.float32)


@pytest.mark.parametrize("kind", RELATIVE_ERROR)
def test_quantized_rows_read_back_within_the_types_error(kind: str) -> None:
    bytes_ = core.quantize(DATA, kind)
    values = dequantize(bytes_, gguf.GGMLQuantizationType[kind.upper()])
    assert values.shape == DATA.shape
    error = np.sqrt(np.mean((values - DATA) ** 2) / np.mean(DATA**2))
    limit = RELATIVE_ERROR[kind]
    assert limit / 4 <= error <= limit


def test_threads_do_not_change_the_bytes() -> None:
    data = np.random.default_rng(1).standard_normal((1000, 256)).astype(np.float32)
    one = core.quantize(data, "q4_K", 1)
    assert (core.quantize(data, "q4_K", 3) == one).all()


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (DATA, "q9_9", "tensor type 'q9_9'"),
        (DATA, "q8_1", "tensor type 'q8_1'"),
        (DATA[:, :100], "q4_K", "columns: expected a multiple of 256"),
        (DATA[:, :0], "q8_0", "columns"),
        (DATA[0], "q8_0", "2 dimensions"),
        (DATA, "iq2_xxs", "importance matrix"),
        (np.full((2, 256), np.nan, np.float32), "iq3_s", "row 0"),
        (np.full((2, 256), 1e30, np.float32), "iq3_s", "row 0"),
        (np.full((2, 256), 1e5, np.float32), "f16", "row 0"),
    ],
)
def test_bad_arguments_are_named(data: Any, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        core.quantize(np.ascontiguousarray(data), kind)


SIZES = {"n_embd": 512, "n_ff": 512, "n_layer": 8, "n_head": 8, "n_head_kv": 2, "head_dim": 64}


def test_types_are_those_of_llama_quantize_in_any_order() -> None:
    names = [f"blk.{i}.ffn_down.weight" for i in range(8)]
    tensors = [(name, [512, 512]) for name in names] + [("output_norm.weight", [512])]
    types = core.quantize_types("Q4_K_M", tensors, **SIZES)
    more_bits = [0, 3, 6, 7]  # the first and last eighth, and every third layer between
    expected = ["q6_K" if i in more_bits else "q4_K" for i in range(8)]
    assert types == [*expected, None]
    assert core.quantize_types("q4_k_m", tensors[::-1], **SIZES) == types[::-1]


@pytest.mark.parametrize(
    ("ftype", "tensors", "sizes", "message"),
    [
        ("Q9", [], {}, "file type 'Q9'"),
        ("Q8_0", [], {"n_layer": 513}, "n_layer: expected 1 to 512, got 513"),
        ("Q8_0", [], {"n_head_kv": 0}, "n_head_kv"),
        ("Q8_0", [("a" * 64, [1])], {}, "name of 1 to 63 bytes"),
        ("Q8_0", [("a", [])], {}, "1 to 4 dimensions"),
        ("Q8_0", [("a", [1, 1, 1, 1, 1])], {}, "1 to 4 dimensions"),
        ("Q8_0", [("a", [0, 4])], {}, "dimensions of 1 or more"),
        ("Q8_0", [("a", [2**40, 2**40])], {}, "2\\^48"),
    ],
)
def test_impossible_tensor_lists_are_named(
    ftype: str, tensors: Any, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        core.quantize_types(ftype, tensors, **{**SIZES, **sizes})
