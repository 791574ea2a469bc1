"""The frozen target: tapped features and final hidden rows, for whole rows and for cached steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from training.target_weights import TargetConfig, TargetWeights, Weights
from training.transformer import attention, bias_of, heads, rms_norm, rope_tables, rotate

# (layer, q, k, v) to rows
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Target:
    """taps: layers (from 0) whose outputs are the features."""

    def __init__(
        self,
        weights: TargetWeights,
        taps: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        *,
        compile: bool = False,
    ) -> None:
        self.config = weights.config
        self.taps = tuple(taps)
        self.device, self.dtype = device, dtype
        self.embed = weights.embed.to(device, dtype)
        tied = weights.head is weights.embed
        self.head = self.embed if tied else weights.head.to(device, dtype)
        self.norm = weights.norm.to(device, dtype)
        self.layers = [
            {name: w.to(device, dtype) for name, w in layer.items()} for layer in weights.layers
        ]
        wrap = torch.compile(dynamic=False) if compile else lambda f: f
        self._qkv, self._rest = wrap(_qkv), wrap(_rest)

    @torch.no_grad()
    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """ids, positions (batch, row) to features (batch, row, n_taps * n_embd) and final hidden
        rows (batch, row, n_embd)."""
        config = self.config
        x = F.embedding(ids, self.embed)
        cos, sin = rope_tables(positions, config.head_dim, config.rope_theta)
        features = []
        for i, layer in enumerate(self.layers):
            q, k, v = self._qkv(config, layer, x, cos, sin)
            x = self._rest(config, layer, x, attend(i, q, k, v))
            if i in self.taps:
                features.append(x)
        return torch.cat(features, dim=-1), rms_norm(x, self.norm, config.rms_eps)

    def rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`run` over whole texts (batch, row) from position 0."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.run(ids, positions, _causal)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """F32 logits of (n, n_embd): bf16 logits would tie."""
        if hidden.is_cuda and hidden.dtype != torch.float32:
            return torch.mm(hidden, self.head.T, out_dtype=torch.float32)
        return hidden.float() @ self.head.float().T


def _qkv(
    config: TargetConfig, layer: Weights, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = rms_norm(x, layer["attn_norm"], config.rms_eps)
    q = heads(F.linear(x, layer["q"], layer.get("q_bias")), config.head_dim)
    k = heads(F.linear(x, layer["k"], layer.get("k_bias")), config.head_dim)
    v = heads(F.linear(x, layer["v"], layer.get("v_bias")), config.head_dim)
    if "q_norm" in layer:
        q = rms_norm(q, layer["q_norm"], config.rms_eps)
        k = rms_norm(k, layer["k_norm"], config.rms_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def _rest(
    config: TargetConfig, layer: Weights, x: torch.Tensor, attended: torch.Tensor
) -> torch.Tensor:
    x = x + F.linear(attended, layer["o"])
    h = rms_norm(x, layer["ffn_norm"], config.rms_eps)
    h = F.silu(F.linear(h, layer["gate"])) * F.linear(h, layer["up"])
    return x + F.linear(h, layer["down"])


def _causal(_: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


class StepCache:
    """K/V of rows that all stand at the same position: one token a step. The position is on the
    device, so that a step can be replayed as a CUDA graph."""

    def __init__(self, target: Target, n_row: int, length: int) -> None:
        config = target.config
        shape = (config.n_layer, n_row, config.n_head_kv, length, config.head_dim)
        self.k = torch.empty(shape, device=target.device, dtype=target.dtype)
        self.v = torch.empty_like(self.k)
        self.position = torch.zeros(1, dtype=torch.long, device=target.device)

    def attend(self, i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys = self.k[i].index_copy_(2, self.position, k)
        values = self.v[i].index_copy_(2, self.position, v)
        if q.is_cuda:
            from training.decode_attention import decode_attention  # Triton comes with CUDA only

            return decode_attention(q, keys, values, self.position)
        end = int(self.position) + 1
        return attention(q, keys[:, :, :end], values[:, :, :end])


class RaggedCache:
    """K/V of sequences that stand at different positions; writing a position again replaces it."""

    def __init__(self, target: Target, n_row: int, length: int) -> None:
        config = target.config
        shape = (config.n_layer, n_row, config.n_head_kv, length, config.head_dim)
        self.k = torch.zeros(shape, device=target.device, dtype=target.dtype)
        self.v = torch.zeros_like(self.k)
        self.n_group = config.n_head // config.n_head_kv

    def at(self, positions: torch.Tensor) -> Attend:
        """Attention of rows at (batch, row) positions to everything up to themselves."""
        length = self.k.shape[3]
        visible = torch.arange(length, device=positions.device) <= positions[..., None]
        bias = bias_of(visible, self.n_group, self.k.dtype)

        def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            write(self.k[i], positions, k)
            write(self.v[i], positions, v)
            return attention(q, self.k[i], self.v[i], bias)

        return attend


def write(cache: torch.Tensor, positions: torch.Tensor, values: torch.Tensor) -> None:
    """Puts values (batch, head, row, dim) at positions (batch, row) of (batch, head, :, dim)."""
    cache.scatter_(2, positions[:, None, :, None].expand_as(values), values)
