"""What the width of a pass changes in a target's own logits.

Kernels for many rows round differently from those for one, so the target itself may pick another
token. Where that happens beyond near-ties, no comparison of texts can tell a bug from rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash2._native import core

WIDTH = 8  # rows, as in a verification
NEAR_TIE = 0.05  # gap of two logits up to which texts may part
SIGMAS = 3.0


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
    def reach(self) -> float:
        """Gap of two logits that the width alone may close."""
        return SIGMAS * self.noise

    def __str__(self) -> str:
        return (
            f"the target alone, passes of {WIDTH} rows against 1: the gap of the two best logits "
            f"changes by {self.noise:.4f} (root mean square), at most {self.largest:.4f}; another "
            f"token is best at {self.other_best} of {self.positions} positions"
        )


def measure_rounding(
    target: core.Target, texts: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> Rounding:
    """texts: (prompt, answer) in token ids. Uses sequence 0 of the target, which is empty then."""
    changes: list[float] = []
    other_best = 0
    for prompt, answer in texts:
        best, gaps = [], []
        for row in _rows(target, prompt, answer, 1):
            first, second = ids = np.argsort(row)[:-3:-1]
            best.append(ids)
            gaps.append(row[first] - row[second])
        wide = _rows(target, prompt, answer, WIDTH)
        for (first, second), gap, row in zip(best, gaps, wide, strict=True):
            changes.append(float(row[first] - row[second] - gap))
            other_best += int(row.argmax() != first)
    target.truncate(0)
    if not changes:
        return Rounding(0, 0.0, 0.0, 0)
    size = np.abs(changes)
    return Rounding(len(size), float(np.sqrt(np.mean(size**2))), float(size.max()), other_best)


def _rows(
    target: core.Target, prompt: Sequence[int], answer: Sequence[int], width: int
) -> Iterator[NDArray[np.float32]]:
    """Logits (n_vocab,) that predict each token of the answer, in passes of `width` rows."""
    target.truncate(0)
    tokens, first = [*prompt, *answer[:-1]], len(prompt) - 1
    for begin in range(0, first, target.n_batch):
        target.decode(tokens[begin : min(begin + target.n_batch, first)], begin)
    for begin in range(first, len(tokens), width):
        part = tokens[begin : begin + width]
        target.decode(part, begin, all_logits=True)
        yield from (target.logits(i) for i in range(len(part)))
