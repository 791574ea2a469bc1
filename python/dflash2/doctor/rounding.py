"""What the width of a pass changes in a target's own logits.

Kernels for many rows round differently from those for one, so the target itself may pick another
token at a near-tie. How near that is depends on backend, target and its file type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash2._native import core

WIDTH = 8  # rows, as in a verification
NEAR_TIE = 0.05  # of logits, wherever they round alike
SIGMAS = 6.0


@dataclass(frozen=True)
class Rounding:
    """Of passes of WIDTH rows against passes of one.

    Args:
        positions: that were compared.
        noise: root mean square change of the gap between the two best logits; largest: of them.
        other_best: positions where another token is best.
    """

    positions: int
    noise: float
    largest: float
    other_best: int

    @property
    def near_tie(self) -> float:
        """Gap of two logits up to which the target may pick either token."""
        return max(NEAR_TIE, SIGMAS * self.noise)


def measure_rounding(
    target: core.Target, texts: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> Rounding:
    """texts: (prompt, answer) in token ids. Uses sequence 0 of the target, which is empty then."""
    changes: list[float] = []
    other_best = 0
    for prompt, answer in texts:
        one, wide = (_logits(target, prompt, answer, width) for width in (1, WIDTH))
        best = np.argsort(one, axis=1)[:, -2:]
        gaps = [np.diff(np.take_along_axis(rows, best, axis=1))[:, 0] for rows in (one, wide)]
        changes += (gaps[1] - gaps[0]).tolist()
        other_best += int((one.argmax(axis=1) != wide.argmax(axis=1)).sum())
    target.truncate(0)
    if not changes:
        return Rounding(0, 0.0, 0.0, 0)
    size = np.abs(changes)
    return Rounding(len(size), float(np.sqrt(np.mean(size**2))), float(size.max()), other_best)


def _logits(
    target: core.Target, prompt: Sequence[int], answer: Sequence[int], width: int
) -> NDArray[np.float32]:
    """That predict the answer, in passes of `width` rows: (len(answer), n_vocab)."""
    target.truncate(0)
    tokens, first = [*prompt, *answer[:-1]], len(prompt) - 1
    for begin in range(0, first, target.n_batch):
        target.decode(tokens[begin : min(begin + target.n_batch, first)], begin)
    rows = []
    for begin in range(first, len(tokens), width):
        part = tokens[begin : begin + width]
        target.decode(part, begin, all_logits=True)
        rows += [target.logits(i) for i in range(len(part))]
    return np.array(rows)
