"""Copies of GGUF files with something wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

Kind = gguf.GGUFValueType


class Value(NamedTuple):
    """item: type of the items of an array."""

    value: Any
    kind: Kind
    item: Kind | None = None


def rewrite_gguf(
    source: Path,
    out: Path,
    *,
    keys: dict[str, Value | None] | None = None,
    tensors: dict[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """keys, tensors: new values by name; None leaves one out. F32 tensors only."""
    keys, tensors = keys or {}, tensors or {}
    reader = gguf.GGUFReader(source)
    values: dict[str, Value | None] = {}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            item = field.types[-1] if field.types[0] == Kind.ARRAY else None
            values[key] = Value(field.contents(), field.types[0], item)
    values |= keys
    architecture = values.pop("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(out, architecture.value)
    for key, value in values.items():
        if value is not None:
            writer.add_key_value(key, value.value, value.kind, value.item)
    for tensor in reader.tensors:
        data = tensors.get(tensor.name, tensor.data)
        if data is not None:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
