"""Where training starts: the drafter's layers are the target's last ones."""

from __future__ import annotations

import torch

from training.drafter import Drafter
from training.target_weights import TargetWeights, Weights


@torch.no_grad()
def start_from_target(drafter: Drafter, target: TargetWeights) -> None:
    """Copies what fits: norm gains are folded into the matrices after them, and of a wider target
    feed-forward the strongest neurons are kept. fc starts as the last feature alone."""
    config, source = drafter.config, target.config
    n_embd = config.n_embd
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -n_embd:] = torch.eye(n_embd)
    drafter.norm.weight.copy_(target.norm)
    same_heads = (config.n_head, config.n_head_kv, config.head_dim) == (
        source.n_head,
        source.n_head_kv,
        source.head_dim,
    )
    for layer, weights in zip(drafter.layers, target.layers[-config.n_layer :], strict=True):
        if same_heads:
            _copy_attention(layer.self_attn, weights)
        if config.n_ff <= source.n_ff:
            _copy_mlp(layer.mlp, weights, config.n_ff)


def _copy_attention(attn: torch.nn.Module, weights: Weights) -> None:
    for name, norm in (("q", "q_norm"), ("k", "k_norm")):
        weight = weights[name] * weights["attn_norm"]
        getattr(attn, f"{name}_proj").weight.copy_(weight)
        # the drafter normalises heads: keep the typical length of the target's queries and keys
        gain = weights.get(norm)
        if gain is None:
            gain = weight.pow(2).sum(1).sqrt().mean().expand(attn.head_dim)
        getattr(attn, norm).weight.copy_(gain)
    attn.v_proj.weight.copy_(weights["v"] * weights["attn_norm"])
    attn.o_proj.weight.copy_(weights["o"])


def _copy_mlp(mlp: torch.nn.Module, weights: Weights, n_ff: int) -> None:
    gate, up = weights["gate"] * weights["ffn_norm"], weights["up"] * weights["ffn_norm"]
    strength = gate.norm(dim=1) * up.norm(dim=1) * weights["down"].norm(dim=0)
    keep = strength.topk(n_ff).indices.sort().values
    mlp.gate_proj.weight.copy_(gate[keep])
    mlp.up_proj.weight.copy_(up[keep])
    mlp.down_proj.weight.copy_(weights["down"][:, keep])
