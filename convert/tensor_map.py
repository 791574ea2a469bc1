"""Hugging Face tensor names -> GGUF names. One table; a new layout adds rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from convert_error import ConvertError
from gguf_schema import D2T, TENSORS, Shape
from hf_config import DrafterConfig
from hf_weights import FLOATS, StoredTensor
from tensor_source import TensorSource, pad_rows, permute_rope, token_ids

# "{i}" is the layer; a leading "model." is stripped before the look-up
HF_NAMES: Final[Mapping[str, str]] = {
    "fc.weight": "fc.weight",
    "encoder.fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "encoder.output_norm_enc.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "d2t": "d2t",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.predecessor_codebook.weight": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.successor_codebook.weight": "selector_successor.weight",
    "layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
    "layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
    "layers.{i}.self_attn.k_proj.weight": "blk.{i}.attn_k.weight",
    "layers.{i}.self_attn.v_proj.weight": "blk.{i}.attn_v.weight",
    "layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
    "layers.{i}.self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.self_attn.sinks": "blk.{i}.attn_sinks.weight",
    "layers.{i}.self_attn.attention_sink_bias": "blk.{i}.attn_sinks.weight",
    "layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
    "layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
    "layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
    "layers.{i}.attention_conv.base_kernel": "blk.{i}.attn_conv_base",
    "layers.{i}.attention_conv.kernel_projection.weight": "blk.{i}.attn_conv_proj.weight",
    "layers.{i}.mlp_conv.base_kernel": "blk.{i}.ffn_conv_base",
    "layers.{i}.mlp_conv.kernel_projection.weight": "blk.{i}.ffn_conv_proj.weight",
}

# of training only, or the target's own
UNUSED: Final = re.compile(
    r"t2d|verifier_(?:norm|lm_head)\.weight|rotary_emb\.inv_freq|"
    r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)
_LAYER: Final = re.compile(r"layers\.(0|[1-9][0-9]{0,3})\.")
_ROPED: Final = re.compile(r"blk\.\d+\.attn_[qk](?:_norm)?\.weight")
_CODEBOOKS: Final = ("selector_predecessor.weight", "selector_successor.weight")


@dataclass(frozen=True)
class MappedTensor:
    """A tensor of the file to write, with where its values come from."""

    name: str
    source: TensorSource

    @property
    def shape(self) -> Shape:
        """Torch order."""
        return self.source.shape


def gguf_name(name: str) -> str | None:
    """The GGUF name of a checkpoint tensor, None when the table has none."""
    match = _LAYER.match(name)
    if match is None:
        return HF_NAMES.get(name)
    mapped = HF_NAMES.get(f"layers.{{i}}.{name[match.end() :]}")
    return None if mapped is None else mapped.replace("{i}", match.group(1))


def expected_tensors(config: DrafterConfig) -> Iterator[tuple[str, Shape, bool | None]]:
    """(GGUF name, shape, needed) in the order of the file: whole-model tensors, then layers."""
    for spec in TENSORS:
        if "{i}" not in spec.name:
            yield spec.name, spec.shape(config), spec.needed(config)
    for i in range(config.n_layer):
        for spec in TENSORS:
            if "{i}" in spec.name:
                name = spec.name.replace("{i}", str(i))
                yield name, spec.shape(config), spec.needed(config)


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _rename(
    checkpoint: Mapping[str, StoredTensor], config: DrafterConfig, where: str
) -> dict[str, StoredTensor]:
    """The checkpoint's tensors by GGUF name; refuses what the file could not hold."""
    allowed = {name for name, _, needed in expected_tensors(config) if needed is not False}
    found: dict[str, StoredTensor] = {}
    unknown = []
    for name, tensor in checkpoint.items():
        plain = name.removeprefix("model.")
        if UNUSED.fullmatch(plain):
            continue
        mapped = gguf_name(plain)
        full_head = mapped == D2T and D2T not in allowed and len(tensor.shape) == 1
        if full_head and not tensor.read(0, 1).any():
            continue  # every row is its own token
        if mapped not in allowed:
            unknown.append(name)
        elif mapped in found:
            raise ConvertError(f"{where}: {name}: the same tensor as {found[mapped].name}")
        else:
            found[mapped] = tensor
    if unknown:
        raise ConvertError(
            f"{where}: expected only tensors of a {config.n_layer}-layer {config.architecture}, "
            f"got {_some(unknown)}; dropping them would lower acceptance silently"
        )
    return found


def _absolute_ids(offsets: StoredTensor, config: DrafterConfig) -> TensorSource:
    """speculators stores the distance of each row's target token id from the row."""
    if offsets.dtype not in ("I64", "I32"):
        raise ConvertError(f"{offsets.where}: expected I64, got {offsets.dtype}")
    ids = offsets.read(0, 1).ravel().astype(np.int64)
    return token_ids(ids + np.arange(ids.size), config.n_vocab, offsets.where)


def _transform(name: str, source: StoredTensor, config: DrafterConfig) -> TensorSource:
    """What llama.cpp expects to find already done in the file."""
    if name == D2T:
        return _absolute_ids(source, config)
    if source.dtype not in FLOATS:
        raise ConvertError(
            f"{source.where}: expected {', '.join(FLOATS)}, got {source.dtype}; "
            "convert the original, unquantized checkpoint"
        )
    if name in _CODEBOOKS and config.selector and config.selector.n_rows < config.n_vocab:
        return pad_rows(source, config.n_vocab)
    if config.rope_interleaved and _ROPED.fullmatch(name):
        return permute_rope(source, config.head_dim)
    return source


def map_tensors(
    checkpoint: Mapping[str, StoredTensor], config: DrafterConfig, where: str
) -> list[MappedTensor]:
    """Every tensor of the file to write, in its order.

    Raises ConvertError when a tensor is missing, is not known, or has another shape or dtype.
    """
    found = _rename(checkpoint, config, where)
    expected = list(expected_tensors(config))
    if missing := [name for name, _, needed in expected if needed and name not in found]:
        raise ConvertError(f"{where}: expected a tensor for {_some(missing)}, got none")
    tensors = []
    for name, shape, _ in expected:
        if name not in found:
            continue
        source = found[name]
        stored = shape
        if name in _CODEBOOKS and config.selector:
            stored = (config.selector.n_rows, *shape[1:])
        if source.shape != stored:
            raise ConvertError(
                f"{source.where}: expected shape {list(stored)}, got {list(source.shape)}"
            )
        tensors.append(MappedTensor(name, _transform(name, source, config)))
    return tensors
