"""How often each token is written: the order of a reduced head."""

from __future__ import annotations

from pathlib import Path

import torch

from training.wave import Wave


def token_counts(wave: Wave, n_vocab: int) -> torch.Tensor:
    """(n_vocab,) on the CPU; given text and loops do not count."""
    return torch.bincount(wave.tokens[wave.labels], minlength=n_vocab).cpu()


def write_counts(counts: torch.Tensor, path: Path) -> None:
    """One count a line, token 0 first, as the converter's --head-counts reads."""
    path.write_text("".join(f"{n}\n" for n in counts.tolist()), encoding="ascii")
