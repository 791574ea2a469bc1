"""safetensors: exact reading, and no way for a header to lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_drafter
from convert_error import ConvertError
from hf_weights import read_checkpoint, read_safetensors
from tensor_source import to_f32


def pack(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin: int, end: int, shape: list[Any], dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_rows_of_every_float_type_exactly(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(3, 4, 5)).astype(np.float32)
    stored = {"a": values, "b": values.astype(np.float16), "c": tiny_drafter.to_bf16(values)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(tiny_drafter.safetensors_bytes(stored))
    tensors = read_safetensors(path)
    assert tensors["a"].shape == (3, 4, 5)
    rows = slice(2, 9)
    np.testing.assert_array_equal(
        to_f32(tensors["a"].read(2, 9), "F32"), values.reshape(12, 5)[rows]
    )
    np.testing.assert_array_equal(
        to_f32(tensors["b"].read(2, 9), "F16"), stored["b"].astype(np.float32).reshape(12, 5)[rows]
    )
    np.testing.assert_array_equal(
        to_f32(tensors["c"].read(2, 9), "BF16"),
        tiny_drafter.from_bf16(stored["c"]).reshape(12, 5)[rows],
    )


MALFORMED = {
    "empty": (b"", "expected a safetensors file"),
    "seven bytes": (b"\0" * 7, "expected a safetensors file"),
    "header longer than the file": (struct.pack("<Q", 100) + b"{}", "header inside the 10 bytes"),
    "huge header": (struct.pack("<Q", 2**63) + b"{}", "header inside"),
    "not UTF-8": (pack(b"\xff\xfe"), "expected a JSON header"),
    "not JSON": (pack(b"{'a': 1}"), "expected a JSON header"),
    "nested too deep": (pack(b"[" * 100_000), "expected a JSON header"),
    "array": (pack(b"[]"), "expected a JSON object"),
    "duplicate names": (pack(b'{"a": 1, "a": 2}'), "duplicate names"),
    "entry is a number": (pack({"a": 1}), "a: expected dtype"),
    "entry without offsets": (pack({"a": {"dtype": "F32", "shape": [1]}}), "a: expected dtype"),
    "unknown dtype": (pack({"a": entry(0, 4, [1], "F8_E4M3")}, b"\0" * 4), "a: expected a dtype"),
    "dtype is a list": (pack({"a": entry(0, 4, [1], ["F32"])}, b"\0" * 4), "a: expected a dtype"),
    "negative shape": (pack({"a": entry(0, 4, [-1, -1])}, b"\0" * 4), "a: expected a shape"),
    "fractional shape": (pack({"a": entry(0, 4, [1.5])}, b"\0" * 4), "a: expected a shape"),
    "boolean shape": (pack({"a": entry(0, 4, [True])}, b"\0" * 4), "a: expected a shape"),
    "ten dimensions": (pack({"a": entry(0, 4, [1] * 10)}, b"\0" * 4), "a: expected a shape"),
    "overflowing shape": (pack({"a": entry(0, 4, [2**62, 2**62])}, b"\0" * 4), "a: expected"),
    "size differs": (pack({"a": entry(0, 8, [1])}, b"\0" * 8), "a: expected 4 bytes"),
    "offsets reversed": (pack({"a": entry(4, 0, [1])}, b"\0" * 4), "a: expected 4 bytes"),
    "three offsets": (
        pack({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"\0" * 4),
        "a: expected two data_offsets",
    ),
    "overlap": (
        pack({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, b"\0" * 12),
        "overlap or leave a hole",
    ),
    "hole": (
        pack({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, b"\0" * 12),
        "overlap or leave a hole",
    ),
    "truncated data": (pack({"a": entry(0, 8, [2])}, b"\0" * 4), "download it again"),
    "trailing data": (pack({"a": entry(0, 4, [1])}, b"\0" * 8), "expected .* bytes, got"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused(case: str, tmp_path: Path) -> None:
    data, message = MALFORMED[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ConvertError, match=message):
        read_safetensors(path)


def test_file_that_shrinks_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(tiny_drafter.safetensors_bytes({"a": np.ones((8, 8), np.float32)}))
    tensor = read_safetensors(path)["a"]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConvertError, match="a: the file ends inside the tensor"):
        tensor.read(0, 8)


def test_a_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        data = tiny_drafter.safetensors_bytes({"fc.weight": np.ones(2, np.float32)})
        (tmp_path / f"{name}.safetensors").write_bytes(data)
    with pytest.raises(ConvertError, match=r"b.safetensors: fc.weight: also in a.safetensors"):
        read_checkpoint(tmp_path)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"expected .*safetensors files, found none"):
        read_checkpoint(tmp_path)
