"""What is written is what the checkpoint and the target say, read back with stock gguf-py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_drafter
from drafter_convert import convert
from gguf import GGUFValueType
from target_info import read_gguf_target

U32, F32, BOOL, STR, ARR, U64 = (
    GGUFValueType.UINT32,
    GGUFValueType.FLOAT32,
    GGUFValueType.BOOL,
    GGUFValueType.STRING,
    GGUFValueType.ARRAY,
    GGUFValueType.UINT64,
)

# key -> types and value, for tiny_drafter.CONFIG
EXPECTED: dict[str, tuple[list[GGUFValueType], Any]] = {
    "general.architecture": ([STR], "dflash"),
    "general.type": ([STR], "model"),
    "general.name": ([STR], "tiny"),
    "general.size_label": ([STR], "1.5M"),
    "general.file_type": ([U32], 32),
    "general.quantization_version": ([U32], 2),
    "dflash.block_count": ([U32], 2),
    "dflash.context_length": ([U32], 4096),
    "dflash.embedding_length": ([U32], 256),
    "dflash.feed_forward_length": ([U32], 512),
    "dflash.attention.head_count": ([U32], 4),
    "dflash.attention.head_count_kv": ([U32], 2),
    "dflash.attention.key_length": ([U32], 64),
    "dflash.attention.value_length": ([U32], 64),
    "dflash.attention.layer_norm_rms_epsilon": ([F32], np.float32(1e-6)),
    "dflash.rope.freq_base": ([F32], 1e7),
    "dflash.block_size": ([U32], 8),
    "dflash.target_layers": ([ARR, GGUFValueType.INT32], [2, 4, 5]),
    "dflash.attention.causal": ([BOOL], False),
    "dflash.attention.sliding_window": ([U32], 128),
    "dflash.attention.sliding_window_pattern": ([ARR, BOOL], [True, True]),
    "dflash.conv_kernel_size": ([U32], 2),
    "dflash.conv_group_size": ([U32], 16),
    "dflash.selector_rank": ([U32], 32),
    "dflash.selector_top_k": ([U32], 8),
    "tokenizer.ggml.mask_token_id": ([U32], 95),
    "dflash2.source.name": ([STR], "tiny"),
    "dflash2.target.name": ([STR], "tiny"),
    "dflash2.target.block_count": ([U32], 6),
}

GGUF_NAMES = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}


def gguf_name(name: str) -> str:
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        return f"blk.{layer}.{GGUF_NAMES[rest]}"
    return GGUF_NAMES[name]


def test_every_key_has_upstreams_type_and_the_configs_value(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    result = convert(drafter, target, outtype="bf16", outfile=tmp_path / "x.gguf")
    fields = gguf.GGUFReader(result.outfile).fields
    for key, (types, value) in EXPECTED.items():
        assert (fields[key].types, fields[key].contents()) == (types, value), key
    assert fields["dflash2.target.vocab_hash"].types == [U64]
    assert fields["dflash2.target.vocab_hash"].contents() == read_gguf_target(target).vocab_hash
    assert fields["dflash2.converter.version"].types == [STR]
    known = set(EXPECTED) | {"dflash2.target.vocab_hash", "dflash2.converter.version"}
    others = {k for k in fields if not k.startswith(("GGUF.", "tokenizer."))} - known
    assert others == set()


def test_the_targets_tokenizer_is_copied_byte_for_byte_and_in_order(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    result = convert(drafter, target, outtype="bf16", outfile=tmp_path / "x.gguf")
    ours, theirs = gguf.GGUFReader(result.outfile).fields, gguf.GGUFReader(target).fields
    keys = [k for k in theirs if k.startswith("tokenizer.")]
    assert keys == [k for k in ours if k.startswith("tokenizer.") and "mask_token" not in k]
    assert len(keys) == 9
    for key in keys:
        assert ours[key].types == theirs[key].types
        assert [p.tobytes() for p in ours[key].parts] == [p.tobytes() for p in theirs[key].parts]


def test_a_mask_token_of_the_targets_own_vocabulary_is_replaced(
    drafter: Path, tmp_path: Path
) -> None:
    target = tiny_drafter.write_target(tmp_path / "t.gguf")
    data = target.read_bytes().replace(b"padding", b"padding")
    target.write_bytes(data.replace(b"tokenizer.ggml.eos_token_id", b"tokenizer.ggml.eos_token_id"))
    writer_key = b"tokenizer.ggml.bos_token_id"
    as_mask = b"tokenizer.ggml.mask_token_id"
    at = data.index(writer_key)
    renamed = data[: at - 8] + len(as_mask).to_bytes(8, "little") + as_mask
    target.write_bytes(renamed + data[at + len(writer_key) :])
    result = convert(drafter, target, outtype="bf16", outfile=tmp_path / "x.gguf")
    fields = gguf.GGUFReader(result.outfile).fields
    assert fields["tokenizer.ggml.mask_token_id"].contents() == tiny_drafter.MASK_ID


def test_rope_sections_are_written_for_an_mrope_target_only(drafter: Path, tmp_path: Path) -> None:
    key = "dflash.rope.dimension_sections"
    for mrope in (False, True):
        target = tiny_drafter.write_target(tmp_path / f"{mrope}.gguf", mrope=mrope)
        result = convert(drafter, target, outtype="bf16", outfile=tmp_path / f"{mrope}-d.gguf")
        fields = gguf.GGUFReader(result.outfile).fields
        assert (key in fields) == mrope
    assert fields[key].types == [ARR, GGUFValueType.INT32]
    assert fields[key].contents() == [32, 0, 0, 0]


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_every_tensor_is_stored_as_upstreams_converter_would(
    outtype: str, drafter: Path, target: Path, tmp_path: Path
) -> None:
    result = convert(drafter, target, outtype=outtype, outfile=tmp_path / "x.gguf")
    tensors = {t.name: t for t in gguf.GGUFReader(result.outfile).tensors}
    sources = tiny_drafter.weights(tiny_drafter.CONFIG)
    assert set(tensors) == {gguf_name(name) for name in sources}
    wanted = gguf.GGMLQuantizationType[outtype.upper()]
    for name, bits in sources.items():
        stored, values = tensors[gguf_name(name)], tiny_drafter.from_bf16(bits)
        plain = bits.ndim < 2 or name.endswith("base_kernel")
        kind = gguf.GGMLQuantizationType.F32 if plain else wanted
        assert stored.tensor_type == kind
        assert tuple(stored.shape) == bits.shape[::-1]
        expected = gguf.quants.quantize(values, kind)
        assert stored.data.tobytes() == np.ascontiguousarray(expected).tobytes(), name


def test_q4_k_m_is_within_its_error_and_reports_it(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    result = convert(drafter, target, outtype="q4_k_m", outfile=tmp_path / "x.gguf")
    reports = {t.name: t for t in result.tensors}
    sources = tiny_drafter.weights(tiny_drafter.CONFIG)
    for tensor in gguf.GGUFReader(result.outfile).tensors:
        report = reports[tensor.name]
        source = next(s for n, s in sources.items() if gguf_name(n) == tensor.name)
        values = tiny_drafter.from_bf16(source).ravel()
        stored = gguf.quants.dequantize(tensor.data, tensor.tensor_type).ravel()
        error = np.sqrt(np.mean((stored - values) ** 2))
        assert report.type == tensor.tensor_type.name.lower().replace("_k", "_K")
        assert report.rms_error == pytest.approx(error, rel=1e-3)
        assert report.max_error == pytest.approx(np.abs(stored - values).max(), rel=1e-6)
    assert {t.type for t in result.tensors} == {"f32", "q4_K", "q6_K", "q5_0"}


def test_values_outside_f16_are_named_and_bf16_takes_them(target: Path, tmp_path: Path) -> None:
    from convert_error import ConvertError

    tensors = tiny_drafter.weights(tiny_drafter.CONFIG)
    tensors["fc.weight"][3, 5] = tiny_drafter.to_bf16(np.float32([1e6]))[0]
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    with pytest.raises(ConvertError, match=r"fc.weight: expected values within f16's 65504"):
        convert(drafter, target, outtype="f16", outfile=tmp_path / "x.gguf")
    convert(drafter, target, outtype="bf16", outfile=tmp_path / "x.gguf")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sources_in_other_float_types_give_the_same_values(
    dtype: str, target: Path, tmp_path: Path
) -> None:
    bits = tiny_drafter.weights(tiny_drafter.CONFIG)
    tensors = {n: tiny_drafter.from_bf16(b).astype(dtype) for n, b in bits.items()}
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    result = convert(drafter, target, outtype="f32", outfile=tmp_path / "x.gguf")
    for tensor in gguf.GGUFReader(result.outfile).tensors:
        source = next(v for n, v in tensors.items() if gguf_name(n) == tensor.name)
        np.testing.assert_array_equal(tensor.data, source.astype(np.float32))


def test_names_come_from_the_repository_in_a_hugging_face_cache(
    target: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models--incoai--Qwen3.8-27B-DFlash2" / "snapshots" / "dedf8df6"
    tiny_drafter.write_drafter(folder, tiny_drafter.CONFIG)
    result = convert(folder, target, outtype="bf16", outfile=tmp_path)
    assert result.source_name == "incoai/Qwen3.8-27B-DFlash2"


def test_default_name_is_one_that_llama_cpp_discovers(
    drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = convert(drafter, target, outtype="q8_0")
    assert result.outfile == tmp_path / "dflash-tiny-Q8_0.gguf"
    assert [p.name for p in tmp_path.iterdir()] == ["dflash-tiny-Q8_0.gguf"]
    assert result.n_bytes == result.outfile.stat().st_size
