"""A wave: rows of text with everything the drafter learns from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.target import Target

FORCED, ASSISTANT, USER = 0, 1, 2  # kinds of a position: given, or written as one of the two

MAX_PERIOD = 48
MIN_REPEAT = 24


@dataclass
class Wave:
    """Rows of equal length, (row, position) each."""

    tokens: torch.Tensor
    kinds: torch.Tensor
    looped: torch.Tensor
    features: torch.Tensor  # (row, position, n_taps * n_embd)
    hidden: torch.Tensor  # (row, position, n_embd): the target's final rows
    temperatures: torch.Tensor  # (row,)

    @property
    def labels(self) -> torch.Tensor:
        """Where the token is one to be predicted."""
        return (self.kinds != FORCED) & ~self.looped

    def copy_(self, other: Wave) -> None:
        for name, values in vars(self).items():
            values.copy_(getattr(other, name))


def empty_wave(target: Target, n_row: int, length: int) -> Wave:
    device, n_embd = target.device, target.config.n_embd
    tokens = torch.zeros(n_row, length, dtype=torch.long, device=device)
    n_feature = len(target.taps) * n_embd
    return Wave(
        tokens,
        torch.zeros_like(tokens),
        torch.zeros_like(tokens, dtype=torch.bool),
        torch.empty(n_row, length, n_feature, device=device, dtype=target.dtype),
        torch.empty(n_row, length, n_embd, device=device, dtype=target.dtype),
        torch.zeros(n_row, device=device),
    )


def loops(tokens: torch.Tensor) -> torch.Tensor:
    """Where a text (row, position) has repeated a period of p tokens for max(24, 2p) tokens.
    The first two repeats stay: a drafter may learn to continue them."""
    n_row, length = tokens.shape
    looped = torch.zeros_like(tokens, dtype=torch.bool)
    index = torch.arange(length, device=tokens.device).expand(n_row, length)
    for period in range(1, min(MAX_PERIOD, length - 1) + 1):
        same = torch.zeros_like(looped)
        same[:, period:] = tokens[:, period:] == tokens[:, :-period]
        last_break = torch.where(same, -1, index).cummax(dim=1).values
        looped |= index - last_break >= max(MIN_REPEAT, 2 * period)
    return looped
