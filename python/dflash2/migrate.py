"""Mends drafter files whose metadata alone is wrong; tensor data is copied byte for byte."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from dflash2.errors import IncompatibleModelsError, ModelFormatError
from dflash2.gguf_info import GgufInfo
from dflash2.gguf_raw import Header, Value, f32, i32_array, read_header, string, u32
from dflash2.gguf_write import TensorEntry, check_outfile, header_bytes, sync, temporary_file
from dflash2.load_check import load_error
from dflash2.pairing import mismatches

ARCHITECTURE: Final = "general.architecture"
MASK_TOKEN: Final = "tokenizer.ggml.mask_token_id"
SECTIONS: Final = "dflash.rope.dimension_sections"
EMBEDDING_SCALE: Final = "dflash.embedding_scale"
TARGET_LAYERS: Final = "dflash.target_layers"

# what llama.cpp or the draft graph cannot do without, and cannot be told from the target
NEEDED: Final = (
    "dflash.block_count",
    "dflash.embedding_length",
    "dflash.feed_forward_length",
    "dflash.attention.head_count",
    "dflash.attention.head_count_kv",
    "dflash.attention.key_length",
    "dflash.attention.layer_norm_rms_epsilon",
    "dflash.rope.freq_base",
    "dflash.block_size",
    TARGET_LAYERS,
    MASK_TOKEN,
)

# Forks keep some keys under "ARCH.dflash." and count tapped layers by their outputs.
FORK_DROPPED: Final = ("n_target_layers", "num_target_layers", "n_target_features")
FORK_TENSORS: Final = (
    (r"dflash[_.]fc\.weight", "fc.weight"),
    (r"dflash[_.]hidden_norm\.weight", "enc.output_norm.weight"),
    (r"(blk\.\d+)\.post_attention_norm\.weight", r"\1.ffn_norm.weight"),
)
CHUNK_BYTES: Final = 1 << 22


@dataclass(frozen=True)
class Mended:
    """The header that a file should have, and what was changed, in words; empty when nothing."""

    values: Mapping[str, Value]
    tensors: tuple[TensorEntry, ...]
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Migration:
    """outfile: None when there was nothing to mend. sha256: of the tensor data, in both files."""

    changes: tuple[str, ...]
    outfile: Path | None
    sha256: str


def _entries(header: Header) -> tuple[TensorEntry, ...]:
    return tuple(
        TensorEntry(t.name, t.shape, t.type_id, t.offset - header.data_offset)
        for t in header.tensors.values()
    )


def _put(values: dict[str, Value], key: str, value: Value, path: str) -> None:
    """Sets a key that may be there already, with the same number."""
    old = values.get(key)
    if old is not None and (old.integer(), old.integers()) != (value.integer(), value.integers()):
        raise ModelFormatError(
            f"{path}: {key}: expected one value, got two that differ; convert the checkpoint again"
        )
    values.setdefault(key, value)


def _mend_keys(old: GgufInfo, values: Mapping[str, Value], changes: list[str]) -> dict[str, Value]:
    """Keys of a fork under their upstream names."""
    arch = old.architecture
    nested = any(key.startswith("dflash.dflash.") for key in values)
    if arch == "dflash" and not nested:
        return dict(values)
    result: dict[str, Value] = {}
    for key, value in values.items():
        rest = key.removeprefix(f"{arch}.")
        if rest == key:
            _put(result, key, string("dflash") if key == ARCHITECTURE else value, old.path)
            continue
        rest = rest.removeprefix("dflash.").removeprefix("dflash2.")
        number = value.integer()
        if rest == "mask_token_id" and number is not None and number >= 0:
            _put(result, MASK_TOKEN, u32(number), old.path)
        elif rest == "target_layer_ids":
            layers = tuple(i + 1 for i in value.integers())
            _put(result, TARGET_LAYERS, i32_array(layers), old.path)
            changes.append(f"{TARGET_LAYERS} = {list(layers)}: one above target_layer_ids")
        elif rest not in FORK_DROPPED:
            _put(result, f"dflash.{rest}", value, old.path)
    changes.insert(0, f"{ARCHITECTURE} = dflash, was {arch}; keys and tensors renamed to match")
    return result


def _mend_tensors(tensors: Iterable[TensorEntry]) -> tuple[TensorEntry, ...]:
    def upstream(name: str) -> str:
        for pattern, new in FORK_TENSORS:
            if match := re.fullmatch(pattern, name):
                return match.expand(new)
        return name

    return tuple(replace(t, name=upstream(t.name)) for t in tensors)


def _mend_tokenizer(
    values: dict[str, Value], target: Mapping[str, Value], changes: list[str]
) -> None:
    if "tokenizer.ggml.tokens" in values:
        return
    added = {k: v for k, v in target.items() if k.startswith("tokenizer.") and k != MASK_TOKEN}
    mask = values.pop(MASK_TOKEN, None)
    values.update(added)
    if mask is not None:
        values[MASK_TOKEN] = mask
    changes.append(f"tokenizer: {len(added)} keys copied from the target")


def _mend_target_dependent(values: dict[str, Value], target: GgufInfo, changes: list[str]) -> None:
    def integer(key: str) -> int:
        value = values[key].integer() if key in values else None
        return value or 0

    if SECTIONS not in values and target.uses_mrope:
        sections = (integer("dflash.attention.key_length") // 2, 0, 0, 0)
        values[SECTIONS] = i32_array(sections)
        changes.append(
            f"{SECTIONS} = {list(sections)}: the target has M-RoPE; without it drafting stops at "
            "the first image"
        )
    if EMBEDDING_SCALE not in values and target.architecture.startswith("gemma"):
        scale = math.sqrt(integer("dflash.embedding_length"))
        values[EMBEDDING_SCALE] = f32(scale)
        changes.append(f"{EMBEDDING_SCALE} = {scale:.6g}: Gemma scales its embedding")


def find_mends(old: GgufInfo, target: GgufInfo) -> Mended:
    """What a drafter file lacks for its target.

    Raises:
        ModelFormatError: it is no drafter, or lacks what metadata and target cannot give back.
    """
    if not old.family:
        raise ModelFormatError(f"{old.path}: expected a drafter, got a {old.kind}")
    if target.family:
        raise ModelFormatError(f"{target.path}: expected a target model, got a {target.kind}")
    header = read_header(Path(old.path))
    changes: list[str] = []
    values = _mend_keys(old, header.values, changes)
    tensors = _entries(header)
    if changes:
        tensors = _mend_tensors(tensors)
    _mend_tokenizer(values, read_header(Path(target.path)).values, changes)
    if missing := [key for key in NEEDED if key not in values]:
        raise ModelFormatError(
            f"{old.path}: {missing[0]}: expected a value, got nothing; "
            "metadata alone cannot mend this, convert the checkpoint again"
        )
    _mend_target_dependent(values, target, changes)
    return Mended(values, tensors, tuple(changes))


def _copy(source: BinaryIO, out: BinaryIO | None) -> str:
    """Copies from here to the end; returns the SHA-256 of what was read."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        if out is not None:
            out.write(chunk)
    return digest.hexdigest()


def _data_sha256(path: Path) -> str:
    with path.open("rb") as f:
        f.seek(read_header(path).data_offset)
        return _copy(f, None)


def _verify(temporary: Path, mended: Mended, target: GgufInfo, old: GgufInfo) -> None:
    written = read_header(temporary)
    if written.values != mended.values or _entries(written) != mended.tensors:
        raise OSError(f"{temporary}: read another header than was written")
    info = GgufInfo(temporary)
    found = mismatches(replace(info.draft_facts(), path=old.path), target.target_facts())
    if found:
        raise IncompatibleModelsError(f"{old.path} does not fit {target.path}: {'; '.join(found)}")
    if reason := load_error(temporary):
        raise ModelFormatError(
            f"{old.path}: not mended by metadata alone: {reason}; convert the checkpoint again"
        )


def migrate(
    old: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    outfile: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Migration:
    """Writes a mended copy of a drafter file, or nothing when there is nothing to mend.

    Args:
        old: drafter GGUF.
        target: its target's GGUF.
        outfile: None: OLD-migrated.gguf beside old.
        force: overwrite outfile; it may be old itself.

    Raises:
        OSError: a file cannot be read or written.
        ModelFormatError: old is not a drafter, or metadata alone cannot mend it.
        IncompatibleModelsError: old belongs to another target.
    """
    source, info = Path(old), GgufInfo(old)
    target_info = GgufInfo(target)
    mended = find_mends(info, target_info)
    sha256 = _data_sha256(source)
    if not mended.changes:
        return Migration((), None, sha256)
    path = source.with_name(f"{source.stem}-migrated.gguf") if outfile is None else Path(outfile)
    check_outfile(path, force=force)
    with temporary_file(path, force=force) as temporary:
        header = read_header(source)
        with source.open("rb") as f, temporary.open("xb") as out:
            f.seek(header.data_offset)
            out.write(header_bytes(mended.values, mended.tensors, header.alignment))
            _copy(f, out)
            sync(out)
        copied = _data_sha256(temporary)
        if copied != sha256:
            raise OSError(f"{temporary}: expected tensor data {sha256}, read {copied}")
        _verify(temporary, mended, target_info, info)
    return Migration(mended.changes, path, sha256)
