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

CELL = 3  # neighbouring blocks are averaged: they look at almost the same text
LEAST_GAIN = 0.01  # of the drafted tokens; less is not worth a word
ALPHA = 0.01  # chance of a false alarm over all variants together


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

    def cells(self) -> NDArray[np.float64]:
        """Overlap summed over positions, averaged over neighbouring blocks."""
        score = self.overlap.sum(axis=1)
        means = []
        for passage in np.unique(self.place[:, 0]):
            of_passage = score[self.place[:, 0] == passage]
            means += [of_passage[i : i + CELL].mean() for i in range(0, len(of_passage), CELL)]
        return np.array(means)


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
    """Paired t-test over cells."""
    from scipy.stats import ttest_rel

    n = len(variant)
    base = replace(base, **{f: getattr(base, f)[:n] for f in _ROWS}) if n < len(base) else base
    if not np.array_equal(variant.place, base.place):
        raise ValueError("trials: expected the same blocks")
    a, b = variant.cells(), base.cells()
    same = np.allclose(a, b, atol=1e-6)
    p = 0.5 if same else float(ttest_rel(a, b, alternative="greater").pvalue)
    return Comparison(
        gain=float((variant.overlap - base.overlap).sum(axis=1).mean()),
        length_gain=variant.accept_length - base.accept_length,
        p=p,
        n=n,
    )


_ROWS = ("place", "recalls", "agrees", "survives", "overlap")


class Bench:
    """The target's readings of the passages, and what drafters make of them.

    Args:
        readings: with the taps of `layers`.
        n_threads: of the drafters.
    """

    def __init__(
        self,
        target: core.Target,
        readings: Sequence[Reading],
        layers: Sequence[int],
        device: str,
        stride: int,
    ) -> None:
        self.target = target
        self.readings = readings
        self.layers = list(layers)
        self.device = device
        self.stride = stride

    def drafter(self, path: Path) -> core.GraphDrafter:
        model = core.DraftModel(str(path), self.device)
        return core.GraphDrafter(model, self.target, n_threads=self.target.n_threads)

    def blocks(self, drafter: core.Drafter, n_readings: int | None = None) -> Iterator[Block]:
        """Over the first n_readings passages; None: all."""
        columns = [self.layers.index(layer) for layer in drafter.target_layers()]
        readings = [
            replace(r, features=np.ascontiguousarray(r.features[:, columns]))
            for r in self.readings[:n_readings]
        ]
        return replay(readings, drafter, stride=self.stride)

    def run(self, drafter: core.Drafter, n_readings: int | None = None) -> Trial:
        return Trial.of(list(self.blocks(drafter, n_readings)))
