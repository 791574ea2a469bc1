#!/usr/bin/env python3
"""Tiny random models for tests: targets (GGUF) and a DFlash 2 drafter as published.

The weights depend on the seed and the tensor's name only: the same bytes with every numpy on every
machine.

    python scripts/make_tiny_models.py DIR [--hidden 320] [--block-size 8] [--outtype f32]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

N_VOCAB = 512
HEAD_DIM = 32  # of the target
BOS, EOS, IM_START, IM_END, MASK = 1, 2, 3, 4, 5
SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
N_MIN_VOCAB = len(SPECIALS) + 256

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Floats = NDArray[np.float32]


class Weights:
    """Named tensors of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> Floats:
        """Nearly normal values. They come from raw PCG64 words, which numpy guarantees to keep;
        the sum of a word's four 16-bit lanes needs no log or cos, whose last bit may differ."""
        source = np.random.PCG64(np.random.SeedSequence([self.seed, zlib.crc32(name.encode())]))
        lanes = source.random_raw(math.prod(shape)).view(np.uint16).reshape(-1, 4)
        total = lanes.sum(axis=1, dtype=np.int32) - 2 * 65535
        unit = total.astype(np.float32) / np.float32(65536 / math.sqrt(3))
        values: Floats = np.float32(mean) + np.float32(std) * unit
        return values.reshape(shape)

    def linear(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> Floats:
        """(n_out, n_in), maps inputs of RMS 1 to outputs of RMS `gain`."""
        return self.normal(name, (n_out, n_in), gain / math.sqrt(n_in))

    def norm(self, name: str, size: int, mean: float = 1.0) -> Floats:
        return self.normal(name, (size,), 0.1, mean)


def _pieces() -> Iterator[str]:
    """Printable characters, then pairs of them, commonest first. U+2581 stands for a space."""
    rest = (chr(c) for c in range(33, 127) if not chr(c).islower())
    characters = ["\u2581", *"etaoinshrdlcumwfgypbvkjxqz", *rest]
    yield from characters
    for size in range(2, len(characters) + 1):  # pairs of the first `size` characters
        last = characters[size - 1]
        for other in characters[: size - 1]:
            yield other + last
            yield last + other
        yield last + last


def _add_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """SentencePiece with all 256 byte tokens, so that every byte string tokenizes and returns;
    below N_MIN_VOCAB without, for laws that can be enumerated."""
    kind = gguf.TokenType
    bytes_ = range(256 if n_vocab >= N_MIN_VOCAB else 0)
    tokens = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in bytes_)]
    types = [kind.UNKNOWN, *[kind.CONTROL] * (len(SPECIALS) - 1), *[kind.BYTE] * len(bytes_)]
    tokens += [piece for piece, _ in zip(_pieces(), range(n_vocab - len(tokens)), strict=False)]
    if len(tokens) != n_vocab:
        raise ValueError(f"n_vocab: expected {len(SPECIALS)} to {len(tokens)}, got {n_vocab}")
    types += [kind.NORMAL] * (n_vocab - len(types))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank) for rank in range(n_vocab)])
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _write_target(
    path: Path, arch: str, tensors: dict[str, Floats], n_vocab: int, keys: dict[str, Any]
) -> None:
    """keys: below the architecture's name; ints, floats and lists of ints."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    for key, value in keys.items():
        add: dict[type, Callable[[str, Any], None]] = {
            int: writer.add_uint32,
            float: writer.add_float32,
            list: writer.add_array,
        }
        add[type(value)](f"{arch}.{key}", value)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, n_vocab)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _outer_tensors(
    weights: Weights, n_vocab: int, n_embd: int, sharpness: float
) -> dict[str, Floats]:
    return {
        "token_embd.weight": weights.normal("token_embd", (n_vocab, n_embd), 1.0),
        "output_norm.weight": weights.norm("output_norm", n_embd),
        "output.weight": weights.linear("output", n_vocab, n_embd, sharpness),
    }


def _ffn_tensors(weights: Weights, blk: str, n_embd: int, n_ff: int) -> dict[str, Floats]:
    return {
        f"{blk}.ffn_gate.weight": weights.linear(f"{blk}.ffn_gate", n_ff, n_embd, 1.5),
        f"{blk}.ffn_up.weight": weights.linear(f"{blk}.ffn_up", n_ff, n_embd),
        f"{blk}.ffn_down.weight": weights.linear(f"{blk}.ffn_down", n_embd, n_ff),
    }


def make_tiny_target(
    path: Path | str,
    *,
    n_layer: int = 4,
    n_embd: int = 320,
    n_head: int | None = None,
    n_head_kv: int = 2,
    n_ff: int = 384,
    n_vocab: int = N_VOCAB,
    n_ctx: int = 4096,
    attention: float = 1.5,
    sharpness: float = 2.5,
    seed: int = 0,
) -> Path:
    """Writes a llama-architecture GGUF, F32, with tokenizer and chat template; returns its path.

    n_head: heads of 32, n_embd / 32 when None. n_vocab: below N_MIN_VOCAB only some characters can
    be tokenized. attention: gain of its output; near 0 a token depends on the last one only.
    sharpness: standard deviation of the logits.
    """
    n_head = n_embd // HEAD_DIM if n_head is None else n_head
    if n_embd % HEAD_DIM or n_head % n_head_kv:
        raise ValueError(
            f"n_embd: expected a multiple of {HEAD_DIM} whose {n_head} heads {n_head_kv} K/V heads "
            f"divide, got {n_embd}"
        )
    path = Path(path)
    weights = Weights(seed)
    n_q, n_kv = n_head * HEAD_DIM, n_head_kv * HEAD_DIM

    tensors = _outer_tensors(weights, n_vocab, n_embd, sharpness)
    for i in range(n_layer):
        blk = f"blk.{i}"
        tensors |= {
            f"{blk}.attn_norm.weight": weights.norm(f"{blk}.attn_norm", n_embd),
            f"{blk}.attn_q.weight": weights.linear(f"{blk}.attn_q", n_q, n_embd, 1.5),
            f"{blk}.attn_k.weight": weights.linear(f"{blk}.attn_k", n_kv, n_embd, 1.5),
            f"{blk}.attn_v.weight": weights.linear(f"{blk}.attn_v", n_kv, n_embd),
            f"{blk}.attn_output.weight": weights.linear(
                f"{blk}.attn_output", n_embd, n_q, attention
            ),
            f"{blk}.ffn_norm.weight": weights.norm(f"{blk}.ffn_norm", n_embd),
            **_ffn_tensors(weights, blk, n_embd, n_ff),
        }
    keys = {
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 10000.0,
    }
    _write_target(path, "llama", tensors, n_vocab, keys)
    return path


def make_tiny_hybrid_target(
    path: Path | str,
    *,
    n_layer: int = 4,
    n_embd: int = 320,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 384,
    n_vocab: int = N_VOCAB,
    n_ctx: int = 4096,
    n_state_heads: int = 4,
    state_size: int = 32,
    sharpness: float = 2.5,
    seed: int = 0,
) -> Path:
    """Writes a qwen35-architecture GGUF, F32: gated delta net layers, whose state libllama rolls
    back through snapshots, with attention and M-RoPE in every second layer; returns its path.

    n_head: heads of 32. n_state_heads: value heads of the delta net, two per key head.
    """
    path = Path(path)
    weights = Weights(seed)
    n_kv, d_conv = n_head_kv * HEAD_DIM, 4
    n_value, n_key = n_state_heads * state_size, n_state_heads // 2 * state_size
    n_mixed = 2 * n_key + n_value

    tensors = _outer_tensors(weights, n_vocab, n_embd, sharpness)
    for i in range(n_layer):
        blk = f"blk.{i}"
        shapes: dict[str, tuple[int, int]]
        if i % 2:
            shapes = {
                "attn_q": (2 * n_head * HEAD_DIM, n_embd),  # per head: query, gate
                "attn_k": (n_kv, n_embd),
                "attn_v": (n_kv, n_embd),
                "attn_output": (n_embd, n_head * HEAD_DIM),
            }
            for name in ("attn_q_norm", "attn_k_norm"):
                tensors[f"{blk}.{name}.weight"] = weights.norm(f"{blk}.{name}", HEAD_DIM, 1.5)
        else:
            shapes = {
                "attn_qkv": (n_mixed, n_embd),
                "attn_gate": (n_value, n_embd),
                "ssm_beta": (n_state_heads, n_embd),
                "ssm_alpha": (n_state_heads, n_embd),
                "ssm_out": (n_embd, n_value),
            }
            conv = weights.linear(f"{blk}.ssm_conv1d", n_mixed, d_conv)
            tensors |= {
                f"{blk}.ssm_conv1d.weight": conv,
                f"{blk}.ssm_dt.bias": weights.normal(f"{blk}.ssm_dt", (n_state_heads,), 0.5),
                # below 0: how fast a head forgets
                f"{blk}.ssm_a": weights.normal(f"{blk}.ssm_a", (n_state_heads,), 0.02, -0.1),
                f"{blk}.ssm_norm.weight": weights.norm(f"{blk}.ssm_norm", state_size),
            }
        for name, shape in shapes.items():
            gain = 1.5 if name in ("attn_output", "ssm_out") else 1.0
            tensors[f"{blk}.{name}.weight"] = weights.linear(f"{blk}.{name}", *shape, gain)
        for name in ("attn_norm", "post_attention_norm"):
            tensors[f"{blk}.{name}.weight"] = weights.norm(f"{blk}.{name}", n_embd)
        tensors |= _ffn_tensors(weights, blk, n_embd, n_ff)
    keys = {
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": HEAD_DIM,
        "rope.dimension_sections": [6, 5, 5, 0],
        "rope.freq_base": 10000.0,
        "full_attention_interval": 2,
        "ssm.conv_kernel": d_conv,
        "ssm.inner_size": n_value,
        "ssm.state_size": state_size,
        "ssm.time_step_rank": n_state_heads,
        "ssm.group_count": n_state_heads // 2,
    }
    _write_target(path, "qwen35", tensors, n_vocab, keys)
    return path


def _to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Rounds to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: dict[str, Floats], dtype: str = "bfloat16") -> None:
    """dtype: "bfloat16" (which numpy and its safetensors binding lack) or "float32"."""
    if dtype not in ("bfloat16", "float32"):
        raise ValueError(f"dtype: expected bfloat16 or float32, got {dtype}")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks = []
    end = 0
    for name, tensor in sorted(tensors.items()):
        tensor = np.ascontiguousarray(tensor, dtype="<f4")
        data = tensor.tobytes() if dtype == "float32" else _to_bf16(tensor).tobytes()
        header[name] = {
            "dtype": "F32" if dtype == "float32" else "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(data)],
        }
        end += len(data)
        chunks.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def make_tiny_checkpoint(
    directory: Path | str,
    *,
    hidden: int = 320,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    ff: int = 512,
    block_size: int = 8,
    layer_types: Sequence[str] | None = None,
    sliding_window: int | None = 32,
    is_causal: bool | None = False,
    kernel: int = 2,
    group: int = 16,
    rank: int = 16,
    top_k: int = 16,
    vocab: int = N_VOCAB,
    taps: Sequence[int] = (0, 1, 2),
    target_layers: int = 4,
    mask_token_id: int = MASK,
    output_multiplier: float | None = None,
    softcap: float | None = None,
    embedding_scale: float | None = None,
    dtype: str = "bfloat16",
    seed: int = 0,
) -> Path:
    """Writes config.json and model.safetensors; returns the directory, which is made if missing.

    layer_types: "sliding_attention" or "full_attention" per layer; None: all slide.
    is_causal: None leaves the key out. taps: layer outputs, 0-based. None elsewhere: key left out.
    """
    if layer_types is None:
        layer_types = ["sliding_attention"] * layers
    slides = "sliding_attention" in layer_types
    dflash = {
        "block_size": block_size,
        "mask_token_id": mask_token_id,
        "target_layer_ids": list(taps),
        "conv_kernel_size": kernel,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": top_k,
        "output_multiplier": output_multiplier,
        "final_logit_softcapping": softcap,
        "input_embedding_scale": embedding_scale,
    }
    config = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "max_window_layers": layers,
        "use_sliding_window": slides,
        "sliding_window": sliding_window if slides else None,
        "layer_types": list(layer_types),
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": dtype,
        "num_target_layers": target_layers,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "dflash_config": {key: value for key, value in dflash.items() if value is not None},
    }
    if is_causal is not None:
        config["is_causal"] = is_causal

    weights = Weights(seed)
    n_q, n_kv, n_conv = heads * head_dim, kv_heads * head_dim, 2 * kernel * (hidden // group)
    near_identity = np.zeros((2, kernel, 1), np.float32)  # (side, tap, channel)
    near_identity[:, 0] = 1.0
    selector = "candidate_selector"
    codebook = 0.7 / rank**0.25  # edge scores vary about half as much as logits
    tensors = {
        "fc.weight": weights.linear("fc", hidden, len(taps) * hidden),
        "hidden_norm.weight": weights.norm("hidden_norm", hidden),
        "norm.weight": weights.norm("norm", hidden),
        f"{selector}.hidden_projection.weight": weights.linear("hidden_projection", rank, hidden),
        f"{selector}.predecessor_codebook": weights.normal("predecessor", (vocab, rank), codebook),
        f"{selector}.successor_codebook": weights.normal("successor", (vocab, rank), 2 * codebook),
    }
    for i in range(layers):
        layer, attn, mlp = f"layers.{i}", f"layers.{i}.self_attn", f"layers.{i}.mlp"
        shapes = {
            f"{attn}.q_proj": (n_q, hidden),
            f"{attn}.k_proj": (n_kv, hidden),
            f"{attn}.v_proj": (n_kv, hidden),
            f"{attn}.o_proj": (hidden, n_q),
            f"{mlp}.gate_proj": (ff, hidden),
            f"{mlp}.up_proj": (ff, hidden),
            f"{mlp}.down_proj": (hidden, ff),
        }
        tensors |= {f"{name}.weight": weights.linear(name, *s) for name, s in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = weights.norm(f"{layer}.{name}", hidden)
        for name in ("q_norm", "k_norm"):  # above 1, so that attention is not flat
            tensors[f"{attn}.{name}.weight"] = weights.norm(f"{attn}.{name}", head_dim, 1.5)
        for name in ("attention_conv", "mlp_conv"):
            conv = f"{layer}.{name}"
            base = weights.normal(f"{conv}.base", (2, kernel, hidden), 0.2)
            tensors[f"{conv}.base_kernel"] = near_identity + base
            tensors[f"{conv}.kernel_projection.weight"] = weights.linear(conv, n_conv, hidden, 0.3)

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(directory / "model.safetensors", tensors, dtype)
    return directory


def make_tiny_pair(
    directory: Path | str,
    *,
    outtype: str = "f32",
    hybrid: bool = False,
    n_ctx: int = 4096,
    seed: int = 0,
    **checkpoint: Any,
) -> tuple[Path, Path]:
    """Writes target.gguf, the checkpoint draft/ and, by the converter, draft.gguf.

    hybrid: the target is make_tiny_hybrid_target's. n_ctx: of the target.
    checkpoint: options of make_tiny_checkpoint; the target takes its sizes from them.
    Returns (target, draft), both GGUF.
    """
    from dflash2_to_gguf import convert

    directory = Path(directory)
    source = make_tiny_checkpoint(directory / "draft", seed=seed, **checkpoint)
    make_target = make_tiny_hybrid_target if hybrid else make_tiny_target
    target = make_target(
        directory / "target.gguf",
        n_layer=checkpoint.get("target_layers", 4),
        n_embd=checkpoint.get("hidden", 320),
        n_vocab=checkpoint.get("vocab", N_VOCAB),
        n_ctx=n_ctx,
        seed=seed,
    )
    draft = directory / "draft.gguf"
    convert(source, target, outfile=draft, outtype=outtype, force=True, threads=1)
    return target, draft


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random target and its drafter.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hidden", type=int, default=320, help="hidden size (default: 320)")
    parser.add_argument("--block-size", type=int, default=8, help="(default: 8)")
    parser.add_argument("--outtype", default="f32", help="type of the drafter (default: f32)")
    parser.add_argument("--hybrid", action="store_true", help="a target with recurrent layers")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))
    for path in make_tiny_pair(
        args.directory,
        outtype=args.outtype,
        hybrid=args.hybrid,
        seed=args.seed,
        hidden=args.hidden,
        block_size=args.block_size,
    ):
        print(path)


if __name__ == "__main__":
    main()
