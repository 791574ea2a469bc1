"""Embedding and head: the target's, patched, reduced, or the drafter's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_drafter
from convert_error import ConvertError
from converted import ROW, Tensors, read, run
from drafter_convert import convert
from tiny_drafter import torch_file


@pytest.fixture(scope="module")
def full_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an embedding and an untied head, quantized."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("full") / "full.gguf"
    tiny_drafter.write_target(
        path,
        tensors={
            "token_embd.weight": (rng.normal(size=(96, 256)), gguf.GGMLQuantizationType.F16),
            "output.weight": (rng.normal(size=(96, 256)), gguf.GGMLQuantizationType.Q8_0),
        },
    )
    return path


def matrices(path: Path) -> Tensors:
    return {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors
    }


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ({"mask_token_id": 95, "embedding": ROW}, "Float"),
        ({"mask_embedding": ROW}, "Float"),
        (ROW, "Float"),
        (ROW[None], "Float"),
        (ROW.astype(np.float16), "Half"),
        (tiny_drafter.to_bf16(ROW), "BFloat16"),
    ],
)
def test_mask_embedding_replaces_the_targets_row(
    value: Any, dtype: str, drafter: Path, full_target: Path, tmp_path: Path
) -> None:
    folder = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG)
    (folder / "mask_embedding.pt").write_bytes(torch_file(value, dtype))
    result = convert(folder, full_target, outtype="f32", outfile=tmp_path / "x.gguf")
    _, found = read(result.outfile)
    theirs = matrices(full_target)
    np.testing.assert_array_equal(found["token_embd.weight"][95], ROW)
    np.testing.assert_array_equal(found["token_embd.weight"][:95], theirs["token_embd.weight"][:95])
    np.testing.assert_array_equal(found["output.weight"], theirs["output.weight"])


def test_mask_embedding_patches_the_drafters_own_embedding_first(
    full_target: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(6)
    own = {
        "embed_tokens.weight": rng.normal(size=(96, 256)).astype(np.float32),
        "lm_head.weight": rng.normal(size=(96, 256)).astype(np.float32),
    }
    tensors = {**tiny_drafter.weights(tiny_drafter.CONFIG), **own}
    folder = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    (folder / "mask_embedding.pt").write_bytes(torch_file(ROW))
    _, found = read(convert(folder, full_target, outtype="f32", outfile=tmp_path / "x").outfile)
    np.testing.assert_array_equal(found["token_embd.weight"][95], ROW)
    np.testing.assert_array_equal(found["token_embd.weight"][:95], own["embed_tokens.weight"][:95])
    np.testing.assert_array_equal(found["output.weight"], own["lm_head.weight"])


HOSTILE_PT = {
    "code": (
        torch_file(None, evil=b"cos\nsystem\n(X\x04\0\0\0exitR"),
        "expected only tensors, got os.system; not loaded",
    ),
    "getattr": (torch_file(None, evil=b"cbuiltins\ngetattr\n"), "got builtins.getattr"),
    "numpy": (torch_file(None, evil=b"cnumpy\nload\n"), "got numpy.load"),
    "zip bomb": (torch_file(np.zeros(1 << 20, np.float32), compress=8), "uncompressed bytes"),
    "not a zip": (b"\x80\x02.", "expected a torch file, BadZipFile"),
    "empty": (b"", "expected a torch file"),
    "truncated pickle": (torch_file(None, evil=b"}(("), "expected a torch file"),
    "recursive": (torch_file(None, evil=b"]q\0h\0a"), "expected an embedding of 256 values"),
    "other mask": (
        torch_file({"mask_token_id": 7, "embedding": ROW}),
        "mask_token_id: expected 95, got 7",
    ),
    "other size": (torch_file(ROW[:100]), r"expected an embedding of 256 values, got \[100\]"),
    "a number": (torch_file(5), "expected an embedding of 256 values, got int"),
    "storage of doubles": (torch_file(ROW, "Double"), "got torch.DoubleStorage"),
    "short storage": (torch_file(ROW, "Float").replace(b"K\0M\0\1", b"K\1M\0\1"), "Bad CRC|short"),
}


@pytest.mark.parametrize("case", HOSTILE_PT)
def test_hostile_mask_embedding_is_refused_and_never_run(
    case: str, full_target: Path, tmp_path: Path
) -> None:
    data, message = HOSTILE_PT[case]
    folder = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG)
    (folder / "mask_embedding.pt").write_bytes(data)
    with pytest.raises(ConvertError, match=message) as raised:
        convert(folder, full_target, outtype="f32", outfile=tmp_path / "x.gguf")
    assert "mask_embedding.pt" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_mask_embedding_needs_the_targets_weights(target: Path, tmp_path: Path) -> None:
    folder = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG)
    (folder / "mask_embedding.pt").write_bytes(torch_file(ROW))
    with pytest.raises(ConvertError, match=r"expected token_embd.weight, to be patched"):
        convert(folder, target, outtype="f32", outfile=tmp_path / "x.gguf")


@pytest.mark.parametrize("tied", [True, False])
def test_own_embedding_without_a_head_gets_the_right_head(
    tied: bool, full_target: Path, tmp_path: Path
) -> None:
    own = np.random.default_rng(7).normal(size=(96, 256)).astype(np.float32)
    cfg = tiny_drafter.config(tie_word_embeddings=tied)
    tensors = {**tiny_drafter.weights(cfg), "embed_tokens.weight": own}
    _, found = read(run(tmp_path, cfg, tensors, full_target).outfile)
    np.testing.assert_array_equal(found["token_embd.weight"], own)
    theirs = matrices(full_target)["output.weight"]
    np.testing.assert_array_equal(found["output.weight"], own if tied else theirs)


def test_reduced_head_keeps_the_most_frequent_rows_of_the_targets_head(
    drafter: Path, full_target: Path, tmp_path: Path
) -> None:
    counts = np.zeros(96, np.int64)
    counts[[5, 90, 40]] = [3, 9, 4]
    text, array = tmp_path / "counts.txt", tmp_path / "counts.npy"
    text.write_text("\n".join(map(str, counts)))
    np.save(array, counts)
    for i, path in enumerate((text, array)):
        result = convert(
            drafter, full_target, outtype="f32", outfile=tmp_path / f"{i}.gguf",
            head_rows=10, head_counts=path,
        )  # fmt: skip
        _, found = read(result.outfile)
        ids = [0, 1, 2, 3, 4, 5, 6, 7, 40, 90]
        np.testing.assert_array_equal(found["d2t"], ids)
        np.testing.assert_array_equal(
            found["output.weight"], matrices(full_target)["output.weight"][ids]
        )
        assert "token_embd.weight" not in found


@pytest.mark.parametrize(
    ("rows", "counts", "message"),
    [
        (10, None, "head_rows: expected head_counts with it"),
        (7, "1 " * 96, "head_rows: expected 8 to 95 rows, got 7"),
        (96, "1 " * 96, "head_rows: expected 8 to 95 rows, got 96"),
        (10, "1 " * 95, "expected 96 integers, got int64"),
        (10, "a b", "expected 96 integers"),
        (10, "99999999999999999999 " * 96, "expected 96 integers"),
    ],
)
def test_impossible_reduced_head_is_refused(
    rows: int, counts: str | None, message: str, drafter: Path, full_target: Path, tmp_path: Path
) -> None:
    path = tmp_path / "counts.txt"
    path.write_text(counts or "")
    with pytest.raises(ConvertError, match=message):
        convert(
            drafter, full_target, outtype="f32", outfile=tmp_path / "x.gguf",
            head_rows=rows, head_counts=path if counts else None,
        )  # fmt: skip
