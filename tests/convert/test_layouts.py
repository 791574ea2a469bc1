"""Every published layout: the same drafter in other clothes gives the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_drafter
from convert_error import ConvertError
from converted import Fields, Tensors, assert_same, read, run
from drafter_convert import convert
from hf_config import parse_config
from tiny_drafter import dflash1, speculators_dflash


@pytest.fixture
def plain(drafter: Path, target: Path, tmp_path: Path) -> tuple[Fields, Tensors]:
    """The published layout, converted."""
    result = convert(drafter, target, outtype="f32", outfile=tmp_path / "plain.gguf")
    return read(result.outfile)


def without_source(fields: Fields) -> Fields:
    return {k: v for k, v in fields.items() if k != "dflash2.source.name"}


def test_published_dflash_1_layout(target: Path, tmp_path: Path) -> None:
    cfg = dflash1()
    fields, tensors = read(run(tmp_path, cfg, tiny_drafter.weights(cfg), target).outfile)
    assert len(tensors) == 2 * 11 + 3
    assert not any("conv_" in name or "selector" in name for name in (*fields, *tensors))
    assert fields["dflash.block_size"] == 16
    assert fields["dflash.rope.freq_base"] == 1e6
    assert "dflash.attention.causal" not in fields
    assert "dflash.attention.sliding_window" not in fields


def test_window_that_no_layer_uses_is_left_out_because_llama_cpp_aborts_on_it(
    target: Path, tmp_path: Path
) -> None:
    for name, window in (("x", 128), ("y", None)):
        cfg = tiny_drafter.config(layer_types=["full_attention"] * 2, sliding_window=window)
        fields, _ = read(run(tmp_path, cfg, tiny_drafter.weights(cfg), target, name).outfile)
        assert not any("sliding" in key for key in fields)


def test_dflash_1_with_mixed_layers_warns_about_an_unsaid_mask(
    target: Path, tmp_path: Path
) -> None:
    cfg = dflash1(use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])
    result = run(tmp_path, cfg, tiny_drafter.weights(cfg), target)
    fields, _ = read(result.outfile)
    assert fields["dflash.attention.sliding_window_pattern"] == [True, False]
    assert "dflash.attention.causal" not in fields
    assert result.warnings == (
        "is_causal is not given: blocks attend both ways, as llama.cpp has it",
    )


def test_model_prefix_and_codebook_suffix(
    plain: tuple[Fields, Tensors], target: Path, tmp_path: Path
) -> None:
    tensors = {
        "model." + (f"{name}.weight" if name.endswith("codebook") else name): data
        for name, data in tiny_drafter.weights(tiny_drafter.CONFIG).items()
    }
    fields, found = read(run(tmp_path, tiny_drafter.CONFIG, tensors, target).outfile)
    assert_same(found, plain[1])
    assert without_source(fields) == without_source(plain[0])


def test_nemo_automodel(plain: tuple[Fields, Tensors], target: Path, tmp_path: Path) -> None:
    cfg = tiny_drafter.config(architectures=["Qwen3DFlash2DraftModel"], is_causal=None)
    fields, found = read(run(tmp_path, cfg, tiny_drafter.weights(cfg), target).outfile)
    assert_same(found, plain[1])
    assert without_source(fields) == without_source(plain[0])


def test_speculators_dflash2(plain: tuple[Fields, Tensors], target: Path, tmp_path: Path) -> None:
    inner = tiny_drafter.config()
    nested = inner.pop("dflash_config")
    taps = nested.pop("target_layer_ids")
    for key in ("architectures", "is_causal", "num_target_layers"):
        inner.pop(key)
    cfg = {
        "architectures": ["DFlash2DraftModel"],
        "speculators_model_type": "dflash2",
        "transformer_layer_config": inner,
        "aux_hidden_state_layer_ids": [i + 1 for i in taps],
        "draft_vocab_size": tiny_drafter.N_VOCAB,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        **nested,
    }
    fields, found = read(
        run(tmp_path, cfg, tiny_drafter.weights(tiny_drafter.CONFIG), target).outfile
    )
    assert_same(found, plain[1])
    assert without_source(fields) == without_source(plain[0])


def test_speculators_dflash_with_a_reduced_head(target: Path, tmp_path: Path) -> None:
    cfg, wanted = speculators_dflash(), np.array([3, 7, 8, 90])
    tensors: Tensors = dict(tiny_drafter.weights(dflash1()))
    tensors["lm_head.weight"] = tiny_drafter.to_bf16(np.ones((4, 256), np.float32))
    tensors["d2t"] = wanted - np.arange(4)
    tensors["t2d"] = np.isin(np.arange(tiny_drafter.N_VOCAB), wanted)
    tensors["verifier_norm.weight"] = np.ones(256, np.uint16)
    result = run(tmp_path, cfg, tensors, target)
    fields, found = read(result.outfile)
    assert fields["dflash.target_layers"] == [2, 4, 5]
    assert found["d2t"].dtype == np.int64
    np.testing.assert_array_equal(found["d2t"], wanted)
    np.testing.assert_array_equal(found["output.weight"], np.ones((4, 256), np.float32))
    assert {"t2d", "verifier_norm.weight"}.isdisjoint(found)
    types = {t.name: t.type for t in result.tensors}
    assert types["d2t"] == "i64"


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([3, 7, 8, 93], "d2t: expected token ids below 96"),
        ([-1, 7, 8, 9], "d2t: expected token ids below 96"),
        ([3, 2, 8, 9], "d2t: expected distinct token ids"),
    ],
)
def test_impossible_d2t_is_refused(
    offsets: list[int], message: str, target: Path, tmp_path: Path
) -> None:
    tensors: Tensors = dict(tiny_drafter.weights(dflash1()))
    tensors["lm_head.weight"] = np.ones((4, 256), np.uint16)
    tensors["d2t"] = np.array(offsets)
    with pytest.raises(ConvertError, match=message):
        run(tmp_path, speculators_dflash(), tensors, target)


def test_d2t_of_a_full_head_is_dropped_when_it_moves_nothing(target: Path, tmp_path: Path) -> None:
    cfg = speculators_dflash(draft_vocab_size=96)
    tensors: Tensors = dict(tiny_drafter.weights(dflash1()))
    tensors["lm_head.weight"] = np.ones((96, 256), np.uint16)
    tensors["d2t"] = np.zeros(96, np.int64)
    _, found = read(run(tmp_path, cfg, tensors, target).outfile)
    assert "d2t" not in found
    assert found["output.weight"].shape == (96, 256)
    tensors["d2t"][5] = 1
    with pytest.raises(ConvertError, match=r"expected only tensors of .*, got d2t"):
        run(tmp_path, cfg, tensors, target, "y")


@pytest.mark.parametrize("absent", ["d2t", "lm_head.weight"])
def test_reduced_head_needs_both_of_its_tensors(absent: str, target: Path, tmp_path: Path) -> None:
    tensors: Tensors = dict(tiny_drafter.weights(dflash1()))
    tensors["lm_head.weight"] = np.ones((4, 256), np.uint16)
    tensors["d2t"] = np.arange(4)
    del tensors[absent]
    with pytest.raises(ConvertError, match=r"expected a tensor for (d2t|output.weight), got none"):
        run(tmp_path, speculators_dflash(), tensors, target)


def test_speculators_causal_blocks_beside_full_layers_are_refused(
    target: Path, tmp_path: Path
) -> None:
    cfg = speculators_dflash(draft_vocab_size=None)
    cfg["transformer_layer_config"] |= {
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    with pytest.raises(ConvertError, match="sliding_window_non_causal: expected true beside full"):
        run(tmp_path, cfg, dict(tiny_drafter.weights(dflash1())), target)
    cfg["transformer_layer_config"]["layer_types"] = ["sliding_attention"] * 2
    fields, _ = read(run(tmp_path, cfg, dict(tiny_drafter.weights(dflash1())), target).outfile)
    assert fields["dflash.attention.causal"] is True


def test_muse_glimmer_assistant_names(target: Path, tmp_path: Path) -> None:
    cfg = dflash1(architectures=["MuseGlimmerAssistantModel"], use_sliding_window=None)
    nested = cfg.pop("dflash_config")
    cfg |= nested
    renamed = {"fc.weight": "encoder.fc.weight"}
    renamed["hidden_norm.weight"] = "encoder.output_norm_enc.weight"
    source = tiny_drafter.weights(dflash1())
    tensors = {renamed.get(n, n): data for n, data in source.items()}
    fields, found = read(run(tmp_path, cfg, tensors, target).outfile)
    assert fields["dflash.attention.sliding_window_pattern"] == [True, True]
    np.testing.assert_array_equal(
        found["enc.output_norm.weight"], tiny_drafter.from_bf16(source["hidden_norm.weight"])
    )


def test_mimo_in_the_dflash_subfolder_of_its_target(target: Path, tmp_path: Path) -> None:
    cfg = dflash1(
        layer_types=None,
        use_sliding_window=None,
        partial_rotary_factor=0.5,
        dflash_config={
            "use_swa": True,
            "swa_window_size": 1024,
            "attention_sink_bias": True,
            "attention_value_scale": 0.612,
        },
    )
    tensors: Tensors = dict(tiny_drafter.weights(dflash1()))
    for i in range(2):
        sinks = tiny_drafter.to_bf16(np.full(4, 0.5 + i, np.float32))
        tensors[f"layers.{i}.self_attn.attention_sink_bias"] = sinks
    root = tmp_path / "mimo"
    inner = tiny_drafter.write_drafter(root / "dflash", cfg, tensors)
    (inner / "model.safetensors").rename(inner / "dflash_draft_model.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "dflash_draft_model.safetensors")}
    (inner / "model.safetensors.index.json").write_text(json.dumps(index))
    (root / "config.json").write_text(json.dumps({"architectures": ["MiMoV2ForCausalLM"]}))
    (inner / "stale.safetensors").write_bytes(b"not of this checkpoint")

    result = convert(root, target, outtype="f32", outfile=tmp_path / "x.gguf")
    fields, found = read(result.outfile)
    assert fields["dflash.attention.sliding_window"] == 1024
    assert fields["dflash.attention.sliding_window_pattern"] == [True, True]
    assert fields["dflash.attention.value_scale"] == np.float32(0.612)
    assert fields["dflash.rope.dimension_count"] == 32
    assert fields["dflash2.source.name"] == "mimo"
    np.testing.assert_array_equal(found["blk.1.attn_sinks.weight"], np.full(4, 1.5, np.float32))


def test_sinks_that_the_config_promises_must_be_there(target: Path, tmp_path: Path) -> None:
    cfg = dflash1(attention_sink_bias=True)
    with pytest.raises(ConvertError, match=r"expected a tensor for blk.0.attn_sinks.weight"):
        run(tmp_path, cfg, tiny_drafter.weights(cfg), target)


def test_sharded_by_an_index(plain: tuple[Fields, Tensors], target: Path, tmp_path: Path) -> None:
    tensors = tiny_drafter.weights(tiny_drafter.CONFIG)
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, {})
    (drafter / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for part, chosen in (("a", names[:20]), ("b", names[20:])):
        file = f"model-0000{part}.safetensors"
        data = tiny_drafter.safetensors_bytes({n: tensors[n] for n in chosen})
        (drafter / file).write_bytes(data)
        weight_map |= dict.fromkeys(chosen, file)
    index = drafter / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    result = convert(drafter, target, outtype="f32", outfile=tmp_path / "x.gguf")
    assert_same(read(result.outfile)[1], plain[1])

    out = tmp_path / "y.gguf"
    index.write_text(json.dumps({"weight_map": {**weight_map, "x": "model-0000c.safetensors"}}))
    with pytest.raises(ConvertError, match=r"model-0000c.safetensors: named by .*, found none"):
        convert(drafter, target, outtype="f32", outfile=out)
    index.write_text(json.dumps({"weight_map": {**weight_map, "x": "model-0000a.safetensors"}}))
    with pytest.raises(ConvertError, match=r"x: expected in model-0000a.safetensors, found none"):
        convert(drafter, target, outtype="f32", outfile=out)
    for shard in ("../x.safetensors", "/etc/x.safetensors", "x.bin", 5):
        index.write_text(json.dumps({"weight_map": {"x": shard}}))
        with pytest.raises(ConvertError, match="x: expected a file in this folder"):
            convert(drafter, target, outtype="f32", outfile=out)
    index.write_text("{}")
    with pytest.raises(ConvertError, match="weight_map: expected files by tensor"):
        convert(drafter, target, outtype="f32", outfile=out)


def test_codebooks_with_fewer_rows_than_the_vocabulary_are_padded_with_zeros(
    target: Path, tmp_path: Path
) -> None:
    cfg = tiny_drafter.config(dflash_config={"selector_vocab_size": 80})
    source = tiny_drafter.weights(cfg)
    _, found = read(run(tmp_path, cfg, source, target).outfile)
    for book in ("predecessor", "successor"):
        stored = found[f"selector_{book}.weight"]
        wanted = tiny_drafter.from_bf16(source[f"candidate_selector.{book}_codebook"])
        assert stored.shape == (96, 32)
        np.testing.assert_array_equal(stored[:80], wanted)
        assert not stored[80:].any()


def test_interleaved_rope_is_reordered_so_that_attention_scores_stay_the_same(
    target: Path, tmp_path: Path
) -> None:
    cfg = dflash1(rope_is_neox_style=False)
    source = tiny_drafter.weights(cfg)
    _, found = read(run(tmp_path, cfg, source, target).outfile)
    x, position, dim = np.random.default_rng(2).normal(size=256), 5, 64
    angles = position * 1e6 ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angles), np.sin(angles)

    head = (tiny_drafter.from_bf16(source["layers.0.self_attn.q_proj.weight"]) @ x)[64:128]
    head = head * tiny_drafter.from_bf16(source["layers.0.self_attn.q_norm.weight"])
    even, odd = head[0::2], head[1::2]
    interleaved = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=1).ravel()

    head = (found["blk.0.attn_q.weight"] @ x)[64:128] * found["blk.0.attn_q_norm.weight"]
    low, high = head[:32], head[32:]
    halves = np.concatenate([low * cos - high * sin, low * sin + high * cos])
    np.testing.assert_allclose(halves[:32], interleaved[0::2], rtol=1e-5)
    np.testing.assert_allclose(halves[32:], interleaved[1::2], rtol=1e-5)
    np.testing.assert_array_equal(
        found["blk.0.attn_v.weight"],
        tiny_drafter.from_bf16(source["layers.0.self_attn.v_proj.weight"]),
    )


@pytest.mark.parametrize(("arch", "scale"), [("gemma4", 16.0), ("llama", None)])
def test_gemma_targets_scale_their_embedding(
    arch: str, scale: float | None, drafter: Path, tmp_path: Path
) -> None:
    target = tiny_drafter.write_target(tmp_path / "t.gguf", arch=arch)
    fields, _ = read(convert(drafter, target, outtype="f32", outfile=tmp_path / "x.gguf").outfile)
    assert fields.get("dflash.embedding_scale") == scale


def test_embedding_scale_of_the_config_wins(tmp_path: Path) -> None:
    cfg = tiny_drafter.config(dflash_config={"input_embedding_scale": 2.5})
    target = tiny_drafter.write_target(tmp_path / "t.gguf", arch="gemma3")
    fields, _ = read(run(tmp_path, cfg, tiny_drafter.weights(cfg), target).outfile)
    assert fields["dflash.embedding_scale"] == 2.5


ORIGINAL_CONTEXT = "original_max_position_embeddings"


def test_yarn(target: Path, tmp_path: Path) -> None:
    rope = {
        "rope_type": "yarn", "rope_theta": 50000.0, "factor": 32.0,
        ORIGINAL_CONTEXT: 4096, "beta_fast": 32.0, "beta_slow": 1.0,
    }  # fmt: skip
    cfg = tiny_drafter.config(rope_parameters=rope)
    fields, _ = read(run(tmp_path, cfg, tiny_drafter.weights(cfg), target).outfile)
    assert fields["dflash.rope.scaling.type"] == "yarn"
    assert fields["dflash.rope.scaling.factor"] == 32
    assert fields["dflash.rope.scaling.original_context_length"] == 4096
    assert fields["dflash.rope.scaling.yarn_beta_fast"] == 32
    with pytest.raises(ConvertError, match=f"{ORIGINAL_CONTEXT}: expected"):
        parse_config(tiny_drafter.config(rope_parameters={**rope, ORIGINAL_CONTEXT: None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["DFlashLagunaForCausalLM"]}, "a Laguna drafter"),
        ({"architectures": ["Qwen3DSparkModel"]}, "a DSpark drafter .*convert_hf_to_gguf.py"),
        ({"speculators_model_type": "dspark"}, "a DSpark drafter"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: .* MLA attention"),
        ({"hc_mult": 4}, "hc_mult: .* hyper-connections"),
        ({"sample_from_anchor": True}, "sample_from_anchor: expected false"),
        ({"v_head_dim": 32}, "v_head_dim: expected 64, got 32"),
        ({"target_hidden_size": 512}, "target_hidden_size: expected 256, got 512"),
        ({"dflash_config": {"markov_rank": 64}}, "markov_rank: .* DSpark"),
        ({"draft_vocab_size": 97}, "draft_vocab_size: expected an integer from 1 to 96"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor: expected an even part"),
    ],
)
def test_layouts_that_no_engine_of_this_family_runs_are_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConvertError, match=message):
        parse_config(tiny_drafter.config(**changes))
