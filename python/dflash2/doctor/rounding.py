"""Greedy text that its own target reads again.

Kernels round differently for passes of other widths, and quantized activations make small
differences large: such a target does not even agree with itself. Where drafted text parts from
plain text beyond near-ties, both are therefore read again, each in passes about as wide as those
that wrote it. Drafting is at fault when its tokens are less often the best ones than plain text's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash2._native import core
from dflash2.replay import N_LOGITS

WIDTH = 8  # rows, about as in a verification
NEAR_TIE = 0.05  # gap of two logits up to which texts may part
SIGMAS = 3.0  # of a difference of two counts
WORST = 2.0  # of the largest gap in plain text

Texts = Iterable[tuple[Sequence[int], Sequence[int]]]  # (prompt, answer) in token ids


@dataclass(frozen=True)
class Reading:
    """Of answers read again.

    Args:
        tokens: that were read.
        lower: of these, how many have a logit more than NEAR_TIE below the best.
        largest: gap to the best logit.
    """

    tokens: int
    lower: int
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.lower} of {self.tokens} tokens are not the best, largest gap {self.largest:.3f}"
        )


@dataclass(frozen=True)
class Rounding:
    """Plain text in passes of one row, drafted text in passes of WIDTH rows."""

    plain: Reading
    drafted: Reading

    @property
    def explains(self) -> bool:
        """Drafted text is as good a text of this target as its plain text."""
        expected = self.plain.lower / max(1, self.plain.tokens) * self.drafted.tokens
        error = math.sqrt(expected + self.drafted.lower)
        return self.drafted.lower - expected <= SIGMAS * error and self.drafted.largest <= max(
            NEAR_TIE, WORST * self.plain.largest
        )

    def __str__(self) -> str:
        return (
            f"read again by the target alone: of plain text {self.plain}, "
            f"of drafted text {self.drafted}"
        )


def measure_rounding(target: core.Target, plain: Texts, drafted: Texts) -> Rounding:
    """Uses sequence 0 of the target, which is empty then."""
    rounding = Rounding(_read(target, plain, 1), _read(target, drafted, WIDTH))
    target.truncate(0)
    return rounding


def logit_gap(target: core.Target, prefix: Sequence[int], a: int, b: int) -> float:
    """|logit(a) - logit(b)| after the prefix, decoded anew on sequence 0."""
    target.truncate(0)
    last = max(0, len(prefix) - N_LOGITS)
    for begin in range(0, last, target.n_batch):
        target.decode(prefix[begin : min(begin + target.n_batch, last)], begin)
    target.decode(prefix[last:], last)
    logits = target.logits(len(prefix) - last - 1)
    return abs(float(logits[a]) - float(logits[b]))


def _read(target: core.Target, texts: Texts, width: int) -> Reading:
    gaps = [
        float(row.max() - row[token])
        for prompt, answer in texts
        for token, row in zip(answer, _rows(target, prompt, answer, width), strict=True)
    ]
    return Reading(len(gaps), sum(gap > NEAR_TIE for gap in gaps), max(gaps, default=0.0))


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
