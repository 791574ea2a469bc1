"""What target and drafter share. Rows are (..., n_embd), heads (batch, head, row, dim)."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (x.float() * scale).to(x.dtype) * weight.to(x.dtype)


def rope_tables(
    positions: torch.Tensor, head_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, (*positions.shape, head_dim), F32."""
    index = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * theta ** (-index / head_dim)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (batch, head, row, dim); cos, sin (batch, row, dim) or (row, dim)."""
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    a, b = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)


def heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(batch, row, n * dim) to (batch, n, row, dim)."""
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(batch, row, n_head * dim). The query heads of one K/V head are stacked as rows, so that no
    key is read twice; bias (batch, 1, n_head / n_head_kv * row, key) is added to the scores."""
    n_batch, n_head, n_row, dim = q.shape
    stacked = q.reshape(n_batch, k.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(stacked, k, v, attn_mask=bias)
    return out.reshape(n_batch, n_head, n_row, dim).transpose(1, 2).reshape(n_batch, n_row, -1)


def bias_of(visible: torch.Tensor, n_group: int, dtype: torch.dtype) -> torch.Tensor:
    """The bias of `attention` from (batch, row, key) booleans."""
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    bias.masked_fill_(~visible, float("-inf"))
    return bias[:, None].repeat(1, 1, n_group, 1)
