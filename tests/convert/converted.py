"""Conversion of tiny drafters, and what is in the files that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny_drafter
from drafter_convert import ConversionResult, convert
from numpy.typing import NDArray

Fields = dict[str, Any]
Tensors = dict[str, NDArray[Any]]

ROW = np.arange(256, dtype=np.float32) / 8  # of an embedding


def read(path: Path) -> tuple[Fields, Tensors]:
    """Keys (without the general ones and the tokenizer) and tensors of a file."""
    reader = gguf.GGUFReader(path)
    fields = {
        k: f.contents() for k, f in reader.fields.items() if k.startswith(("dflash.", "dflash2."))
    }
    return fields, {t.name: np.array(t.data) for t in reader.tensors}


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def run(
    tmp_path: Path, cfg: Mapping[str, Any], tensors: Tensors, target: Path, name: str = "x"
) -> ConversionResult:
    drafter = tiny_drafter.write_drafter(tmp_path / name, cfg, tensors)
    return convert(drafter, target, outtype="f32", outfile=tmp_path / f"{name}.gguf")
