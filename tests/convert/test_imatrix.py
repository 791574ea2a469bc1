"""Importance matrices: the bytes of llama-quantize, and hostile files refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
import tiny_drafter
from convert_error import ConvertError
from drafter_convert import convert
from imatrix import read_imatrix
from test_upstream import assert_same_tensors, quiet_llama, wide, wide_f32  # noqa: F401
from type_choice import FILE_TYPES
from verify_gguf import Reader

FC = "fc.weight"
Entries = dict[str, tuple[Any, Any]]  # name -> (in_sum2, counts)


def write_imatrix(path: Path, entries: Entries, drop: Iterable[str] = ()) -> Path:
    """A file as llama-imatrix writes it; returns its path."""
    writer = gguf.GGUFWriter(path, "imatrix")
    keys = {"imatrix.chunk_count": 3, "imatrix.chunk_size": 512}
    for key, value in keys.items():
        if key not in drop:
            writer.add_uint32(key, value)
    writer.add_array("imatrix.datasets", ["wiki.train.raw"])
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", np.asarray(sums, np.float32))
        writer.add_tensor(f"{name}.counts", np.asarray(counts, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def entries_for(path: Path) -> Entries:
    """Random data for every matrix of a drafter file, as skewed as activations are."""
    rng = np.random.default_rng(8)
    return {
        t.name: (1536 * np.exp(rng.normal(size=(1, int(t.shape[0])))), [[1536.0]])
        for t in Reader(path).tensors
        if len(t.shape) == 2 and t.name.endswith(".weight")
    }


def quantize(source: Path, out: Path, outtype: str, means: dict[str, Any]) -> dict[str, Any]:
    """What llama_model_quantize makes of a file with an importance matrix."""
    arrays = {name: np.ascontiguousarray(data, np.float32) for name, data in means.items()}
    table = (llama_cpp.llama_model_imatrix_data * (len(arrays) + 1))()
    for entry, (name, data) in zip(table, arrays.items(), strict=False):
        entry.name = name.encode()
        entry.data = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = data.size
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = int(FILE_TYPES[outtype])
    params.imatrix = table
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    assert code == 0
    return {t.name: t for t in Reader(out).tensors}


# a K type of each kind, and every file type whose choices an importance matrix changes
@pytest.mark.parametrize("outtype", ["q4_k_m", "q2_k", "q6_k", "iq4_xs", "iq4_nl", "q4_0", "q8_0"])
def test_bytes_are_those_of_llama_quantize_with_the_same_matrix(
    outtype: str,
    wide: tuple[Path, Path],  # noqa: F811
    wide_f32: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    path = write_imatrix(tmp_path / "imatrix.gguf", entries_for(wide_f32))
    means = dict(read_imatrix(path).means)
    theirs = quantize(wide_f32, tmp_path / "theirs.gguf", outtype, means)
    result = convert(*wide, outtype=outtype, imatrix=path, outfile=tmp_path / "x.gguf", threads=1)
    assert_same_tensors(result.outfile, theirs)
    assert result.warnings == ()
    if outtype == "q4_k_m":  # the matrix made a difference
        plain = convert(*wide, outtype=outtype, outfile=tmp_path / "plain.gguf", threads=1).outfile
        assert not np.array_equal(Reader(plain).tensors[2].data, theirs["fc.weight"].data)


def test_keys_say_which_matrix_was_used(
    wide: tuple[Path, Path],  # noqa: F811
    wide_f32: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    entries = entries_for(wide_f32)
    path = write_imatrix(tmp_path / "m.imatrix.gguf", entries)
    out = convert(*wide, outtype="q4_k_m", imatrix=path, outfile=tmp_path / "x.gguf").outfile
    fields = {k: f.contents() for k, f in Reader(out).fields.items() if "imatrix" in k}
    assert fields == {
        "quantize.imatrix.file": "m.imatrix.gguf",
        "quantize.imatrix.dataset": "wiki.train.raw",
        "quantize.imatrix.entries_count": len(entries),
        "quantize.imatrix.chunks_count": 3,
    }


def test_means_are_sums_over_counts_and_ones_without_a_token(tmp_path: Path) -> None:
    path = write_imatrix(
        tmp_path / "x.gguf", {"a": ([[6, 0, 3]], [[3]]), "b": ([[6, 0, 3]], [[0]])}
    )
    means = read_imatrix(path).means
    np.testing.assert_array_equal(means["a"], [2, 0, 1])
    np.testing.assert_array_equal(means["b"], [1, 1, 1])


def test_tensors_without_data_are_named_in_a_warning(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    path = write_imatrix(tmp_path / "m.gguf", {"fc.weight": ([[1.0] * 768], [[1]])})
    result = convert(
        drafter, target, outtype="q4_k_m", imatrix=path, outfile=tmp_path / "x.gguf", threads=1
    )
    (warning,) = result.warnings
    assert "no data for 21 of 22 quantized tensors, such as selector_hidden.weight" in warning


def test_columns_without_importance_may_be_off_and_the_others_are_not(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    sums = np.zeros((1, 768))
    sums[0, ::2] = 7
    path = write_imatrix(tmp_path / "m.gguf", {FC: (sums, [[5]])})
    source = tiny_drafter.from_bf16(tiny_drafter.weights(tiny_drafter.CONFIG)[FC])
    for outtype in ("q4_k_m", "q2_k", "iq4_nl"):
        out = tmp_path / f"{outtype}.gguf"
        convert(drafter, target, outtype=outtype, imatrix=path, outfile=out, threads=1)
        fc = next(t for t in Reader(out).tensors if t.name == FC)
        error = np.square(gguf.quants.dequantize(fc.data, fc.tensor_type) - source).mean(axis=0)
        assert error[::2].mean() < error[1::2].mean(), outtype


ROW = np.ones((1, 768))
HOSTILE: dict[str, tuple[Entries, tuple[str, ...], str]] = {
    "no tensors": ({}, (), "got no tensor named"),
    "NaN": ({FC: (ROW * np.nan, [[1]])}, (), "fc.weight.in_sum2: expected sums of squares"),
    "infinity": ({FC: (ROW * np.inf, [[1]])}, (), "fc.weight.in_sum2: expected sums of squares"),
    "only zeros": ({FC: (ROW * 0, [[1]])}, (), "fc.weight.in_sum2: expected sums of squares"),
    "negative": ({FC: (-ROW, [[1]])}, (), "fc.weight.in_sum2: expected sums of squares"),
    "too large": ({FC: (ROW * 1e30, [[1]])}, (), "fc.weight.in_sum2: expected sums of squares"),
    "NaN count": ({FC: (ROW, [[np.nan]])}, (), "fc.weight.counts: expected one count"),
    "negative count": ({FC: (ROW, [[-1]])}, (), "fc.weight.counts: expected one count"),
    "two counts": ({FC: (ROW, [1, 1])}, (), "fc.weight.counts: expected one count"),
    "experts": ({FC: (np.ones((2, 384)), [[1], [1]])}, (), "expected one row, .* no experts"),
    "other width": ({FC: (np.ones((1, 512)), [[1]])}, (), "fc.weight: expected 768 values"),
    "other model": ({"blk.9.attn_q.weight": (ROW, [[1]])}, (), "measured on another model"),
    "no chunk count": ({FC: (ROW, [[1]])}, ("imatrix.chunk_count",), "chunk_count: expected a"),
    "no chunk size": ({FC: (ROW, [[1]])}, ("imatrix.chunk_size",), "chunk_size: expected a"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_matrix_is_refused(case: str, drafter: Path, target: Path, tmp_path: Path) -> None:
    entries, drop, message = HOSTILE[case]
    path = write_imatrix(tmp_path / "m.gguf", entries, drop)
    out = tmp_path / "x.gguf"
    with pytest.raises(ConvertError, match=message) as raised:
        convert(drafter, target, outtype="q4_k_m", imatrix=path, outfile=out)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert not out.exists()


def test_damaged_matrix_file_is_refused(drafter: Path, target: Path, tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "m.gguf", {FC: (ROW, [[1]])})
    good = path.read_bytes()
    reversed_type = good.replace(b"in_sum2\2\0\0\0", b"in_sum2\7\0\0\0")
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    for data in (b"", b"\0" * 100, good[:-2000], good[:200], reversed_type):
        path.write_bytes(data)
        with pytest.raises(ConvertError, match=r"m\.gguf"):
            convert(drafter, target, outtype="q4_k_m", imatrix=path, outfile=tmp_path / "x.gguf")
    for absent in (loop, tmp_path, tmp_path / "none"):
        with pytest.raises(ConvertError, match="expected an importance matrix, found none"):
            convert(drafter, target, outtype="q4_k_m", imatrix=absent, outfile=tmp_path / "x.gguf")


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "m.gguf", {FC: (ROW, [[1]])})
    path.write_bytes(path.read_bytes().replace(b"fc.weight.counts", b"fc.weight.countz"))
    with pytest.raises(ConvertError, match=r"fc.weight: expected both .in_sum2 and .counts"):
        read_imatrix(path)


def test_matrix_for_an_unquantized_type_is_refused(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConvertError, match="imatrix: expected a quantized outtype with it, got bf"):
        convert(drafter, target, outtype="bf16", imatrix=tmp_path / "m", outfile=tmp_path / "x")


def test_half_used_vocabulary_matrix_is_left_out(
    wide: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    entries = {"token_embd.weight": (np.ones((1, 96)), [[1]]), "output.weight": (ROW[:, :256], [1])}
    path = write_imatrix(tmp_path / "m.gguf", entries)
    result = convert(*wide, outtype="q8_0", imatrix=path, outfile=tmp_path / "x.gguf", threads=1)
    assert "no data for" in result.warnings[0]
