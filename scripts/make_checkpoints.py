#!/usr/bin/env python3
"""Synthetic drafter checkpoints of every published layout, with a target that fits them all.

Small, but in the proportions of the real ones. `--real` writes Qwen3.8-27B-DFlash2 in its real
shapes instead (81 tensors, 3.85 GB) and a target with a vocabulary of its size.

    python scripts/make_checkpoints.py DIR [--layout NAME] [--real]
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tiny_drafter
from make_tiny_models import MASK, make_tiny_target
from numpy.typing import NDArray
from tiny_drafter import dflash1, shapes, speculators_dflash, to_bf16, torch_file, weights

N_VOCAB = 512
N_EMBD = 256
N_TARGET_LAYERS = 10
SIZES: dict[str, Any] = {"vocab_size": N_VOCAB, "num_target_layers": N_TARGET_LAYERS}
MIXED = ["sliding_attention", "full_attention"]
SWA = {"use_sliding_window": True, "is_causal": False}

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """shards: tensors by file name, one file without an index when there is only one.

    files: others by name. folder: inside the checkpoint. upstream: llama.cpp's converter takes the
    layout. engine: our engine runs it.
    """

    config: dict[str, Any]
    shards: dict[str, Tensors]
    files: dict[str, bytes] = field(default_factory=dict)
    folder: str = "."
    upstream: bool = True
    engine: bool = True


def _config(**changes: Any) -> dict[str, Any]:
    nested = {"mask_token_id": MASK, **changes.pop("dflash_config", {})}
    return tiny_drafter.config(**SIZES, **changes, dflash_config=nested)


def _dflash1(**changes: Any) -> dict[str, Any]:
    nested = {"mask_token_id": MASK, **changes.pop("dflash_config", {})}
    return dflash1(**SIZES, **changes, dflash_config=nested)


def _matrix(n_rows: int, seed: int) -> NDArray[np.uint16]:
    values = np.random.default_rng(seed).normal(0, 0.05, (n_rows, N_EMBD))
    return to_bf16(values.astype(np.float32))


def _one(config: dict[str, Any], tensors: Tensors | None = None, **more: Any) -> Checkpoint:
    data = dict(weights(config)) if tensors is None else tensors
    return Checkpoint(config, {"model.safetensors": data}, **more)


def _muse() -> Checkpoint:
    scale = {"output_multiplier": 0.19611613513818404, "final_logit_softcapping": 20.0}
    return _one(_config(dflash_config={"block_size": 16, **scale}))


def _glm_9_taps() -> Checkpoint:
    config = _config(
        layer_types=["full_attention"] * 2,
        dflash_config={"target_layer_ids": list(range(9))},
    )
    tensors: Tensors = dict(weights(config))
    tensors |= {"embed_tokens.weight": _matrix(N_VOCAB, 1), "lm_head.weight": _matrix(N_VOCAB, 2)}
    row = np.random.default_rng(3).normal(0, 0.05, N_EMBD).astype(np.float32)
    mask = torch_file({"mask_token_id": MASK, "embedding": row})
    return _one(config, tensors, files={"mask_embedding.pt": mask})


def _small_codebooks() -> Checkpoint:
    config = _config(layer_types=MIXED, dflash_config={"selector_vocab_size": N_VOCAB - 8})
    return _one(config, upstream=False)


def _nemo() -> Checkpoint:
    config = _config(architectures=["Qwen3DFlash2DraftModel"], is_causal=None)
    return _one(config, upstream=False)


def _speculators_dflash2() -> Checkpoint:
    inner = _config()
    nested = inner.pop("dflash_config")
    taps = nested.pop("target_layer_ids")
    for key in ("architectures", "is_causal", "num_target_layers"):
        inner.pop(key)
    config = {
        "architectures": ["DFlash2DraftModel"],
        "speculators_model_type": "dflash2",
        "transformer_layer_config": inner,
        "aux_hidden_state_layer_ids": [i + 1 for i in taps],
        "draft_vocab_size": N_VOCAB,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        **nested,
    }
    return _one(config, dict(weights(_config())), upstream=False)


def _speculators_dflash() -> Checkpoint:
    config = speculators_dflash(mask_token_id=MASK, draft_vocab_size=64)
    config["transformer_layer_config"] |= SIZES
    rows = np.arange(0, N_VOCAB, N_VOCAB // 64)
    tensors: Tensors = dict(weights(_dflash1()))
    tensors |= {"lm_head.weight": _matrix(64, 4), "d2t": rows - np.arange(64)}
    tensors["t2d"] = np.isin(np.arange(N_VOCAB), rows)
    return _one(config, tensors, upstream=False, engine=False)


def _mimo() -> Checkpoint:
    config = _dflash1(
        layer_types=None,
        use_sliding_window=None,
        partial_rotary_factor=0.5,
        dflash_config={
            "use_swa": True,
            "swa_window_size": 128,
            "attention_sink_bias": True,
            "attention_value_scale": 0.612,
        },
    )
    tensors: Tensors = dict(weights(_dflash1()))
    for i in range(2):
        tensors[f"layers.{i}.self_attn.attention_sink_bias"] = _matrix(1, i).ravel()[:4]
    shards = {"dflash_draft_model.safetensors": tensors}
    return Checkpoint(config, shards, folder="dflash", engine=False)


def _assistant() -> Checkpoint:
    config = _dflash1(architectures=["MuseGlimmerAssistantModel"], use_sliding_window=None)
    config |= config.pop("dflash_config")
    names = {"fc.weight": "encoder.fc.weight"}
    names["hidden_norm.weight"] = "encoder.output_norm_enc.weight"
    tensors = {names.get(n, n): data for n, data in weights(_dflash1()).items()}
    # upstream reads sizes from a target of its own family
    return _one(config, tensors, upstream=False, engine=False)


def _shards() -> Checkpoint:
    config = _config()
    tensors = {
        "model." + (f"{name}.weight" if name.endswith("codebook") else name): data
        for name, data in weights(config).items()
    }
    names = sorted(tensors)
    parts = {"model-00001-of-00002": names[:20], "model-00002-of-00002": names[20:]}
    shards = {f"{n}.safetensors": {t: tensors[t] for t in part} for n, part in parts.items()}
    return Checkpoint(config, shards, upstream=False)


def _sources(dtype: str) -> Checkpoint:
    config = _config()
    data = {n: tiny_drafter.from_bf16(t).astype(dtype) for n, t in weights(config).items()}
    return _one(config, data)


def _yarn() -> Checkpoint:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 50000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    return _one(_config(rope_parameters=rope), engine=False)


LAYOUTS: dict[str, Callable[[], Checkpoint]] = {
    "dflash2": lambda: _one(_config()),
    "dflash2-muse-glimmer": _muse,
    "dflash2-glm-9-taps": _glm_9_taps,
    "dflash2-small-codebooks": _small_codebooks,
    "dflash2-causal": lambda: _one(_config(is_causal=True)),
    "dflash2-yarn": _yarn,
    "dflash2-shards": _shards,
    "dflash2-f16": lambda: _sources("float16"),
    "dflash2-f32": lambda: _sources("float32"),
    "dflash2-nemo": _nemo,
    "dflash2-speculators": _speculators_dflash2,
    "dflash1": lambda: _one(_dflash1(), engine=False),
    "dflash1-mixed": lambda: _one(_dflash1(layer_types=MIXED, **SWA), engine=False),
    "dflash1-mimo": _mimo,
    "dflash1-gemma": lambda: _one(
        _dflash1(dflash_config={"input_embedding_scale": 16.0}), engine=False
    ),
    "dflash1-interleaved-rope": lambda: _one(_dflash1(rope_is_neox_style=False), engine=False),
    "dflash1-speculators": _speculators_dflash,
    "dflash1-muse-assistant": _assistant,
}

# name -> config that no engine of this family runs
REFUSED: dict[str, dict[str, Any]] = {
    "laguna": _config(architectures=["DFlashLagunaForCausalLM"]),
    "dspark": _config(architectures=["Qwen3DSparkModel"]),
    "mla": _config(kv_lora_rank=64),
    "hyper-connections": _config(hc_mult=4),
    "anchor": _config(sample_from_anchor=True),
}

QWEN38_27B: dict[str, Any] = {
    **tiny_drafter.CONFIG,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "num_hidden_layers": 5,
    "num_target_layers": 64,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "max_window_layers": 5,
    "max_position_embeddings": 262144,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}


def make_checkpoint(name: str, directory: Path) -> Path:
    """Writes the checkpoint of a layout; returns its folder."""
    made = LAYOUTS[name]()
    root = directory / name
    folder = root / made.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made.config, indent=1))
    for file, tensors in made.shards.items():
        (folder / file).write_bytes(tiny_drafter.safetensors_bytes(tensors))
    if list(made.shards) != ["model.safetensors"]:
        index = {n: file for file, tensors in made.shards.items() for n in tensors}
        text = json.dumps({"weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
    if folder != root:
        (root / "config.json").write_text(json.dumps({"architectures": ["OtherForCausalLM"]}))
    for file, data in made.files.items():
        (folder / file).write_bytes(data)
    return root


def make_target(directory: Path) -> Path:
    """Writes the llama GGUF that every small layout fits; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    return make_tiny_target(
        directory / "target.gguf", n_layer=N_TARGET_LAYERS, n_embd=N_EMBD, n_vocab=N_VOCAB, n_ff=256
    )


def make_real_checkpoint(directory: Path, *, zeros: bool = False) -> Path:
    """Writes Qwen3.8-27B-DFlash2 in real shapes; returns its folder.

    zeros: a sparse file of them instead of random weights.
    """
    folder = directory / "Qwen3.8-27B-DFlash2"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN38_27B, indent=1))
    header, end = {}, 0
    for name, shape in shapes(QWEN38_27B).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = _matrix(1 << 14, seed=0).tobytes()  # repeated: random numbers are slow
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, 0 if zeros else end, len(block)):
            f.write(block[: end - begin])
        f.truncate(8 + len(text) + end)
    return folder


def make_real_target(directory: Path) -> Path:
    """Writes a target without weights that the real drafter fits; returns its path."""
    return tiny_drafter.write_target(
        directory / "Qwen3.8-27B-Q4_K_M.gguf",
        arch="qwen35",
        pre="qwen35",
        n_vocab=QWEN38_27B["vocab_size"],
        n_layer=64,
        n_embd=5120,
        mrope=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="(default: all)")
    parser.add_argument("--real", action="store_true", help="Qwen3.8-27B-DFlash2 in real shapes")
    args = parser.parse_args()
    if args.real:
        print(make_real_checkpoint(args.directory))
        print(make_real_target(args.directory))
        return
    print(make_target(args.directory))
    for name in args.layout or LAYOUTS:
        print(make_checkpoint(name, args.directory))


if __name__ == "__main__":
    main()
