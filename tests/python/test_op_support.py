"""Every backend runs every op that the draft graph emits, by llama.cpp's published tables.

An op that is missing on Metal would run on the CPU, with copies in every round, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dflash2
import make_shapes
import op_support
import pytest
from dflash2._native import core
from dflash2_to_gguf import convert
from make_tiny_models import make_tiny_pair
from reference_cases import CASES
from type_choice import FILE_TYPES, TENSOR_TYPES

FEATURES: dict[str, dict[str, Any]] = {
    **{case.name: case.checkpoint for case in CASES},
    "vocabulary that is searched in unequal groups": {"vocab": 1301},
}
HEAD_SIZES = (64, 128)  # of published drafters


def emitted(target: Path, draft: Path) -> set[str]:
    """Keys of the graphs that inject, draft one token and draft a block, for 1 and 2 sequences."""
    tgt = core.Target(str(target), n_ctx=64, n_seq=2, n_threads=1)
    model = core.DraftModel(str(draft))
    keys = set()
    for groups in (False, True):
        drafter = core.GraphDrafter(model, tgt, n_threads=1, top_k_by_groups=groups)
        for shape in [(1, 0), (1, 1), (1, drafter.max_draft()), (2, drafter.max_draft())]:
            keys |= {op_support.node_key(node) for node in drafter.ops(*shape)}
    return keys


@pytest.fixture(scope="module")
def shaped_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "target.gguf"
    return make_shapes.make_target(path, "q4_k", make_shapes.TINY)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_of_a_checkpoint(feature: str, tmp_path: Path) -> None:
    keys = emitted(*make_tiny_pair(tmp_path, **FEATURES[feature] | {"head_dim": 64}))
    assert {"TOP_K f32", "GET_ROWS f32", "FLASH_ATTN_EXT f16 head 64"} <= keys
    assert list(op_support.missing(keys)) == []


def test_reduced_head(tmp_path: Path) -> None:
    target, _ = make_tiny_pair(tmp_path)
    draft = tmp_path / "reduced.gguf"
    counts = tmp_path / "counts.txt"
    counts.write_text("".join(f"{600 - i}\n" for i in range(512)))
    convert(
        tmp_path / "draft", target, outfile=draft, outtype="f32", head_rows=128, head_counts=counts
    )
    keys = emitted(target, draft)
    assert "GET_ROWS i32" in keys
    assert list(op_support.missing(keys)) == []


@pytest.mark.parametrize("outtype", FILE_TYPES)
def test_every_file_type(
    outtype: str, shaped_target: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    draft = make_shapes.make_drafter(tmp_path / "draft.gguf", shaped_target, outtype)
    device = pytestconfig.getoption("--device") or ""
    if device.startswith("CUDA") and outtype.startswith("iq4"):  # the selector's rows have 32
        with pytest.raises(dflash2.IncompatibleModelsError, match="cannot run GET_ROWS on iq4_nl"):
            emitted(shaped_target, draft)
        return
    assert list(op_support.missing(emitted(shaped_target, draft))) == []


def test_every_tensor_type_and_head_size() -> None:
    """Of targets, whose embedding and head the graph shares, and of overrides."""
    keys = {f"MUL_MAT {name} f32" for name in TENSOR_TYPES}
    keys |= {f"GET_ROWS {name}" for name in TENSOR_TYPES}
    keys |= {f"FLASH_ATTN_EXT f16 head {size}" for size in HEAD_SIZES}
    assert list(op_support.missing(keys)) == []


@pytest.mark.parametrize(
    "key", ["FLASH_ATTN_EXT f16 head 33", "SWIGLU f16", "MUL f32 permuted", "SOME_NEW_OP f32"]
)
def test_an_op_that_no_table_grants_is_noticed(key: str) -> None:
    assert any(line.startswith(f"Metal: {key}: ") for line in op_support.missing([key]))


def test_table_is_what_llama_cpp_publishes(pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.getoption("--llama-cpp")
    if folder is None:
        pytest.skip("needs --llama-cpp DIR, a checkout of llama.cpp of the pinned release")
    known = op_support.load()
    assert op_support.table(Path(folder), known["support"]) == known["support"]
    granted = [line.rpartition(": ")[0] for line in answered(known, "yes")]
    assert not set(granted) & set(known["newer"]), "the tables know these by now"


def answered(known: dict[str, Any], answer: str) -> Iterator[str]:
    for key, backends in known["support"].items():
        for backend, its in backends.items():
            if its == answer:
                yield f"{backend}: {key}: {its}"
