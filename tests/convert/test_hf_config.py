"""config.json: what is read, and that nothing load-bearing is guessed."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_drafter
from convert_error import ConvertError
from hf_config import Selector, parse_config

QWEN38_27B: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "num_hidden_layers": 5,
    "num_target_layers": 64,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "max_window_layers": 5,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "attention_bias": False,
    "bos_token_id": None,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}


def test_reads_every_value_of_the_published_qwen38_27b_config() -> None:
    c = parse_config(QWEN38_27B)
    assert (c.n_layer, c.n_embd, c.n_ff, c.n_vocab) == (5, 5120, 17408, 248320)
    assert (c.n_head, c.n_head_kv, c.head_dim, c.n_ctx_train) == (32, 8, 128, 262144)
    assert (c.rms_eps, c.rope_theta, c.block_size, c.mask_token_id) == (1e-6, 1e7, 8, 248070)
    assert c.target_layer_ids == (5, 19, 33, 47, 61)
    assert (c.causal, c.sliding_window, c.sliding_layers) == (False, 2048, (True,) * 5)
    assert c.selector == Selector(2, 16, 256, 16, n_rows=248320)
    assert (c.logit_scale, c.logit_softcap, c.embedding_scale) == (None, None, None)


def test_reads_muse_glimmers_output_multiplier_and_softcap() -> None:
    muse = {"output_multiplier": 0.19611613513818404, "final_logit_softcapping": 20.0}
    c = parse_config(tiny_drafter.config(dflash_config=muse))
    assert (c.logit_scale, c.logit_softcap) == (0.19611613513818404, 20.0)


def test_accepts_flat_and_nested_places_and_prefers_the_nested_one() -> None:
    flat = tiny_drafter.config(
        block_size=16,
        mask_token_id=7,
        rope_parameters=None,
        rope_theta=5000,
        dflash_config={"block_size": None, "mask_token_id": 9},
    )
    c = parse_config(flat)
    assert (c.block_size, c.mask_token_id, c.rope_theta) == (16, 9, 5000)


TOP_LEVEL = [
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "layer_types",
    "use_sliding_window",
    "sliding_window",
    "is_causal",
]
NESTED = [
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
]


@pytest.mark.parametrize("key", TOP_LEVEL)
def test_missing_load_bearing_value_is_named(key: str) -> None:
    with pytest.raises(ConvertError, match=f"config.json: {key}: expected .*, got nothing"):
        parse_config(tiny_drafter.config(**{key: None}))


@pytest.mark.parametrize("key", NESTED)
def test_missing_load_bearing_drafter_value_is_named(key: str) -> None:
    with pytest.raises(ConvertError, match=f"config.json: {key}: expected .*, got nothing"):
        parse_config(tiny_drafter.config(dflash_config={key: None}))


def test_missing_rope_theta_is_named() -> None:
    with pytest.raises(ConvertError, match=r"rope_theta: expected .*, got nothing"):
        parse_config(tiny_drafter.config(rope_parameters=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "256"}, "hidden_size: expected an integer"),
        ({"hidden_size": True}, "hidden_size: expected an integer"),
        ({"hidden_size": -1}, "hidden_size: expected an integer"),
        ({"hidden_size": 2**40}, "hidden_size: expected an integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 4"),
        ({"head_dim": 63}, "head_dim: expected an even number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a finite number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: expected a number above 0"),
        ({"attention_bias": True}, "attention_bias: expected false"),
        ({"hidden_act": "relu"}, "hidden_act: expected"),
        ({"layer_types": ["sliding_attention"]}, "layer_types: expected a list of 2"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "got 'linear_attention'"),
        ({"is_causal": "no"}, "is_causal: expected true or false"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures: expected one of"),
        ({"architectures": "DFlash2DraftModel"}, "architectures: expected a list"),
        ({"rope_parameters": [1]}, "rope_parameters: expected an object"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}}, "rope_type: expected"),
        ({"dflash_config": {"mask_token_id": 96}}, "mask_token_id: expected an integer from 0"),
        ({"dflash_config": {"block_size": 1}}, "block_size: expected an integer from 2"),
        ({"dflash_config": {"target_layer_ids": []}}, "target_layer_ids: expected a list"),
        ({"dflash_config": {"target_layer_ids": [1, "3"]}}, "target_layer_ids: expected a list"),
        ({"dflash_config": {"target_layer_ids": [6]}}, "target_layer_ids: expected layers of a 6"),
        ({"dflash_config": {"target_layer_ids": [-1]}}, "target_layer_ids: expected layers of a 6"),
        ({"dflash_config": {"conv_group_size": 48}}, "conv_group_size: expected a divisor"),
        ({"dflash_config": {"selector_top_k": 16}}, "selector_top_k: expected top_k"),
    ],
)
def test_impossible_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        parse_config(tiny_drafter.config(**changes))
