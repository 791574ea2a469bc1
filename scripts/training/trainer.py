"""One training step, the optimisers and their schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from training.blocks import block_bias, block_positions, draw_blocks
from training.drafter import Drafter
from training.loss import head_loss, selector_loss
from training.muon import Muon
from training.wave import Wave


@dataclass(frozen=True)
class Recipe:
    """Everything about training but the drafter's sizes."""

    n_anchor: int = 64  # blocks in a row
    decay: float = 4.0  # label k = 1.. has weight exp(-(k - 1) / decay)
    reach: float = 0.5  # share of a weight that falls as earlier drafts of the block get unlikely
    soft: float = 0.5  # of a label: the target's distribution, the rest the written token
    sampled_soft: float = 1.0  # the same where the text was sampled, T > 0
    matrix_lr: float = 0.02  # Muon
    lr: float = 1e-3  # norms, convolutions, the selector's projection
    table_lr: float = 2e-3  # the selector's tables
    weight_decay: float = 0.01
    warmup: float = 0.02  # share of the run
    final_lr: float = 0.01  # of the peak
    selector: bool = True
    conv: bool = True


class Trainer:
    """embed, head: the target's, in the dtype of the computation."""

    def __init__(
        self, drafter: Drafter, embed: torch.Tensor, head: torch.Tensor, recipe: Recipe
    ) -> None:
        self.drafter, self.embed, self.head, self.recipe = drafter, embed, head, recipe
        self.dtype = embed.dtype
        if embed.is_cuda:
            for layer in drafter.layers:
                layer.compile(dynamic=False)
        matrices, others, tables = _split(drafter)
        if not recipe.conv:
            convs = [m for layer in drafter.layers for m in (layer.attention_conv, layer.mlp_conv)]
            frozen = {id(p) for conv in convs for p in conv.parameters()}
            others = [p for p in others if id(p) not in frozen]
        self._rates = torch.zeros(3, device=embed.device)
        self._peaks = torch.tensor([recipe.matrix_lr, recipe.lr, recipe.table_lr])
        self.muon = Muon(matrices, self._rates[0])
        self.adam = torch.optim.AdamW(
            [{"params": others, "lr": self._rates[1]}, {"params": tables, "lr": self._rates[2]}],
            betas=(0.9, 0.95),
            weight_decay=recipe.weight_decay,
            fused=embed.is_cuda,
            capturable=embed.is_cuda,
        )
        self._adam_params = others + tables

    def set_progress(self, progress: float) -> None:
        """Learning rates at a share of the run: warm-up, then a cosine."""
        recipe = self.recipe
        if progress < recipe.warmup:
            factor = progress / recipe.warmup
        else:
            x = min(1.0, (progress - recipe.warmup) / (1 - recipe.warmup))
            factor = recipe.final_lr + (1 - recipe.final_lr) * 0.5 * (1 + math.cos(math.pi * x))
        self._rates.copy_(self._peaks * factor)

    def step(self, wave: Wave, rows: torch.Tensor) -> torch.Tensor:
        """Trains on rows (row,) of the wave. Returns a row for `statistics`, still on the device,
        of the drafter before the step."""
        loss, numbers = self._loss(wave, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._adam_params, 1.0)
        self.muon.step()
        self.adam.step()
        self.muon.zero_grad()
        self.adam.zero_grad()
        return numbers

    def _loss(self, wave: Wave, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drafter, config, recipe = self.drafter, self.drafter.config, self.recipe
        blocks = draw_blocks(wave, rows, recipe.n_anchor, config.block_size)
        tokens = wave.tokens[rows]
        features = wave.features[rows].to(self.dtype)
        bias = block_bias(blocks, config, tokens.shape[1], self.dtype)
        ids = drafter.block_ids(tokens.gather(1, blocks.anchors)).flatten(1)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        with torch.autocast(tokens.device.type, self.dtype, enabled=self.dtype != torch.float32):
            past = drafter.context(features, positions)
            hidden = drafter(
                F.embedding(ids, self.embed), block_positions(blocks, config.block_size), past, bias
            )
            hidden = hidden.view(*blocks.anchors.shape, config.block_size, -1)[:, :, 1:]
            labels = blocks.take(wave.tokens, blocks.labels)
            previous = blocks.take(wave.tokens, blocks.labels - 1)
            # the target's row before a label is the one that predicts it
            truth = blocks.take(wave.hidden, blocks.labels - 1).to(self.dtype)
            shape = blocks.valid.shape
            cold = (wave.temperatures[rows] == 0)[:, None, None].expand(shape)
            soft = torch.where(cold, recipe.soft, recipe.sampled_soft).flatten()
            hidden = hidden.flatten(0, 2).to(self.dtype)
            out = head_loss(
                hidden, truth.flatten(0, 2), self.head, labels.flatten(), soft, config.top_k
            )
            weights = label_weights(out.overlap.view(shape), blocks.valid, recipe).flatten()
            head = loss = (weights * out.losses).sum()
            picks = out.candidates[:, 0]
            selector = torch.zeros_like(loss)
            if recipe.selector:
                losses, picks = selector_loss(
                    drafter.candidate_selector, hidden, previous.flatten(), out, soft
                )
                selector = (weights * losses).sum()
                loss = loss + selector
        found = (out.candidates[:, :-1] == out.candidates[:, -1:]).any(1).view(shape)
        first = (out.candidates[:, 0] == labels.flatten()).view(shape)
        picked = (picks == labels.flatten()).view(shape)
        hard = (weights * out.hard).sum()
        numbers = [torch.stack([head.detach(), hard, selector.detach()])]
        for mask in (cold, ~cold):
            valid = blocks.valid & mask
            for hits in (valid, found, first, picked):
                numbers.append((hits & valid).sum((0, 1)).float())
            for hits in (first, picked):  # lengths of whole blocks
                whole = valid.all(2)
                n = hits.cumprod(2).sum(2)
                numbers.append(torch.stack([whole.sum(), ((n + 1) * whole).sum()]).float())
        return loss, torch.cat(numbers)

    def state_dict(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter.state_dict(),
            "feature_scale": self.drafter.feature_scale,
            "muon": self.muon.state_dict()["state"],
            "adam": self.adam.state_dict()["state"],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drafter.load_state_dict(state["drafter"])
        self.drafter.feature_scale.copy_(state["feature_scale"])
        for optimizer, name in ((self.muon, "muon"), (self.adam, "adam")):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state[name], "param_groups": groups})
            # loading copies the rates: they must stay the schedule's
        for group, rate in zip(
            self.muon.param_groups + self.adam.param_groups, self._rates, strict=True
        ):
            group["lr"] = rate


def label_weights(overlap: torch.Tensor, valid: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Weights (.., k) of labels that sum to 1. overlap (.., k) stands for the chance that a draft
    is kept (it is that chance for text of temperature 1); a position counts only as far as the
    drafts before it are, which is what accept lengths reward."""
    depth = torch.arange(overlap.shape[-1], device=overlap.device)
    kept = F.pad(overlap[..., :-1], (1, 0), value=1.0).cumprod(-1)
    weights = torch.exp(-depth / recipe.decay) * (1 - recipe.reach + recipe.reach * kept) * valid
    return weights / weights.sum().clamp(min=1e-6)


def _split(
    drafter: Drafter,
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Matrices for Muon, the rest, and the selector's tables."""
    matrices, others, tables = [], [], []
    for name, p in drafter.named_parameters():
        if name.endswith("_codebook"):
            tables.append(p)
        elif name == "fc.weight" or name.endswith("_proj.weight"):
            matrices.append(p)
        else:
            others.append(p)
    return matrices, others, tables


@dataclass(frozen=True)
class Statistics:
    """Means over blocks; per position 1.. of the block. Teacher-forced: true text before each
    position. Lengths count the bonus token."""

    loss: float
    hard: float
    selector: float
    recall: list[list[float]]  # [T = 0, T > 0][position], of the label among the candidates
    unary: list[list[float]]  # the drafter's best is the label
    picked: list[list[float]]  # the selector's pick is
    unary_length: list[float]
    length: list[float]


def statistics(numbers: torch.Tensor, n_position: int) -> Statistics:
    """From (step, n) rows of `Trainer.step`."""
    values = numbers.double().cpu()
    loss, hard, selector = values[:, :3].mean(0).tolist()
    sums = values[:, 3:].sum(0).view(2, -1)
    rates = sums[:, : 4 * n_position].view(2, 4, n_position)
    rates = rates[:, 1:] / rates[:, :1].clamp(min=1)
    tail = sums[:, 4 * n_position :].view(2, 2, 2)
    lengths = tail[..., 1] / tail[..., 0].clamp(min=1)
    return Statistics(
        *(loss, hard, selector),
        *(rates[:, i].tolist() for i in range(3)),
        lengths[:, 0].tolist(),
        lengths[:, 1].tolist(),
    )
