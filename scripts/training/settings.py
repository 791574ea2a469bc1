"""The drafter's sizes from the command's options, checked against the target."""

from __future__ import annotations

import argparse

from training.drafter import DrafterConfig
from training.target_weights import TargetWeights
from training.training_error import TrainingError
from training.vocabulary import Vocabulary

MASK_TOKENS = ("<|mask|>", "<reponame>", "<|fim_pad|>")  # ids that a target does not produce


def drafter_config(
    weights: TargetWeights, vocabulary: Vocabulary, args: argparse.Namespace
) -> DrafterConfig:
    """
    Raises:
        TrainingError: sizes that do not fit the target, or that engines refuse.
    """
    target = weights.config
    n_layer = target.n_layer

    def check(good: bool, text: str) -> None:
        if not good:
            raise TrainingError(text)

    check(
        1 <= args.layers <= n_layer,
        f"--layers: expected 1 to {n_layer} (the target's), got {args.layers}",
    )
    check(1 <= args.taps <= n_layer, f"--taps: expected 1 to {n_layer} layers, got {args.taps}")
    check(
        target.n_embd % args.conv_group == 0,
        f"--conv-group: expected a divisor of {target.n_embd}, got {args.conv_group}",
    )
    check(
        args.top_k * (args.top_k + 1) <= target.n_embd,
        f"--top-k: expected k * (k + 1) <= {target.n_embd}, the hidden size, got {args.top_k}",
    )
    check(
        2 <= args.block_size < args.length,
        f"--block-size: expected 2 to {args.length - 1}, below --length, got {args.block_size}",
    )
    check(
        args.length <= target.n_ctx,
        f"--length: expected at most {target.n_ctx}, the target's context, got {args.length}",
    )
    return DrafterConfig(
        n_layer=args.layers,
        n_embd=target.n_embd,
        n_ff=args.ffn or target.n_ff,
        n_head=target.n_head,
        n_head_kv=target.n_head_kv,
        head_dim=target.head_dim,
        n_vocab=target.n_vocab,
        n_target_layer=n_layer,
        taps=tap_layers(n_layer, args.taps),
        mask_id=_mask_id(vocabulary, args.mask_token),
        rope_theta=target.rope_theta,
        n_ctx=target.n_ctx,
        window=args.length,
        block_size=args.block_size,
        conv_group=args.conv_group,
        rank=args.rank,
        top_k=args.top_k,
    )


def tap_layers(n_layer: int, n_tap: int) -> tuple[int, ...]:
    """Layers whose outputs are tapped, spread as in the published drafters."""
    first, last = 1, n_layer - 3
    if n_tap == 1 or last <= first:
        return tuple(range(n_layer // 2, min(n_layer, n_layer // 2 + n_tap)))
    return tuple(sorted({round(first + i * (last - first) / (n_tap - 1)) for i in range(n_tap)}))


def _mask_id(vocabulary: Vocabulary, asked: str | None) -> int:
    for token in (asked,) if asked else MASK_TOKENS:
        ids = vocabulary.encode(token)
        if len(ids) == 1:
            return ids[0]
    raise TrainingError(
        "--mask-token: expected a token of the target that it never produces; "
        f"{asked or ' and '.join(MASK_TOKENS)!r} is none"
    )
