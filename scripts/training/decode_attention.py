"""Attention of one new row to a long cache, for thousands of sequences at the same position.

Triton, NVIDIA only: stock kernels pad the few query rows of a K/V head to 64 or 128.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

MIN_DOT = 16  # the fewest rows of a tensor-core product
BLOCK = 64  # keys at a time


def decode_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """q (batch, n_head, 1, dim) at position (1,), k and v (batch, n_head_kv, capacity, dim), of
    which those up to it count. Returns (batch, 1, n_head * dim)."""
    n_batch, n_head, _, dim = q.shape
    n_kv = k.shape[1]
    q = q.contiguous()
    out = torch.empty(n_batch, 1, n_head * dim, device=q.device, dtype=q.dtype)
    _attend[(n_kv, n_batch)](
        *(q, k, v, out, position, k.stride(0), k.stride(1), math.log2(math.e) / math.sqrt(dim)),
        n_group=n_head // n_kv,
        dim=dim,
        min_dot=max(MIN_DOT, triton.next_power_of_2(n_head // n_kv)),
        block=BLOCK,
        num_warps=2,
    )
    return out


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    position,
    stride_batch,
    stride_head,
    scale,
    n_group: tl.constexpr,
    dim: tl.constexpr,
    min_dot: tl.constexpr,
    block: tl.constexpr,
):
    head, batch = tl.program_id(0), tl.program_id(1)
    group, channel = tl.arange(0, min_dot), tl.arange(0, dim)
    rows = ((batch * tl.num_programs(0) + head) * n_group + group)[:, None] * dim + channel[None, :]
    inside = group[:, None] < n_group
    n_key = tl.load(position).to(tl.int32) + 1
    query = tl.load(q + rows, mask=inside, other=0.0)
    start_of = batch.to(tl.int64) * stride_batch + head * stride_head
    best = tl.full((min_dot,), float("-inf"), tl.float32)
    total = tl.zeros((min_dot,), tl.float32)
    acc = tl.zeros((min_dot, dim), tl.float32)
    for start in range(0, n_key, block):
        key = start + tl.arange(0, block)
        known = key < n_key
        at = start_of + key[:, None] * dim + channel[None, :]
        keys = tl.load(k + at, mask=known[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(keys)) * scale
        scores = tl.where(known[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        values = tl.load(v + at, mask=known[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        total = total * shrink + tl.sum(weights, 1)
        best = new_best
    tl.store(out + rows, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
