"""What the converter needs from the target: vocabulary, sizes, rope kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from convert_error import ConvertError
from dflash2 import gguf_raw
from gguf_schema import (
    ARCH,
    KEY_MASK_TOKEN,
    KEY_TOKEN_TYPE,
    KEY_TOKENS,
    OUTPUT,
    TOKEN_EMBD,
    TOKENIZER_PREFIX,
)
from gguf_source import find_tensor, read_header
from hf_config import DrafterConfig
from tensor_source import TensorSource

_QUANT_SUFFIX: Final = re.compile(
    r"[-._](?:UD-)?(?:I?Q\d\w*|MXFP4\w*|NVFP4\w*|B?F16|F32)(?:-\d{5}-of-\d{5})?$", re.IGNORECASE
)
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK64: Final = 2**64 - 1


@dataclass(frozen=True)
class Target:
    """The target model, as far as a drafter depends on it."""

    path: Path
    name: str
    architecture: str
    n_layer: int
    n_embd: int
    n_vocab: int
    tokenizer: dict[str, gguf_raw.Value]  # every tokenizer.* key, byte for byte, in order
    vocab_hash: int
    uses_mrope: bool
    find_matrix: Callable[[str], TensorSource | None]  # a weight by its GGUF name, (out, in)


def vocab_hash(tokens: Iterable[bytes], types: Iterable[int]) -> int:
    """FNV-1a 64 over text, a zero byte and the type of every token in id order."""
    value = _FNV_OFFSET
    for text, kind in zip(tokens, types, strict=True):
        for byte in text:
            value = (value ^ byte) * _FNV_PRIME & _MASK64
        value = value * _FNV_PRIME & _MASK64  # the zero byte
        value = (value ^ (kind & 0xFF)) * _FNV_PRIME & _MASK64
    return value


def model_stem(path: Path) -> str:
    """The model's name in a file name: without folder, extension, type and shard number."""
    return _QUANT_SUFFIX.sub("", path.name.removesuffix(".gguf"))


def _find_matrix(path: Path, name: str) -> TensorSource | None:
    """A weight; a model without a head of its own uses its embedding as head."""
    found = find_tensor(path, name)
    return find_tensor(path, TOKEN_EMBD) if found is None and name == OUTPUT else found


def read_gguf_target(path: Path) -> Target:
    """Reads a target GGUF's header. Raises ConvertError that names the file and the key."""
    if not path.is_file():
        raise ConvertError(f"{path}: expected a target GGUF file, found none")
    values = read_header(path).values

    def integer(key: str) -> int:
        value = values[key].integer() if key in values else None
        if value is None or not 0 < value < 2**31:
            raise ConvertError(f"{path}: {key}: expected a positive integer, got {value}")
        return value

    arch_value = values.get("general.architecture")
    arch = arch_value.text() if arch_value else None
    if not arch:
        raise ConvertError(f"{path}: general.architecture: expected a name, got nothing")
    if arch == ARCH:
        raise ConvertError(
            f"{path}: general.architecture: expected a target model, got a drafter ({ARCH})"
        )
    tokens = list(values[KEY_TOKENS].strings()) if KEY_TOKENS in values else []
    if not tokens:
        raise ConvertError(
            f"{path}: {KEY_TOKENS}: expected the target's vocabulary, got nothing; "
            "pass the target's (first) GGUF file, not a drafter or projector"
        )
    types = values[KEY_TOKEN_TYPE].integers() if KEY_TOKEN_TYPE in values else [1] * len(tokens)
    if len(types) != len(tokens):
        raise ConvertError(
            f"{path}: {KEY_TOKEN_TYPE}: expected {len(tokens)} items, got {len(types)}"
        )
    return Target(
        path=path,
        name=model_stem(path),
        architecture=arch,
        n_layer=integer(f"{arch}.block_count"),
        n_embd=integer(f"{arch}.embedding_length"),
        n_vocab=len(tokens),
        tokenizer={
            key: value
            for key, value in values.items()
            if key.startswith(TOKENIZER_PREFIX) and key != KEY_MASK_TOKEN
        },
        vocab_hash=vocab_hash(tokens, types),
        uses_mrope=f"{arch}.rope.dimension_sections" in values,
        find_matrix=lambda name: _find_matrix(path, name),
    )


def check_pair(config: DrafterConfig, target: Target, where: str) -> None:
    """Raises ConvertError when the drafter was not made for a target of these sizes."""
    for what, ours, theirs in (
        ("hidden_size", config.n_embd, target.n_embd),
        ("vocab_size", config.n_vocab, target.n_vocab),
    ):
        if ours != theirs:
            raise ConvertError(
                f"{where}: {what}: expected {theirs} as in {target.path.name}, got {ours}; "
                "this drafter belongs to another target"
            )
    if max(config.target_layer_ids) >= target.n_layer:
        raise ConvertError(
            f"{where}: target_layer_ids: expected layers below {target.n_layer} as in "
            f"{target.path.name}, got {max(config.target_layer_ids)}; "
            "this drafter belongs to another target"
        )
