"""What one drafter does with the passages, and whether another one does better."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash2._native import core
from dflash2.errors import DFlash2Error
from dflash2.replay import Block, Reading, replay

CELL = 9  # tokens; blocks that begin in one cell are averaged: they look at the same text
LEAST_GAIN = 0.02  # of the drafted tokens; less can be a matter of the text
ALPHA = 0.05  # chance of a false alarm over all variants together


@dataclass(frozen=True)
class Trial:
    """Rows are blocks, in the order of passages and positions; columns drafted positions.

    Args:
        place: (n, 2), passage and position of the anchor.
        recalls, agrees, survives: (n, n_draft) booleans, see Block.
        overlap: (n, n_draft), chance that a token sampled at temperature 1 is accepted.
    """

    place: NDArray[np.int64]
    recalls: NDArray[np.bool_]
    agrees: NDArray[np.bool_]
    survives: NDArray[np.bool_]
    overlap: NDArray[np.float64]
    first_ids: float  # share of candidates that are ids below K: what a top-k of NaN gives

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Trial:
        blocks = sorted(blocks, key=lambda b: (b.reading, b.position))
        cand = np.array([b.cand for b in blocks])
        return cls(
            place=np.array([(b.reading, b.position) for b in blocks]),
            recalls=np.array([b.recalls for b in blocks]),
            agrees=np.array([b.agrees for b in blocks]),
            survives=np.array([b.survives for b in blocks]),
            overlap=np.array([b.overlap for b in blocks], np.float64),
            first_ids=float((cand < cand.shape[2]).mean()),
        )

    def __len__(self) -> int:
        return len(self.place)

    @property
    def accept_length(self) -> float:
        return 1 + float(self.survives.sum(axis=1).mean())

    def at(self, place: NDArray[np.int64]) -> Trial:
        """The blocks at these places only, all of which must be here."""
        row = {tuple(where): i for i, where in enumerate(self.place.tolist())}
        rows = [row[tuple(where)] for where in place.tolist()]
        return replace(self, **{name: getattr(self, name)[rows] for name in _ROWS})

    def cells(self) -> NDArray[np.float64]:
        """Overlap summed over positions, averaged over the blocks of a cell."""
        _, index = np.unique(self.place // (1, CELL), axis=0, return_inverse=True)
        index = index.reshape(-1)
        return np.asarray(
            np.bincount(index, self.overlap.sum(axis=1)) / np.bincount(index), np.float64
        )


_ROWS = ("place", "recalls", "agrees", "survives", "overlap")


@dataclass(frozen=True)
class Comparison:
    """A variant against the file, over the same blocks.

    Args:
        gain: of tokens per round accepted when sampling at temperature 1, bonus not counted.
        length_gain: of the mean accept length at temperature 0.
        p: that such a gain appears by chance.
    """

    gain: float
    length_gain: float
    p: float
    n: int

    @property
    def is_worse(self) -> bool:
        return self.gain < 0 and self.p > 0.95

    def is_better(self, n_variants: int, n_draft: int) -> bool:
        """Bonferroni's correction for the number of variants that were tried."""
        return self.p * n_variants < ALPHA and self.gain > LEAST_GAIN * n_draft


def require_scipy() -> None:
    """Raises DFlash2Error when scipy is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise DFlash2Error("doctor needs scipy; run: pip install 'ggml-dflash2[doctor]'")


def compare(variant: Trial, base: Trial) -> Comparison:
    """Paired t-test over cells. The base may have more blocks than the variant."""
    from scipy.stats import ttest_rel

    base = base.at(variant.place)
    a, b = variant.cells(), base.cells()
    same = np.allclose(a, b, atol=1e-6)
    p = 0.5 if same else float(ttest_rel(a, b, alternative="greater").pvalue)
    return Comparison(
        gain=float((variant.overlap - base.overlap).sum(axis=1).mean()),
        length_gain=variant.accept_length - base.accept_length,
        p=p,
        n=len(variant),
    )


class Bench:
    """The target's readings of the passages, and what drafters make of them.

    Args:
        readings: with the taps of `layers`.
        device: of the drafters.
    """

    def __init__(
        self,
        target: core.Target,
        readings: Sequence[Reading],
        layers: Sequence[int],
        device: str,
    ) -> None:
        self.target = target
        self.readings = readings
        self.layers = list(layers)
        self.device = device

    def drafter(self, path: Path) -> core.GraphDrafter:
        model = core.DraftModel(str(path), self.device)
        return core.GraphDrafter(model, self.target, n_threads=self.target.n_threads)

    def blocks(self, drafter: core.Drafter, stride: int) -> Iterator[Block]:
        """At every stride-th token of each passage."""
        columns = [self.layers.index(layer) for layer in drafter.target_layers()]
        readings = [
            replace(r, features=np.ascontiguousarray(r.features[:, columns])) for r in self.readings
        ]
        return replay(readings, drafter, stride=stride)

    def run(self, drafter: core.Drafter, stride: int) -> Trial:
        return Trial.of(list(self.blocks(drafter, stride)))
