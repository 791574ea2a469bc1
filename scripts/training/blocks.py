"""Training blocks: anchors in rows of a wave, the labels after them and what the blocks see."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.drafter import DrafterConfig
from training.transformer import bias_of
from training.wave import USER, Wave

USER_WEIGHT = 0.1  # of anchors in the user's text, against 1 in answers


@dataclass
class Blocks:
    """n_anchor blocks in each of the rows; k counts drafted positions, block_size - 1 of them."""

    rows: torch.Tensor  # (row,) of the wave
    anchors: torch.Tensor  # (row, anchor) positions, ascending
    labels: torch.Tensor  # (row, anchor, k) positions of the labels, clipped to the row
    valid: torch.Tensor  # (row, anchor, k)

    def take(self, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """values (row of the wave, position, ...) at (row, ...) positions of these rows."""
        index = self.rows.view(-1, *[1] * (positions.dim() - 1)).expand_as(positions)
        return values[index, positions]


def draw_blocks(wave: Wave, rows: torch.Tensor, n_anchor: int, block_size: int) -> Blocks:
    """Anchors at random, without replacement, where the next token is a label."""
    labels = wave.labels[rows]
    length = labels.shape[1]
    weight = torch.where(wave.kinds[rows] == USER, USER_WEIGHT, 1.0) * labels
    weight = weight.roll(-1, dims=1)  # position a is an anchor when a + 1 is a label
    weight[:, -1] = 0.0
    weight[:, 0] = 0.0  # nothing precedes it: no features
    noise = torch.empty_like(weight).exponential_()
    anchors = (weight / noise).topk(n_anchor, dim=1).indices.sort(dim=1).values
    positions = anchors[..., None] + torch.arange(1, block_size, device=anchors.device)
    clipped = positions.clamp(max=length - 1)
    valid = labels.gather(1, clipped.flatten(1)).view_as(positions) & (positions < length)
    valid &= (weight.gather(1, anchors) > 0)[..., None]
    return Blocks(rows, anchors, clipped, valid.cumprod(dim=2).bool())


def block_positions(blocks: Blocks, block_size: int) -> torch.Tensor:
    """(row, anchor * block_size)"""
    steps = torch.arange(block_size, device=blocks.anchors.device)
    return (blocks.anchors[..., None] + steps).flatten(1)


def block_bias(
    blocks: Blocks, config: DrafterConfig, n_feature: int, dtype: torch.dtype
) -> torch.Tensor:
    """Attention bias: features before the anchor and inside the window, then the own block."""
    n_anchor, size = blocks.anchors.shape[1], config.block_size
    device = blocks.anchors.device
    anchor = blocks.anchors.repeat_interleave(size, dim=1)[..., None]
    position = block_positions(blocks, size)[..., None]
    at = torch.arange(n_feature, device=device)
    past = (at < anchor) & (position - at < config.window)
    block = torch.arange(n_anchor, device=device).repeat_interleave(size)
    own = (block[:, None] == block).expand(len(anchor), -1, -1)
    return bias_of(torch.cat([past, own], dim=2), config.n_head // config.n_head_kv, dtype)
