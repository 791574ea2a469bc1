"""The key/value section of a drafter file, from its config and its target."""

from __future__ import annotations

import math
from importlib import metadata

import gguf
import gguf_schema as schema
from dflash2.gguf_raw import Value, bool_array, boolean, f32, i32_array, string, u32, u64
from hf_config import DrafterConfig, RopeScaling
from target_info import Target
from type_choice import FILE_TYPES


def converter_version() -> str:
    """Version of the installed ggml-dflash2 distribution."""
    try:
        return metadata.version("ggml-dflash2")
    except metadata.PackageNotFoundError:
        return "unknown"


def _general(source_name: str, outtype: str, n_params: int) -> dict[str, Value]:
    return {
        schema.KEY_ARCHITECTURE: string(schema.ARCH),
        schema.KEY_TYPE: string("model"),
        schema.KEY_NAME: string(source_name),
        schema.KEY_SIZE_LABEL: string(gguf.size_label(n_params, n_params, 0, 0)),
        schema.KEY_FILE_TYPE: u32(int(FILE_TYPES[outtype])),
        schema.KEY_QUANTIZATION_VERSION: u32(gguf.GGML_QUANT_VERSION),
    }


def _optional_floats(*pairs: tuple[str, float | None]) -> dict[str, Value]:
    return {key: f32(value) for key, value in pairs if value is not None}


def _rope_scaling(s: RopeScaling) -> dict[str, Value]:
    values = {
        schema.KEY_ROPE_SCALING_TYPE: string(s.kind),
        schema.KEY_ROPE_SCALING_FACTOR: f32(s.factor),
    }
    if s.n_ctx_original is not None:
        values[schema.KEY_ROPE_SCALING_CONTEXT] = u32(s.n_ctx_original)
    return values | _optional_floats(
        (schema.KEY_ROPE_SCALING_EXT, s.ext_factor),
        (schema.KEY_ROPE_SCALING_ATTN, s.attn_factor),
        (schema.KEY_ROPE_SCALING_BETA_FAST, s.beta_fast),
        (schema.KEY_ROPE_SCALING_BETA_SLOW, s.beta_slow),
    )


def _rope(c: DrafterConfig, target: Target) -> dict[str, Value]:
    values = {schema.KEY_ROPE_FREQ_BASE: f32(c.rope_theta)}
    if c.n_rot != c.head_dim:
        values[schema.KEY_ROPE_DIMENSION_COUNT] = u32(c.n_rot)
    if target.uses_mrope:
        # the draft ropes on the temporal axis only; upstream counts the whole head
        values[schema.KEY_ROPE_SECTIONS] = i32_array((c.head_dim // 2, 0, 0, 0))
    return values | (_rope_scaling(c.rope_scaling) if c.rope_scaling else {})


def embedding_scale(c: DrafterConfig, target: Target) -> float | None:
    """Gemma scales its embedding rows by sqrt(hidden size), and the drafter reads them raw."""
    if c.embedding_scale is None and target.architecture.startswith("gemma"):
        return math.sqrt(c.n_embd)
    return c.embedding_scale


def _hyper_parameters(c: DrafterConfig, target: Target) -> dict[str, Value]:
    values = {
        schema.KEY_BLOCK_COUNT: u32(c.n_layer),
        schema.KEY_CONTEXT_LENGTH: u32(c.n_ctx_train),
        schema.KEY_EMBEDDING_LENGTH: u32(c.n_embd),
        schema.KEY_FEED_FORWARD_LENGTH: u32(c.n_ff),
        schema.KEY_HEAD_COUNT: u32(c.n_head),
        schema.KEY_HEAD_COUNT_KV: u32(c.n_head_kv),
        schema.KEY_KEY_LENGTH: u32(c.head_dim),
        schema.KEY_VALUE_LENGTH: u32(c.head_dim),
        schema.KEY_RMS_EPS: f32(c.rms_eps),
        **_rope(c, target),
        schema.KEY_BLOCK_SIZE: u32(c.block_size),
        schema.KEY_TARGET_LAYERS: i32_array(tuple(i + 1 for i in c.target_layer_ids)),
    }
    if c.causal is not None:
        values[schema.KEY_CAUSAL] = boolean(c.causal)
    if c.sliding_window is not None:
        values[schema.KEY_SLIDING_WINDOW] = u32(c.sliding_window)
        values[schema.KEY_SLIDING_PATTERN] = bool_array(c.sliding_layers)
    if c.selector is not None:
        values[schema.KEY_CONV_KERNEL_SIZE] = u32(c.selector.kernel_size)
        values[schema.KEY_CONV_GROUP_SIZE] = u32(c.selector.group_size)
        values[schema.KEY_SELECTOR_RANK] = u32(c.selector.rank)
        values[schema.KEY_SELECTOR_TOP_K] = u32(c.selector.top_k)
    return values | _optional_floats(
        (schema.KEY_VALUE_SCALE, c.value_scale),
        (schema.KEY_LOGIT_SCALE, c.logit_scale),
        (schema.KEY_LOGIT_SOFTCAP, c.logit_softcap),
        (schema.KEY_EMBEDDING_SCALE, embedding_scale(c, target)),
    )


def build_metadata(
    config: DrafterConfig, target: Target, *, source_name: str, outtype: str, n_params: int
) -> dict[str, Value]:
    """Every key of the file to write, in its order."""
    return {
        **_general(source_name, outtype, n_params),
        **_hyper_parameters(config, target),
        **target.tokenizer,
        schema.KEY_MASK_TOKEN: u32(config.mask_token_id),
        schema.KEY_CONVERTER_VERSION: string(converter_version()),
        schema.KEY_SOURCE_NAME: string(source_name),
        schema.KEY_TARGET_NAME: string(target.name),
        schema.KEY_TARGET_BLOCK_COUNT: u32(target.n_layer),
        schema.KEY_TARGET_VOCAB_HASH: u64(target.vocab_hash),
    }
