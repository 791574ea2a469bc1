"""How often each token is written: the order of a reduced head."""

from __future__ import annotations

from pathlib import Path

import torch

from training.wave import Wave


def token_counts(wave: Wave, n_vocab: int) -> torch.Tensor:
    """(n_vocab,) on the CPU; given text and loops do not count."""
    return torch.bincount(wave.tokens[wave.labels], minlength=n_vocab).cpu()


def write_counts(counts: torch.Tensor, path: Path) -> None:
    """Lines `token_id<TAB>count` of the tokens that occur, most frequent first."""
    order = counts.argsort(descending=True, stable=True).tolist()
    lines = [f"{token}\t{int(counts[token])}\n" for token in order if counts[token] > 0]
    path.write_text("".join(lines), encoding="utf-8")
