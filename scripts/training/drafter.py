"""The DFlash 2 drafter. Parameter names are those of the published checkpoints.

A block is the anchor token and block_size - 1 mask tokens, from the anchor's position on. A row
sees the features of the positions before its anchor, and its own block both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from training.transformer import attention, heads, rms_norm, rope_tables, rotate


@dataclass(frozen=True)
class DrafterConfig:
    """Sizes; n_embd and n_vocab are the target's."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_target_layer: int
    taps: tuple[int, ...]
    mask_id: int
    rope_theta: float
    n_ctx: int
    window: int
    block_size: int = 8
    conv_kernel: int = 2
    conv_group: int = 32
    rank: int = 32
    top_k: int = 16
    rms_eps: float = 1e-6


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        n_q, n_kv = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.n_embd, n_q, bias=False)
        self.k_proj = nn.Linear(config.n_embd, n_kv, bias=False)
        self.v_proj = nn.Linear(config.n_embd, n_kv, bias=False)
        self.o_proj = nn.Linear(n_q, config.n_embd, bias=False)
        self.q_norm = Norm(config.head_dim, config.rms_eps)
        self.k_norm = Norm(config.head_dim, config.rms_eps)

    def keys(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k = self.k_norm(heads(self.k_proj(x), self.head_dim))
        return rotate(k, cos, sin), heads(self.v_proj(x), self.head_dim)

    def queries(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotate(self.q_norm(heads(self.q_proj(x), self.head_dim)), cos, sin)


class Mlp(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.down_proj = nn.Linear(config.n_ff, config.n_embd, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Conv(nn.Module):
    """Grouped causal convolution inside the block, with kernels that depend on the row: one before
    the sublayer and one after it, both from the row before."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.block_size, self.group = config.block_size, config.conv_group
        self.n_tap = config.conv_kernel
        n_group = config.n_embd // config.conv_group
        base = torch.zeros(2, config.conv_kernel, config.n_embd)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)  # (side, tap, channel)
        self.kernel_projection = nn.Linear(config.n_embd, 2 * self.n_tap * n_group, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, x: torch.Tensor) -> torch.Tensor:
        """(side, batch, row, tap, group)"""
        dynamic = self.kernel_projection(x)
        return dynamic.reshape(*x.shape[:-1], 2, self.n_tap, -1).movedim(-3, 0)

    def forward(self, x: torch.Tensor, side: int, dynamic: torch.Tensor) -> torch.Tensor:
        blocks = x.reshape(-1, self.block_size, x.shape[-1] // self.group, self.group)
        dynamic = dynamic.reshape(-1, self.block_size, self.n_tap, blocks.shape[2], 1)
        base = self.base_kernel[side].to(x.dtype).view(self.n_tap, blocks.shape[2], self.group)
        out = (base[0] + dynamic[:, :, 0]) * blocks
        for tap in range(1, self.n_tap):
            past = F.pad(blocks[:, :-tap], (0, 0, 0, 0, tap, 0))
            out = out + (base[tap] + dynamic[:, :, tap]) * past
        return out.reshape(x.shape)


class Layer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = Norm(config.n_embd, config.rms_eps)
        self.post_attention_layernorm = Norm(config.n_embd, config.rms_eps)
        self.attention_conv = Conv(config)
        self.mlp_conv = Conv(config)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        past_k: torch.Tensor,
        past_v: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """x (batch, row, n_embd): blocks one after another. past_k, past_v: keys and values of the
        features; bias: of all keys, the features' first."""
        attn, conv = self.self_attn, self.attention_conv
        h = self.input_layernorm(x)
        before, after = conv.kernels(h)
        h = conv(h, 0, before)
        k, v = attn.keys(h, cos, sin)
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        h = attn.o_proj(attention(attn.queries(h, cos, sin), k, v, bias))
        x = x + conv(h, 1, after)
        h = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(h)
        h = self.mlp(self.mlp_conv(h, 0, before))
        return x + self.mlp_conv(h, 1, after)


class Selector(nn.Module):
    """Scores of token pairs: <A[previous] * (W h), B[candidate]>."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        shape = (config.n_vocab, config.rank)
        self.predecessor_codebook = nn.Parameter(torch.randn(shape))
        self.successor_codebook = nn.Parameter(torch.zeros(shape))
        self.hidden_projection = nn.Linear(config.n_embd, config.rank, bias=False)
        nn.init.normal_(self.hidden_projection.weight, std=config.n_embd**-0.5)

    def forward(
        self, hidden: torch.Tensor, previous: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        """hidden (..., n_embd), previous (...), candidates (..., n) to scores (..., n), F32."""
        query = F.embedding(previous, self.predecessor_codebook) * self.hidden_projection(hidden)
        keys = F.embedding(candidates, self.successor_codebook)
        return (query[..., None, :].float() * keys.float()).sum(-1)


class Drafter(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm = Norm(config.n_embd, config.rms_eps)
        self.fc = nn.Linear(len(config.taps) * config.n_embd, config.n_embd, bias=False)
        self.hidden_norm = Norm(config.n_embd, config.rms_eps)
        self.candidate_selector = Selector(config)
        # during training only; folded into fc on export
        self.register_buffer("feature_scale", torch.ones(self.fc.in_features), persistent=False)

    def rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rope_tables(positions, self.config.head_dim, self.config.rope_theta)

    def context(
        self, features: torch.Tensor, positions: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of features (batch, row, n_taps * n_embd), for each layer."""
        x = self.hidden_norm(F.linear(features, self.fc.weight * self.feature_scale))
        cos, sin = self.rope(positions)
        return [layer.self_attn.keys(x, cos, sin) for layer in self.layers]

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Embedded blocks (batch, row, n_embd) at positions (batch, row) to final hidden rows."""
        cos, sin = self.rope(positions)
        for layer, (k, v) in zip(self.layers, past, strict=True):
            x = layer(x, cos, sin, k, v, bias)
        return self.norm(x)

    def block_ids(self, anchors: torch.Tensor) -> torch.Tensor:
        """(..., block_size) token ids of the blocks after anchors (...)."""
        ids = anchors.new_full((*anchors.shape, self.config.block_size), self.config.mask_id)
        ids[..., 0] = anchors
        return ids
