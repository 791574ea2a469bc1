"""A target's sizes and weights from a GGUF file or a Hugging Face directory.

GGUF tensors are dequantized exactly, so that the features are those of the deployed file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors import safe_open

from training.training_error import TrainingError

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# ours, GGUF, Hugging Face; linear weights are (n_out, n_in)
LAYER_TENSORS = (
    ("attn_norm", "attn_norm.weight", "input_layernorm.weight"),
    ("q", "attn_q.weight", "self_attn.q_proj.weight"),
    ("k", "attn_k.weight", "self_attn.k_proj.weight"),
    ("v", "attn_v.weight", "self_attn.v_proj.weight"),
    ("o", "attn_output.weight", "self_attn.o_proj.weight"),
    ("ffn_norm", "ffn_norm.weight", "post_attention_layernorm.weight"),
    ("gate", "ffn_gate.weight", "mlp.gate_proj.weight"),
    ("up", "ffn_up.weight", "mlp.up_proj.weight"),
    ("down", "ffn_down.weight", "mlp.down_proj.weight"),
)
OPTIONAL_TENSORS = (
    ("q_bias", "attn_q.bias", "self_attn.q_proj.bias"),
    ("k_bias", "attn_k.bias", "self_attn.k_proj.bias"),
    ("v_bias", "attn_v.bias", "self_attn.v_proj.bias"),
    ("q_norm", "attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("k_norm", "attn_k_norm.weight", "self_attn.k_norm.weight"),
)

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TargetConfig:
    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    rope_theta: float
    rms_eps: float


@dataclass(frozen=True)
class TargetWeights:
    """F32 on the CPU. `head` is `embed` itself where the two are tied."""

    config: TargetConfig
    embed: torch.Tensor  # (n_vocab, n_embd)
    head: torch.Tensor  # (n_vocab, n_embd)
    norm: torch.Tensor  # (n_embd,)
    layers: list[Weights]


def load_weights(path: Path) -> TargetWeights:
    """
    Raises:
        TrainingError: not a model, an architecture that we do not run, or a missing tensor.
    """
    if path.is_dir():
        return _from_directory(path)
    if not path.is_file():
        raise TrainingError(f"{path}: expected a GGUF file or a model directory, found nothing")
    return _from_gguf(path)


def _from_gguf(path: Path) -> TargetWeights:
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, OSError, IndexError) as e:
        raise TrainingError(f"{path}: not a readable GGUF file: {e}") from e
    tensors = {t.name: t for t in reader.tensors}

    def value(key: str, default: Any = None) -> Any:
        field = reader.get_field(key)
        if field is None and default is None:
            raise TrainingError(f"{path}: expected the key {key}, found none")
        return default if field is None else field.contents()

    arch = value("general.architecture")
    _check_architecture(path, arch)
    if f"{arch}.rope.scaling.type" in reader.fields or "rope_freqs.weight" in tensors:
        raise TrainingError(f"{path}: rope scaling is not supported; use a target without it")
    n_head = int(value(f"{arch}.attention.head_count"))
    n_embd = int(value(f"{arch}.embedding_length"))

    def get(name: str) -> torch.Tensor | None:
        if name not in tensors:
            return None
        t = tensors[name]
        return torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()).float()

    embed = _required(path, get, "token_embd.weight")
    config = TargetConfig(
        name=str(value("general.name", path.stem)),
        n_layer=int(value(f"{arch}.block_count")),
        n_embd=n_embd,
        n_ff=int(value(f"{arch}.feed_forward_length")),
        n_head=n_head,
        n_head_kv=int(value(f"{arch}.attention.head_count_kv", n_head)),
        head_dim=int(value(f"{arch}.attention.key_length", n_embd // n_head)),
        n_vocab=len(embed),
        n_ctx=int(value(f"{arch}.context_length")),
        rope_theta=float(value(f"{arch}.rope.freq_base", 10000.0)),
        rms_eps=float(value(f"{arch}.attention.layer_norm_rms_epsilon")),
    )
    layers = [_layer(path, get, f"blk.{i}.", 1) for i in range(config.n_layer)]
    if arch == "llama":
        for layer in layers:
            layer["q"] = _half_rotation(layer["q"], config.n_head)
            layer["k"] = _half_rotation(layer["k"], config.n_head_kv)
    head = embed if get("output.weight") is None else _required(path, get, "output.weight")
    return TargetWeights(config, embed, head, _required(path, get, "output_norm.weight"), layers)


def _from_directory(path: Path) -> TargetWeights:
    try:
        raw = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise TrainingError(f"{path}: expected a readable config.json: {e}") from e
    _check_architecture(path, raw.get("model_type"))
    rope = raw.get("rope_parameters") or {}
    if raw.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise TrainingError(f"{path}: rope scaling is not supported; use a target without it")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise TrainingError(f"{path}: expected *.safetensors, found none")
    opened = [safe_open(file, framework="pt") for file in files]
    where = {name: file for file in opened for name in file.keys()}  # noqa: SIM118

    def get(name: str) -> torch.Tensor | None:
        return where[name].get_tensor(name).float() if name in where else None

    embed = _required(path, get, "model.embed_tokens.weight")
    config = TargetConfig(
        name=path.resolve().name,
        n_layer=int(raw["num_hidden_layers"]),
        n_embd=int(raw["hidden_size"]),
        n_ff=int(raw["intermediate_size"]),
        n_head=int(raw["num_attention_heads"]),
        n_head_kv=int(raw.get("num_key_value_heads") or raw["num_attention_heads"]),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]),
        n_vocab=len(embed),
        n_ctx=int(raw["max_position_embeddings"]),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rms_eps=float(raw["rms_norm_eps"]),
    )
    layers = [_layer(path, get, f"model.layers.{i}.", 2) for i in range(config.n_layer)]
    head = embed if get("lm_head.weight") is None else _required(path, get, "lm_head.weight")
    return TargetWeights(config, embed, head, _required(path, get, "model.norm.weight"), layers)


Getter = Callable[[str], "torch.Tensor | None"]


def _check_architecture(path: Path, arch: Any) -> None:
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise TrainingError(f"{path}: expected an architecture of {known}, got {arch!r}")


def _required(path: Path, get: Getter, name: str) -> torch.Tensor:
    tensor = get(name)
    if tensor is None:
        raise TrainingError(f"{path}: expected the tensor {name}, found none")
    return tensor


def _layer(path: Path, get: Getter, prefix: str, column: int) -> Weights:
    layer = {row[0]: _required(path, get, prefix + row[column]) for row in LAYER_TENSORS}
    for row in OPTIONAL_TENSORS:
        tensor = get(prefix + row[column])
        if tensor is not None:
            layer[row[0]] = tensor
    return layer


def _half_rotation(weight: torch.Tensor, n_head: int) -> torch.Tensor:
    """Undoes the row order that llama-architecture files use for interleaved rope."""
    rows, width = weight.shape
    return weight.view(n_head, rows // n_head // 2, 2, width).transpose(1, 2).reshape(rows, width)
