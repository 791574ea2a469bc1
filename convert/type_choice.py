"""Which ggml type each tensor gets: llama.cpp's own choice, then recipes and overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from convert_error import ConvertError
from dflash2._native import core
from gguf import LlamaFileType
from gguf_schema import Shape
from hf_config import DrafterConfig
from tensor_map import MappedTensor
from tensor_types import PLAIN, block_size

FILE_TYPES: Final[Mapping[str, LlamaFileType]] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q6_k": LlamaFileType.MOSTLY_Q6_K,
    "q5_k_m": LlamaFileType.MOSTLY_Q5_K_M,
    "q5_k_s": LlamaFileType.MOSTLY_Q5_K_S,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
    "q4_k_s": LlamaFileType.MOSTLY_Q4_K_S,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "iq4_nl": LlamaFileType.MOSTLY_IQ4_NL,
    "iq4_xs": LlamaFileType.MOSTLY_IQ4_XS,
    "q3_k_m": LlamaFileType.MOSTLY_Q3_K_M,
    "q2_k": LlamaFileType.MOSTLY_Q2_K,
}

# tensor type -> the file type that gives it to an ordinary tensor
TENSOR_TYPES: Final[Mapping[str, str]] = {
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "q8_0": "Q8_0",
    "q6_K": "Q6_K",
    "q5_K": "Q5_K_S",
    "q5_1": "Q5_1",
    "q5_0": "Q5_0",
    "q4_K": "Q4_K_S",
    "q4_1": "Q4_1",
    "q4_0": "Q4_0",
    "iq4_nl": "IQ4_NL",
    "iq4_xs": "IQ4_XS",
    "q3_K": "Q3_K_S",
    "q2_K": "Q2_K",
}
_ORDINARY: Final = "fc.weight"  # a name that llama-quantize gives the file type's base type


@dataclass(frozen=True)
class Override:
    """Tensors whose name the pattern finds get this type."""

    pattern: re.Pattern[str]
    type: str


# Small tensors that the path through the lattice, the features or the convolutions hang on. The
# attention and feed-forward matrices keep the file type's choice; they are most of the bytes.
RECIPES: Final[Mapping[str, tuple[Override, ...]]] = {
    "drafter": (Override(re.compile(r"^fc\.|^selector_|_conv_proj\."), "q8_0"),),
}


def parse_override(text: str) -> Override:
    """REGEX=TYPE, as llama-quantize --tensor-type takes it."""
    pattern, separator, name = text.rpartition("=")
    if not separator or not pattern:
        raise ConvertError(f"tensor-type: expected REGEX=TYPE, got {text!r}")
    known = {t.lower(): t for t in TENSOR_TYPES}
    if name.lower() not in known:
        raise ConvertError(
            f"tensor-type: {pattern}: expected a type of {', '.join(TENSOR_TYPES)}, got {name!r}"
        )
    try:
        return Override(re.compile(pattern), known[name.lower()])
    except re.error as e:
        raise ConvertError(f"tensor-type: {pattern}: expected a regular expression, {e}") from e


def stays_f32(name: str, shape: Shape) -> bool:
    """Upstream's rule: vectors, norms and names without `.weight` are never converted."""
    return len(shape) < 2 or name.endswith("_norm.weight") or not name.endswith(".weight")


def _ggml_choice(
    file_type: str,
    tensors: Iterable[tuple[str, Shape]],
    config: DrafterConfig,
    *,
    has_imatrix: bool = False,
) -> list[str]:
    """What llama-quantize would give each tensor (name, torch-order shape)."""
    chosen = core.quantize_types(
        file_type,
        [(name, shape[::-1]) for name, shape in tensors],
        n_embd=config.n_embd,
        n_ff=config.n_ff,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_head_kv=config.n_head_kv,
        head_dim=config.head_dim,
        has_imatrix=has_imatrix,
    )
    return [name or "f32" for name in chosen]


def _fitting(type_name: str, shape: Shape, config: DrafterConfig) -> str:
    """The type, or llama-quantize's fallback when rows are not a multiple of its block."""
    if shape[-1] % block_size(type_name) == 0:
        return type_name
    return _ggml_choice(TENSOR_TYPES[type_name], [(_ORDINARY, shape)], config)[0]


def choose_types(
    tensors: Sequence[MappedTensor],
    outtype: str,
    config: DrafterConfig,
    *,
    recipe: str | None = None,
    overrides: Sequence[Override] = (),
    has_imatrix: bool = False,
) -> list[str]:
    """The ggml type name of each tensor.

    Without recipe and overrides: what convert_hf_to_gguf and llama-quantize choose. An override
    wins over the recipe, the first that matches over later ones; recipes leave f32, f16 and bf16
    alone.
    Raises ConvertError when an override matches no tensor that may be converted.
    """
    if recipe is not None and recipe not in RECIPES:
        raise ConvertError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")
    if outtype in PLAIN:
        types = ["f32" if stays_f32(t.name, t.shape) else outtype for t in tensors]
    else:
        named = [(t.name, t.shape) for t in tensors]
        types = _ggml_choice(outtype.upper(), named, config, has_imatrix=has_imatrix)
    rules = list(overrides)
    if recipe is not None and outtype not in PLAIN:
        rules += RECIPES[recipe]
    used = set()
    for i, tensor in enumerate(tensors):
        if tensor.source.dtype == "I64":
            types[i] = "i64"
        if tensor.source.dtype == "I64" or stays_f32(tensor.name, tensor.shape):
            continue
        rule = next((r for r in rules if r.pattern.search(tensor.name)), None)
        if rule is not None:
            used.add(rule)
            types[i] = _fitting(rule.type, tensor.shape, config)
    for override in overrides:
        if override not in used:
            pattern = override.pattern.pattern
            raise ConvertError(f"tensor-type: {pattern}: expected tensors of that name, found none")
    return types
