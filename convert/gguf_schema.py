"""Upstream llama.cpp's GGUF schema for arch `dflash`: keys, tensor names, shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hf_config import DrafterConfig

ARCH: Final = "dflash"

KEY_ARCHITECTURE: Final = "general.architecture"
KEY_TYPE: Final = "general.type"
KEY_NAME: Final = "general.name"
KEY_SIZE_LABEL: Final = "general.size_label"
KEY_FILE_TYPE: Final = "general.file_type"
KEY_QUANTIZATION_VERSION: Final = "general.quantization_version"

KEY_BLOCK_COUNT: Final = "dflash.block_count"
KEY_CONTEXT_LENGTH: Final = "dflash.context_length"
KEY_EMBEDDING_LENGTH: Final = "dflash.embedding_length"
KEY_FEED_FORWARD_LENGTH: Final = "dflash.feed_forward_length"
KEY_HEAD_COUNT: Final = "dflash.attention.head_count"
KEY_HEAD_COUNT_KV: Final = "dflash.attention.head_count_kv"
KEY_KEY_LENGTH: Final = "dflash.attention.key_length"
KEY_VALUE_LENGTH: Final = "dflash.attention.value_length"
KEY_RMS_EPS: Final = "dflash.attention.layer_norm_rms_epsilon"
KEY_CAUSAL: Final = "dflash.attention.causal"
KEY_SLIDING_WINDOW: Final = "dflash.attention.sliding_window"
KEY_SLIDING_PATTERN: Final = "dflash.attention.sliding_window_pattern"
KEY_VALUE_SCALE: Final = "dflash.attention.value_scale"
KEY_ROPE_FREQ_BASE: Final = "dflash.rope.freq_base"
KEY_ROPE_DIMENSION_COUNT: Final = "dflash.rope.dimension_count"
KEY_ROPE_SCALING_TYPE: Final = "dflash.rope.scaling.type"
KEY_ROPE_SCALING_FACTOR: Final = "dflash.rope.scaling.factor"
KEY_ROPE_SCALING_CONTEXT: Final = "dflash.rope.scaling.original_context_length"
KEY_ROPE_SCALING_EXT: Final = "dflash.rope.scaling.yarn_ext_factor"
KEY_ROPE_SCALING_ATTN: Final = "dflash.rope.scaling.yarn_attn_factor"
KEY_ROPE_SCALING_BETA_FAST: Final = "dflash.rope.scaling.yarn_beta_fast"
KEY_ROPE_SCALING_BETA_SLOW: Final = "dflash.rope.scaling.yarn_beta_slow"
KEY_ROPE_SECTIONS: Final = "dflash.rope.dimension_sections"
KEY_BLOCK_SIZE: Final = "dflash.block_size"
KEY_CONV_KERNEL_SIZE: Final = "dflash.conv_kernel_size"
KEY_CONV_GROUP_SIZE: Final = "dflash.conv_group_size"
KEY_SELECTOR_RANK: Final = "dflash.selector_rank"
KEY_SELECTOR_TOP_K: Final = "dflash.selector_top_k"
KEY_TARGET_LAYERS: Final = "dflash.target_layers"  # HF target_layer_ids + 1
KEY_LOGIT_SCALE: Final = "dflash.logit_scale"
KEY_LOGIT_SOFTCAP: Final = "dflash.final_logit_softcapping"
KEY_EMBEDDING_SCALE: Final = "dflash.embedding_scale"

TOKENIZER_PREFIX: Final = "tokenizer."
KEY_TOKENS: Final = "tokenizer.ggml.tokens"
KEY_TOKEN_TYPE: Final = "tokenizer.ggml.token_type"
KEY_MASK_TOKEN: Final = "tokenizer.ggml.mask_token_id"

# ours; other engines ignore them
KEY_CONVERTER_VERSION: Final = "dflash2.converter.version"
KEY_SOURCE_NAME: Final = "dflash2.source.name"
KEY_TARGET_NAME: Final = "dflash2.target.name"
KEY_TARGET_BLOCK_COUNT: Final = "dflash2.target.block_count"
KEY_TARGET_VOCAB_HASH: Final = "dflash2.target.vocab_hash"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a `dflash` file may hold.

    name: "{i}" stands for the layer. shape: torch order (out, in).
    needed: True when a file for this config must hold it, False when it must not, None when it may.
    """

    name: str
    shape: Callable[[DrafterConfig], Shape]
    needed: Callable[[DrafterConfig], bool | None] = lambda c: True


def _has_selector(c: DrafterConfig) -> bool:
    return c.selector is not None


def _codebook(c: DrafterConfig) -> Shape:
    return (c.n_vocab, c.selector.rank) if c.selector else ()


def _conv_base(c: DrafterConfig) -> Shape:
    return (2, c.selector.kernel_size, c.n_embd) if c.selector else ()


def _conv_proj(c: DrafterConfig) -> Shape:
    s = c.selector
    return (2 * s.kernel_size * (c.n_embd // s.group_size), c.n_embd) if s else ()


def _maybe(c: DrafterConfig) -> None:
    return None


def _reduced(c: DrafterConfig) -> bool:
    return c.n_vocab_draft < c.n_vocab


def _embd(c: DrafterConfig) -> Shape:
    return (c.n_embd,)


def _head(c: DrafterConfig) -> Shape:
    return (c.head_dim,)


TOKEN_EMBD: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"
D2T: Final = "d2t"

TENSORS: Final[tuple[TensorSpec, ...]] = (
    TensorSpec(D2T, lambda c: (c.n_vocab_draft,), _reduced),
    TensorSpec("enc.output_norm.weight", _embd),
    TensorSpec("fc.weight", lambda c: (c.n_embd, c.n_taps * c.n_embd)),
    # a file without an own embedding or head shares the target's
    TensorSpec(
        OUTPUT, lambda c: (c.n_vocab_draft, c.n_embd), lambda c: True if _reduced(c) else None
    ),
    TensorSpec("output_norm.weight", _embd),
    TensorSpec(
        "selector_hidden.weight",
        lambda c: (c.selector.rank, c.n_embd) if c.selector else (),
        _has_selector,
    ),
    TensorSpec("selector_predecessor.weight", _codebook, _has_selector),
    TensorSpec("selector_successor.weight", _codebook, _has_selector),
    TensorSpec(TOKEN_EMBD, lambda c: (c.n_vocab, c.n_embd), _maybe),
    TensorSpec("blk.{i}.attn_conv_base", _conv_base, _has_selector),
    TensorSpec("blk.{i}.attn_conv_proj.weight", _conv_proj, _has_selector),
    TensorSpec("blk.{i}.attn_k.weight", lambda c: (c.n_head_kv * c.head_dim, c.n_embd)),
    TensorSpec("blk.{i}.attn_k_norm.weight", _head),
    TensorSpec("blk.{i}.attn_norm.weight", _embd),
    TensorSpec("blk.{i}.attn_output.weight", lambda c: (c.n_embd, c.n_head * c.head_dim)),
    TensorSpec("blk.{i}.attn_q.weight", lambda c: (c.n_head * c.head_dim, c.n_embd)),
    TensorSpec("blk.{i}.attn_q_norm.weight", _head),
    TensorSpec(
        "blk.{i}.attn_sinks.weight", lambda c: (c.n_head,), lambda c: c.attention_sinks or None
    ),
    TensorSpec("blk.{i}.attn_v.weight", lambda c: (c.n_head_kv * c.head_dim, c.n_embd)),
    TensorSpec("blk.{i}.ffn_conv_base", _conv_base, _has_selector),
    TensorSpec("blk.{i}.ffn_conv_proj.weight", _conv_proj, _has_selector),
    TensorSpec("blk.{i}.ffn_down.weight", lambda c: (c.n_embd, c.n_ff)),
    TensorSpec("blk.{i}.ffn_gate.weight", lambda c: (c.n_ff, c.n_embd)),
    TensorSpec("blk.{i}.ffn_norm.weight", _embd),
    TensorSpec("blk.{i}.ffn_up.weight", lambda c: (c.n_ff, c.n_embd)),
)
