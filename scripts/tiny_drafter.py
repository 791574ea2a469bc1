"""Tiny drafter checkpoints and targets, written without the converter."""

from __future__ import annotations

import copy
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

N_VOCAB = 96
N_TARGET_LAYERS = 6
MASK_ID = 95

# the published layout at a hundredth of the size; rows are multiples of 256, as K-quants like them
CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": N_VOCAB,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "max_window_layers": 2,
    "use_sliding_window": True,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "is_causal": False,
    "tie_word_embeddings": False,
    "num_target_layers": N_TARGET_LAYERS,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": MASK_ID,
        "target_layer_ids": [1, 3, 4],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 32,
        "selector_top_k": 8,
    },
}

Array = NDArray[Any]


def config(**changes: Any) -> dict[str, Any]:
    """CONFIG with changes; a change to `dflash_config` updates it, None removes a key."""
    result = copy.deepcopy(CONFIG)
    nested = changes.pop("dflash_config", {})
    for scope, news in ((result, changes), (result["dflash_config"], nested)):
        for key, value in news.items():
            if value is None:
                scope.pop(key, None)
            else:
                scope[key] = value
    return result


DFLASH1: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "rope_theta": 1000000,
    "rope_parameters": None,
    "is_causal": None,
    "use_sliding_window": False,
    "dflash_config": {
        "block_size": None,
        "conv_kernel_size": None,
        "conv_group_size": None,
        "selector_rank": None,
        "selector_top_k": None,
    },
}


def dflash1(**changes: Any) -> dict[str, Any]:
    """A DFlash 1 config: flat keys, full attention, no selector."""
    nested = {**DFLASH1["dflash_config"], **changes.pop("dflash_config", {})}
    return config(**{**DFLASH1, **changes, "dflash_config": nested})


def speculators_dflash(**changes: Any) -> dict[str, Any]:
    """A DFlash 1 config as vLLM's speculators library writes it, with a reduced head."""
    inner = dflash1()
    nested = inner.pop("dflash_config")
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": inner,
        "aux_hidden_state_layer_ids": [2, 4, 5],
        "mask_token_id": nested["mask_token_id"],
        "block_size": 8,
        "draft_vocab_size": 4,
        "sliding_window_non_causal": False,
        **changes,
    }


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Truncated to bfloat16 bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def shapes(cfg: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor names and torch shapes of the published layout."""
    d = cfg["dflash_config"]
    n, ff, dim = cfg["hidden_size"], cfg["intermediate_size"], cfg["head_dim"]
    q, kv = cfg["num_attention_heads"] * dim, cfg["num_key_value_heads"] * dim
    result: dict[str, tuple[int, ...]] = {
        "fc.weight": (n, len(d["target_layer_ids"]) * n),
        "hidden_norm.weight": (n,),
        "norm.weight": (n,),
    }
    for i in range(cfg["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": (n,),
            "post_attention_layernorm.weight": (n,),
            "self_attn.q_proj.weight": (q, n),
            "self_attn.k_proj.weight": (kv, n),
            "self_attn.v_proj.weight": (kv, n),
            "self_attn.o_proj.weight": (n, q),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.k_norm.weight": (dim,),
            "mlp.gate_proj.weight": (ff, n),
            "mlp.up_proj.weight": (ff, n),
            "mlp.down_proj.weight": (n, ff),
        }
        if "conv_kernel_size" in d:
            kernel = d["conv_kernel_size"]
            for conv in ("attention_conv", "mlp_conv"):
                layer[f"{conv}.base_kernel"] = (2, kernel, n)
                layer[f"{conv}.kernel_projection.weight"] = (
                    2 * kernel * n // d["conv_group_size"],
                    n,
                )
        result |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    if "selector_rank" in d:
        rows = d.get("selector_vocab_size", cfg["vocab_size"])
        result["candidate_selector.hidden_projection.weight"] = (d["selector_rank"], n)
        for book in ("predecessor", "successor"):
            result[f"candidate_selector.{book}_codebook"] = (rows, d["selector_rank"])
    return result


def weights(cfg: Mapping[str, Any], seed: int = 0) -> dict[str, NDArray[np.uint16]]:
    """Random bfloat16 tensors of the published layout."""
    rng = np.random.default_rng(seed)
    return {
        name: to_bf16(rng.normal(0, 0.05, shape).astype(np.float32))
        for name, shape in shapes(cfg).items()
    }


_DTYPES = {"uint16": "BF16", "float16": "F16", "float32": "F32", "int64": "I64", "bool": "BOOL"}


def safetensors_bytes(tensors: Mapping[str, Array]) -> bytes:
    """A well-formed safetensors file; uint16 arrays are stored as BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, data in tensors.items():
        end = at + data.nbytes
        header[name] = {
            "dtype": _DTYPES[data.dtype.name],
            "shape": list(data.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(d.tobytes() for d in tensors.values())])


def write_drafter(
    folder: Path, cfg: Mapping[str, Any], tensors: Mapping[str, Array] | None = None
) -> Path:
    """A checkpoint folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(cfg))
    data = weights(cfg) if tensors is None else tensors
    (folder / "model.safetensors").write_bytes(safetensors_bytes(data))
    return folder


def torch_file(
    value: Any, dtype: str = "Float", *, compress: int = zipfile.ZIP_STORED, evil: bytes = b""
) -> bytes:
    """What torch.save writes for a tensor or a dict of tensors and ints."""
    storages: list[NDArray[Any]] = []

    class Global:
        def __init__(self, name: str) -> None:
            self.name = name

    class Storage:
        def __init__(self, data: NDArray[Any]) -> None:
            storages.append(data)
            self.pid = ("storage", Global(f"torch\n{dtype}Storage"), str(len(storages) - 1), "cpu")
            self.size = data.size

    # protocol 2 by hand, since pickle cannot name classes that are not importable
    out = io.BytesIO()
    out.write(b"\x80\x02")

    def emit(item: Any) -> None:
        if isinstance(item, dict):
            out.write(b"}(")
            for k, v in item.items():
                emit(k)
                emit(v)
            out.write(b"u")
        elif isinstance(item, np.ndarray):
            storage = Storage(item)
            out.write(b"ctorch._utils\n_rebuild_tensor_v2\n((")
            out.write(pickle.dumps("storage", 2)[2:-1])
            out.write(f"ctorch\n{dtype}Storage\n".encode())
            out.write(pickle.dumps(storage.pid[2], 2)[2:-1] + pickle.dumps("cpu", 2)[2:-1])
            out.write(pickle.dumps(item.size, 2)[2:-1] + b"tQ")
            stride = tuple(s // item.itemsize for s in item.strides)
            for number in (0, item.shape, stride, False):
                out.write(pickle.dumps(number, 2)[2:-1])
            out.write(b"ccollections\nOrderedDict\n)Rt")
            out.write(b"R")
        else:
            out.write(pickle.dumps(item, 2)[2:-1])

    if evil:
        out.write(evil)
    else:
        emit(value)
    out.write(b".")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compress) as archive:
        archive.writestr("mask_embedding/data.pkl", out.getvalue())
        archive.writestr("mask_embedding/byteorder", "little")
        for i, data in enumerate(storages):
            archive.writestr(f"mask_embedding/data/{i}", data.tobytes())
        archive.writestr("mask_embedding/version", "3\n")
    return file.getvalue()


def write_target(
    path: Path,
    *,
    arch: str = "llama",
    n_vocab: int = N_VOCAB,
    n_layer: int = N_TARGET_LAYERS,
    n_embd: int = 256,
    pre: str = "smollm",
    mrope: bool = False,
    tokens: Iterable[str] | None = None,
    tensors: Mapping[str, tuple[Array, gguf.GGMLQuantizationType]] | None = None,
) -> Path:
    """A target GGUF with a BPE vocabulary; returns its path.

    tensors: (float values, type to store them as) by name.
    """
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("Tiny target")
    writer.add_block_count(n_layer)
    writer.add_embedding_length(n_embd)
    if mrope:
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    names = list(tokens or (f"t{i}é" for i in range(n_vocab)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types([3 if i < 4 else 1 for i in range(len(names))])
    writer.add_token_merges([f"t {i}" for i in range(10)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    for name, (values, kind) in (tensors or {}).items():
        stored = gguf.quants.quantize(values.astype(np.float32), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
