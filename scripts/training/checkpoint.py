"""Drafters in the published checkpoint layout: config.json and model.safetensors in bf16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from training.drafter import Drafter, DrafterConfig
from training.training_error import TrainingError


def save_checkpoint(drafter: Drafter, directory: Path, selector_scale: float = 1.0) -> None:
    """selector_scale multiplies the pair scores."""
    tensors = {name: p.detach().float().cpu() for name, p in drafter.state_dict().items()}
    tensors["fc.weight"] = tensors["fc.weight"] * drafter.feature_scale.float().cpu()
    tensors["candidate_selector.hidden_projection.weight"] *= selector_scale
    directory.mkdir(parents=True, exist_ok=True)
    bf16 = {name: t.bfloat16().contiguous() for name, t in tensors.items()}
    save_file(bf16, directory / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(_to_json(drafter.config), indent=1)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")


def load_checkpoint(directory: Path) -> Drafter:
    """
    Raises:
        TrainingError: not such a checkpoint, or tensors of other names or shapes.
    """
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config = _from_json(raw)
        tensors = load_file(directory / "model.safetensors")
    except (OSError, ValueError, KeyError) as e:
        raise TrainingError(f"{directory}: expected a DFlash 2 checkpoint: {e!r}") from e
    drafter = Drafter(config)
    try:
        drafter.load_state_dict({name: t.float() for name, t in tensors.items()})
    except RuntimeError as e:
        raise TrainingError(f"{directory}: {' '.join(str(e).split())}") from e
    return drafter


def _to_json(config: DrafterConfig) -> dict[str, Any]:
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head_kv,
        "head_dim": config.head_dim,
        "vocab_size": config.n_vocab,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.n_ctx,
        "use_sliding_window": True,
        "max_window_layers": config.n_layer,
        "sliding_window": config.window,
        "layer_types": ["sliding_attention"] * config.n_layer,
        "is_causal": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "bfloat16",
        "num_target_layers": config.n_target_layer,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "dflash_config": {
            "block_size": config.block_size,
            "mask_token_id": config.mask_id,
            "target_layer_ids": list(config.taps),
            "conv_kernel_size": config.conv_kernel,
            "conv_group_size": config.conv_group,
            "selector_rank": config.rank,
            "selector_top_k": config.top_k,
        },
    }


def _from_json(raw: dict[str, Any]) -> DrafterConfig:
    flash = raw["dflash_config"]
    return DrafterConfig(
        n_layer=raw["num_hidden_layers"],
        n_embd=raw["hidden_size"],
        n_ff=raw["intermediate_size"],
        n_head=raw["num_attention_heads"],
        n_head_kv=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        n_vocab=raw["vocab_size"],
        n_target_layer=raw["num_target_layers"],
        taps=tuple(flash["target_layer_ids"]),
        mask_id=flash["mask_token_id"],
        rope_theta=raw["rope_parameters"]["rope_theta"],
        n_ctx=raw["max_position_embeddings"],
        window=raw.get("sliding_window") or raw["max_position_embeddings"],
        block_size=flash["block_size"],
        conv_kernel=flash["conv_kernel_size"],
        conv_group=flash["conv_group_size"],
        rank=flash["selector_rank"],
        top_k=flash["selector_top_k"],
        rms_eps=raw["rms_norm_eps"],
    )
