#!/usr/bin/env python3
"""Synthetic target and drafter GGUFs in the shapes of real ones, for timing without real weights.

They load in llama.cpp and in our engine and run at the speed of a real model of the same shapes and
types; their text means nothing, so drive them with token ids and a forced acceptance. A million
random weights are quantized once per type and repeated: a file is written as fast as the disk is.

    python scripts/make_shapes.py target t.gguf --type q4_k              # 64 layers, 13.7 GB
    python scripts/make_shapes.py drafter d.gguf --target t.gguf         # Qwen3.8-27B-DFlash2
    python scripts/make_shapes.py drafter d.gguf --target t.gguf --block-size 16
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))

import gguf
import numpy as np
import tiny_drafter
from dflash2.gguf_raw import Value, boolean, f32, i32_array, string, string_array, u32
from dflash2.gguf_write import TensorEntry, header_bytes, padded, temporary_file
from gguf_metadata import build_metadata
from hf_config import DrafterConfig, parse_config
from make_checkpoints import QWEN38_27B
from numpy.typing import NDArray
from target_info import Target, read_gguf_target
from tensor_map import MappedTensor, expected_tensors
from tensor_types import encode, tensor_bytes, type_id
from type_choice import choose_types, stays_f32

N_CHUNK = 1 << 20  # weights that repeat
N_ROW = 4096

# (types of the head, of every other matrix)
TARGET_TYPES = {"q4_k": ("q6_K", "q4_K"), "q8_0": ("q8_0", "q8_0"), "bf16": ("bf16", "bf16")}
FILE_TYPES = {
    "q4_k": gguf.LlamaFileType.MOSTLY_Q4_K_S,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
}


@dataclass(frozen=True)
class TargetShape:
    """A dense qwen3 decoder."""

    n_layer: int = 64
    n_embd: int = 5120
    n_ff: int = 17408
    n_head: int = 40
    n_head_kv: int = 8
    head_dim: int = 128
    n_vocab: int = QWEN38_27B["vocab_size"]
    n_ctx: int = 262144


REAL = TargetShape()
TINY = TargetShape(
    n_layer=tiny_drafter.N_TARGET_LAYERS,
    n_embd=tiny_drafter.CONFIG["hidden_size"],
    n_ff=512,
    n_head=8,
    n_head_kv=2,
    head_dim=64,
    n_vocab=2048,
    n_ctx=16384,
)


@dataclass(frozen=True)
class Tensor:
    """shape: torch order. type: a ggml type name. gain: 1 keeps the scale of what passes."""

    name: str
    shape: tuple[int, ...]
    type: str
    gain: float = 1.0

    @property
    def n_bytes(self) -> int:
        return tensor_bytes(self.shape, self.type)


@cache
def _chunk(type_name: str, std: float) -> NDArray[np.uint8]:
    """N_CHUNK random weights in blocks of a type: (blocks, bytes)."""
    values = np.random.default_rng(0).normal(0.0, std, (N_CHUNK // N_ROW, N_ROW))
    data = encode(values.astype(np.float32), "F32", type_name, "weights")
    return data.reshape(-1, gguf.GGML_QUANT_SIZES[type_id(type_name)][1])


def _vector(tensor: Tensor) -> bytes:
    """Norms near 1, convolutions that mostly pass the present token on."""
    values = np.random.default_rng(1).normal(0.0, 0.02, tensor.shape)
    if tensor.name.endswith("_conv_base"):  # (2, tap, channel)
        values[:, 0] += 1.0
    else:
        values += 1.0
    return values.astype("<f4").tobytes()


def _pieces(tensor: Tensor, n_embd: int) -> Iterator[memoryview]:
    """The tensor's data in order."""
    if stays_f32(tensor.name, tensor.shape):
        yield memoryview(_vector(tensor))
        return
    blocks = _chunk(tensor.type, tensor.gain / math.sqrt(n_embd))
    data = memoryview(blocks.tobytes())
    at = zlib.crc32(tensor.name.encode()) % len(blocks) * blocks.shape[1]
    left = tensor.n_bytes
    while left:
        piece = data[at : at + left]
        yield piece
        left -= len(piece)
        at = 0


def _write(path: Path, values: Mapping[str, Value], tensors: Sequence[Tensor], n_embd: int) -> None:
    """The file, its tensors side by side."""
    entries, end = [], 0
    for tensor in tensors:
        kind = int(type_id(tensor.type))
        entries.append(TensorEntry(tensor.name, tensor.shape[::-1], kind, end))
        end += padded(tensor.n_bytes)
    header = header_bytes(values, entries)
    for tensor in tensors:
        if not stays_f32(tensor.name, tensor.shape):
            _chunk(tensor.type, tensor.gain / math.sqrt(n_embd))  # not by several threads at once
    with temporary_file(path, force=True) as temporary, temporary.open("wb") as f:
        f.write(header)
        f.truncate(len(header) + end)
        f.flush()

        def fill(tensor: Tensor, entry: TensorEntry) -> None:
            at = len(header) + entry.offset
            for piece in _pieces(tensor, n_embd):
                while piece:
                    done = os.pwrite(f.fileno(), piece, at)
                    at, piece = at + done, piece[done:]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(fill, tensors, entries):
                pass


def _tokenizer(n_vocab: int) -> dict[str, Value]:
    """Byte-level BPE: the 256 bytes, one merge, then names of ids; the last two are control tokens.

    Only so that both engines load it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = {byte: 256 + i for i, byte in enumerate(b for b in range(256) if b not in printable)}
    tokens = [chr(shifted.get(byte, byte)) for byte in range(256)]
    tokens += ["ab", *(f"tok{i}" for i in range(257, n_vocab - 2)), "<|endoftext|>", "<|mask|>"]
    types = [gguf.TokenType.NORMAL] * (n_vocab - 2) + [gguf.TokenType.CONTROL] * 2
    return {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("qwen2"),
        "tokenizer.ggml.tokens": string_array([token.encode() for token in tokens]),
        "tokenizer.ggml.token_type": i32_array(tuple(map(int, types))),
        "tokenizer.ggml.merges": string_array([b"a b"]),
        "tokenizer.ggml.eos_token_id": u32(n_vocab - 2),
        "tokenizer.ggml.add_bos_token": boolean(False),
    }


def target_tensors(s: TargetShape, type_name: str) -> Iterator[Tensor]:
    """type_name: of TARGET_TYPES."""
    head, matrix = TARGET_TYPES[type_name]
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    yield Tensor("token_embd.weight", (s.n_vocab, s.n_embd), matrix)
    for i in range(s.n_layer):
        for name, shape in (
            ("attn_q", (n_q, s.n_embd)),
            ("attn_k", (n_kv, s.n_embd)),
            ("attn_v", (n_kv, s.n_embd)),
            ("attn_output", (s.n_embd, n_q)),
            ("ffn_gate", (s.n_ff, s.n_embd)),
            ("ffn_up", (s.n_ff, s.n_embd)),
            ("ffn_down", (s.n_embd, s.n_ff)),
        ):
            yield Tensor(f"blk.{i}.{name}.weight", shape, matrix)
        for name, size in (
            ("attn_norm", s.n_embd),
            ("attn_q_norm", s.head_dim),
            ("attn_k_norm", s.head_dim),
            ("ffn_norm", s.n_embd),
        ):
            yield Tensor(f"blk.{i}.{name}.weight", (size,), "f32")
    yield Tensor("output_norm.weight", (s.n_embd,), "f32")
    yield Tensor("output.weight", (s.n_vocab, s.n_embd), head, 4.0)  # logits as peaked as real ones


def make_target(path: Path, type_name: str = "q4_k", shape: TargetShape = REAL) -> Path:
    """Writes a target; type_name: of TARGET_TYPES. Returns its path."""
    values = {
        "general.architecture": string("qwen3"),
        "general.name": string(f"synthetic {type_name}"),
        "general.quantization_version": u32(gguf.GGML_QUANT_VERSION),
        "general.file_type": u32(int(FILE_TYPES[type_name])),
        "qwen3.block_count": u32(shape.n_layer),
        "qwen3.context_length": u32(shape.n_ctx),
        "qwen3.embedding_length": u32(shape.n_embd),
        "qwen3.feed_forward_length": u32(shape.n_ff),
        "qwen3.attention.head_count": u32(shape.n_head),
        "qwen3.attention.head_count_kv": u32(shape.n_head_kv),
        "qwen3.attention.key_length": u32(shape.head_dim),
        "qwen3.attention.value_length": u32(shape.head_dim),
        "qwen3.attention.layer_norm_rms_epsilon": f32(1e-6),
        "qwen3.rope.freq_base": f32(1e7),
        **_tokenizer(shape.n_vocab),
    }
    _write(path, values, list(target_tensors(shape, type_name)), shape.n_embd)
    return path


def _config(target: Target, block_size: int) -> dict[str, Any]:
    """The published config.json for a target of the real width, else a small one."""
    config = deepcopy(QWEN38_27B if target.n_embd == REAL.n_embd else tiny_drafter.CONFIG)
    nested = config["dflash_config"]
    n_taps, last = len(nested["target_layer_ids"]), target.n_layer - 3
    first = min(5, last // n_taps)
    config["vocab_size"] = target.n_vocab
    config["num_target_layers"] = target.n_layer
    nested["block_size"] = block_size
    nested["mask_token_id"] = target.n_vocab - 1
    nested["target_layer_ids"] = [first + (last - first) * i // (n_taps - 1) for i in range(n_taps)]
    return config


@dataclass(frozen=True)
class _Source:
    """Stands for a checkpoint's tensor where only its shape matters."""

    where: str
    shape: tuple[int, ...]
    dtype: str = "BF16"

    def read(self, start: int, stop: int) -> NDArray[Any]:
        raise NotImplementedError


def drafter_tensors(config: DrafterConfig, outtype: str) -> list[Tensor]:
    """What the converter would write for a checkpoint without embedding and head."""
    mapped = [
        MappedTensor(name, _Source(name, shape))
        for name, shape, needed in expected_tensors(config)
        if needed
    ]
    types = choose_types(mapped, outtype, config)
    return [Tensor(m.name, m.shape, kind) for m, kind in zip(mapped, types, strict=True)]


def make_drafter(path: Path, target: Path, outtype: str = "q4_k_m", block_size: int = 8) -> Path:
    """Writes a drafter for a target of this script; outtype: of the converter. Its path."""
    info = read_gguf_target(target)
    config = parse_config(_config(info, block_size))
    tensors = drafter_tensors(config, outtype)
    values = build_metadata(
        config,
        info,
        source_name=f"synthetic drafter of {block_size}",
        outtype=outtype,
        n_params=sum(math.prod(t.shape) for t in tensors),
    )
    _write(path, values, tensors, config.n_embd)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    target = kinds.add_parser("target", help="a dense decoder of 24 billion weights")
    target.add_argument("path", type=Path)
    target.add_argument("--type", choices=TARGET_TYPES, default="q4_k", help="(default: q4_k)")
    target.add_argument("--layers", type=int, default=REAL.n_layer, help="(default: 64)")
    target.add_argument("--tiny", action="store_true", help="a hundredth of the size")
    drafter = kinds.add_parser("drafter", help="Qwen3.8-27B-DFlash2, or a tiny one")
    drafter.add_argument("path", type=Path)
    drafter.add_argument("--target", type=Path, required=True, help="made by this script")
    drafter.add_argument("--type", default="q4_k_m", help="as the converter's (default: q4_k_m)")
    drafter.add_argument("--block-size", type=int, default=8, help="(default: 8)")
    args = parser.parse_args()
    if args.kind == "target" and args.layers < 8:
        parser.error(f"--layers: expected 8 or more, of which drafters tap five, got {args.layers}")
    if args.kind == "drafter":
        print(make_drafter(args.path, args.target, args.type, args.block_size))
    else:
        shape = TINY if args.tiny else TargetShape(n_layer=args.layers)
        print(make_target(args.path, args.type, shape))


if __name__ == "__main__":
    main()
