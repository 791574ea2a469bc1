"""Hugging Face tensor names -> GGUF names. One table; a new layout adds rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from convert_error import ConvertError
from gguf_schema import TENSORS, Shape
from hf_config import DrafterConfig
from hf_weights import FLOATS, StoredTensor

# "{i}" is the layer; a leading "model." is stripped before the look-up
HF_NAMES: Final[Mapping[str, str]] = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
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
    "layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
    "layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
    "layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
    "layers.{i}.attention_conv.base_kernel": "blk.{i}.attn_conv_base",
    "layers.{i}.attention_conv.kernel_projection.weight": "blk.{i}.attn_conv_proj.weight",
    "layers.{i}.mlp_conv.base_kernel": "blk.{i}.ffn_conv_base",
    "layers.{i}.mlp_conv.kernel_projection.weight": "blk.{i}.ffn_conv_proj.weight",
}
_LAYER: Final = re.compile(r"^layers\.(0|[1-9][0-9]{0,3})\.")


@dataclass(frozen=True)
class MappedTensor:
    """A tensor of the file to write, with where its values come from."""

    name: str
    shape: Shape  # torch order
    source: StoredTensor


def gguf_name(name: str) -> str | None:
    """The GGUF name of a checkpoint tensor, None when the table has none."""
    name = name.removeprefix("model.")
    match = _LAYER.match(name)
    if match is None:
        return HF_NAMES.get(name)
    mapped = HF_NAMES.get(f"layers.{{i}}.{name[match.end() :]}")
    return None if mapped is None else mapped.replace("{i}", match.group(1))


def _expected(config: DrafterConfig) -> dict[str, tuple[Shape, bool]]:
    """GGUF name -> (shape, required) in the order of the file: whole-model tensors, then layers."""
    table: dict[str, tuple[Shape, bool]] = {}
    for spec in TENSORS:
        if "{i}" not in spec.name:
            table[spec.name] = spec.shape(config), spec.required(config)
    for i in range(config.n_layer):
        for spec in TENSORS:
            if "{i}" in spec.name:
                table[spec.name.replace("{i}", str(i))] = spec.shape(config), spec.required(config)
    return table


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def map_tensors(
    checkpoint: Mapping[str, StoredTensor], config: DrafterConfig, where: str
) -> list[MappedTensor]:
    """Every tensor of the file to write, in its order.

    Raises ConvertError when a tensor is missing, is not known, or has another shape or dtype.
    """
    found: dict[str, StoredTensor] = {}
    unknown = []
    for name, tensor in checkpoint.items():
        mapped = gguf_name(name)
        if mapped is None:
            unknown.append(name)
        elif mapped in found:
            raise ConvertError(f"{where}: {name}: the same tensor as {found[mapped].name}")
        else:
            found[mapped] = tensor
    expected = _expected(config)
    unknown += [found[name].name for name in found.keys() - expected.keys()]
    if unknown:
        raise ConvertError(
            f"{where}: expected only tensors of a {config.n_layer}-layer {config.architecture}, "
            f"got {_some(unknown)}; dropping them would lower acceptance silently"
        )
    missing = [n for n, (_, required) in expected.items() if required and n not in found]
    if missing:
        raise ConvertError(f"{where}: expected a tensor for {_some(missing)}, got none")

    tensors = []
    for name, (shape, required) in expected.items():
        if name not in found:
            continue
        source = found[name]
        if not required:
            raise ConvertError(f"{where}: {source.name}: {config.architecture} has no such tensor")
        if source.shape != shape:
            raise ConvertError(
                f"{where}: {source.name}: expected shape {list(shape)}, got {list(source.shape)}"
            )
        if source.dtype not in FLOATS:
            raise ConvertError(
                f"{where}: {source.name}: expected {', '.join(FLOATS)}, got {source.dtype}; "
                "convert the original, unquantized checkpoint"
            )
        tensors.append(MappedTensor(name, shape, source))
    return tensors
