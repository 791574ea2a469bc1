"""A drafter file against the checkpoint that it was converted from: tensors and config values."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash2._native import core
from dflash2.doctor.finding import Finding, fault, note
from dflash2.doctor.gguf_file import Floats, GgufFile
from dflash2.errors import ModelFormatError

MAX_ERROR = 0.35  # RMS of the difference over RMS of the values; another tensor gives 1.4
MAX_HEADER = 100 << 20
STORAGE = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}

GLOBAL = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
}
OF_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}


class Checkpoint:
    """config.json and *.safetensors of a folder.

    Raises:
        OSError: a file cannot be read.
        ModelFormatError: a file is malformed.
    """

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = _json(folder / "config.json")
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{folder}: expected *.safetensors, found none")
        self.tensors = {name: tensor for file in files for name, tensor in _tensors(file)}

    def value(self, *names: str) -> Any:
        """The first of these keys, at the top or in dflash_config or rope_parameters."""
        places = [self.config.get(k) or {} for k in ("dflash_config", "rope_parameters")]
        for place in (*places, self.config):
            for name in names:
                if place.get(name) is not None:
                    return place[name]
        return None


@dataclass(frozen=True)
class _Stored:
    path: Path
    dtype: str
    begin: int
    size: int

    def floats(self) -> Floats:
        kind = np.dtype(STORAGE[self.dtype])
        raw = np.fromfile(self.path, kind, self.size // kind.itemsize, offset=self.begin)
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32)


def compare_with(folder: Path, file: GgufFile, hparams: core._HParams) -> list[Finding]:
    """What differs. Errors as for Checkpoint."""
    checkpoint = Checkpoint(folder)
    return [*_config(checkpoint, hparams), *_values(checkpoint, file)]


def _config(checkpoint: Checkpoint, hp: core._HParams) -> Iterator[Finding]:
    layers = checkpoint.value("target_layer_ids")
    types = checkpoint.value("layer_types") or []
    slides = "sliding_attention" in types
    expected: list[tuple[str, str, Any, Any]] = [
        ("config", "block_size", checkpoint.value("block_size"), hp["block_size"]),
        ("mask", "mask token", checkpoint.value("mask_token_id"), hp["mask_token_id"]),
        ("rope", "RoPE base", checkpoint.value("rope_theta"), hp["rope_freq_base"]),
        ("selector", "selector_rank", checkpoint.value("selector_rank"), hp["selector_rank"]),
        ("selector", "selector_top_k", checkpoint.value("selector_top_k"), hp["selector_top_k"]),
        ("logit scale", "logit scale", checkpoint.value("output_multiplier"), hp["logit_scale"]),
        (
            "embedding scale",
            "embedding scale",
            checkpoint.value("input_embedding_scale"),
            hp["embedding_scale"],
        ),
        ("attention", "causal", checkpoint.value("is_causal"), hp["causal"]),
        (
            "window",
            "sliding window",
            checkpoint.value("sliding_window") if slides else 0 if types else None,
            hp["sliding_window"],
        ),
        (
            "taps",
            "tapped layers (target_layer_ids + 1)",
            None if layers is None else [layer + 1 for layer in layers],
            list(hp["target_layers"]),
        ),
    ]
    for stage, what, of_checkpoint, of_file in expected:
        if of_checkpoint is not None and not _same(of_checkpoint, of_file):
            text = f"{what}: the checkpoint has {of_checkpoint}, the file {of_file}"
            yield fault("reference", f"{text} ({stage})")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-5))
    return bool(a == b)


def _values(checkpoint: Checkpoint, file: GgufFile) -> Iterator[Finding]:
    missing = []
    for name in file.names:
        stored = _find(checkpoint.tensors, _name(name))
        if stored is None:
            missing.append(name)
            continue
        ours, theirs = file.floats(name).ravel(), stored.floats()
        if ours.size != theirs.size:
            yield fault(
                "reference",
                f"{name}: the checkpoint's {_name(name)} has {theirs.size} values, "
                f"the file's {ours.size}",
            )
        elif (error := _error(ours, theirs)) > MAX_ERROR:
            other = _match(checkpoint, ours, _name(name))
            holds = f"; it holds {other}" if other else ""
            yield fault(
                "reference",
                f"{name} is not the checkpoint's {_name(name)}{holds}",
                f"relative RMS error {error:.2f}",
            )
    if missing:
        shown = ", ".join(missing[:4])
        yield note("reference", f"{len(missing)} tensors are not in the checkpoint: {shown}")


def _name(name: str) -> str:
    parts = name.split(".", 2)
    if parts[0] == "blk":
        return f"layers.{parts[1]}.{OF_LAYER.get(parts[2], parts[2])}"
    return GLOBAL.get(name, name)


def _find(tensors: Mapping[str, _Stored], name: str) -> _Stored | None:
    """Some exports add a prefix, or a suffix to the codebooks."""
    for prefix in ("", "model."):
        for suffix in ("", ".weight"):
            if prefix + name + suffix in tensors:
                return tensors[prefix + name + suffix]
    return None


def _error(ours: Floats, theirs: Floats) -> float:
    if not np.isfinite(ours).all():
        return float("inf")
    scale = float(np.sqrt(np.mean(theirs.astype(np.float64) ** 2)))
    difference = float(np.sqrt(np.mean((ours.astype(np.float64) - theirs) ** 2)))
    return difference / scale if scale > 0 else difference


def _match(checkpoint: Checkpoint, ours: Floats, name: str) -> str:
    """Another tensor of the checkpoint that has these values; "" for none."""
    for other, stored in checkpoint.tensors.items():
        size = stored.size // np.dtype(STORAGE[stored.dtype]).itemsize
        if other != name and size == ours.size and _error(ours, stored.floats()) <= MAX_ERROR:
            return other
    return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ModelFormatError(f"{path}: expected JSON: {e}") from e
    if not isinstance(found, dict):
        raise ModelFormatError(f"{path}: expected a JSON object")
    return found


def _tensors(path: Path) -> Iterator[tuple[str, _Stored]]:
    """Floating-point tensors of a safetensors file."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = f.read(8)
        n = struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER + 1
        if n > min(MAX_HEADER, size - 8):
            raise ModelFormatError(f"{path}: expected a safetensors file")
        try:
            table = json.loads(f.read(n))
            for name, entry in table.items():
                if name != "__metadata__" and entry["dtype"] in STORAGE:
                    begin, end = (int(x) + 8 + n for x in entry["data_offsets"])
                    if not 8 + n <= begin <= end <= size:
                        raise ModelFormatError(f"{path}: {name}: the file ends before its data")
                    yield name, _Stored(path, entry["dtype"], begin, end - begin)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            if isinstance(e, ModelFormatError):
                raise
            raise ModelFormatError(f"{path}: malformed safetensors header: {e}") from e
