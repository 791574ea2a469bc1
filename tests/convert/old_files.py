"""Copies of GGUF files as other converters would have written them, made with gguf-py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf

Kind = gguf.GGUFValueType
Fields = dict[str, tuple[Any, Kind, Kind | None]]  # value, type, type of array items


def rewrite(
    source: Path,
    out: Path,
    change: Callable[[Fields], None],
    *,
    rename: Mapping[str, str] | None = None,
    without: str = "",
) -> Path:
    """A copy with other metadata, other tensor names, or without one tensor; returns its path."""
    reader = gguf.GGUFReader(source)
    fields: Fields = {}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            item = field.types[-1] if field.types[0] == Kind.ARRAY else None
            fields[key] = (field.contents(), field.types[0], item)
    change(fields)
    architecture = fields.pop("general.architecture")[0]
    writer = gguf.GGUFWriter(out, architecture)
    for key, (value, kind, item) in fields.items():
        writer.add_key_value(key, value, kind, item)
    for tensor in reader.tensors:
        if tensor.name != without:
            name = (rename or {}).get(tensor.name, tensor.name)
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def drop(*keys: str) -> Callable[[Fields], None]:
    """A change that leaves keys out."""

    def change(fields: Fields) -> None:
        for key in keys:
            del fields[key]

    return change


def to_fork(arch: str) -> Callable[[Fields], None]:
    """The schema of the forks that ran DFlash before upstream did."""

    def change(fields: Fields) -> None:
        for key in [key for key in fields if key.startswith(("dflash.", "dflash2."))]:
            value, kind, item = fields.pop(key)
            rest = key.removeprefix("dflash.")
            if key.startswith("dflash2."):
                continue
            if rest == "block_size":
                rest = "dflash.block_size"
            if rest == "target_layers":
                rest, value = "dflash.target_layer_ids", [i - 1 for i in value]
            fields[f"{arch}.{rest}"] = (value, kind, item)
        mask = fields.pop("tokenizer.ggml.mask_token_id")
        fields[f"{arch}.dflash.mask_token_id"] = mask
        fields[f"{arch}.dflash.n_target_features"] = (768, Kind.UINT32, None)
        fields["general.architecture"] = (arch, Kind.STRING, None)

    return change


FORK_TENSORS = {
    "fc.weight": "dflash_fc.weight",
    "enc.output_norm.weight": "dflash_hidden_norm.weight",
    **{f"blk.{i}.ffn_norm.weight": f"blk.{i}.post_attention_norm.weight" for i in range(2)},
}
