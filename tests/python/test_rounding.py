"""How much the width of a pass changes is measured; texts that part inside it decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from dflash2._native import core
from dflash2.doctor.lossless import Divergence, Losslessness
from dflash2.doctor.rounding import NEAR_TIE, SIGMAS, Rounding, measure_rounding


class TwoTokens:
    """Logits 1 and 0 of two tokens; in wide passes the second one is higher by the row's number."""

    n_batch = 3

    def truncate(self, n_keep: int) -> None:
        self.end = n_keep

    def decode(self, tokens: Sequence[int], position: int, *, all_logits: bool = False) -> None:
        assert position == self.end
        assert len(tokens) <= (8 if all_logits else self.n_batch)
        self.end += len(tokens)
        self.wide = len(tokens) > 1

    def logits(self, row: int) -> np.ndarray:
        return np.array([1.0, row if self.wide else 0.0], np.float32)


def test_changes_of_the_gap_are_counted() -> None:
    found = measure_rounding(TwoTokens(), [([7] * 5, [7] * 4)])  # type: ignore[arg-type]
    assert found.positions == 4
    assert found.noise == pytest.approx(np.sqrt((0 + 1 + 4 + 9) / 4))
    assert found.largest == 3.0
    assert found.other_best == 2  # where the second is higher by more than 1
    assert found.reach == SIGMAS * found.noise


def test_nothing_read_is_no_noise() -> None:
    found = measure_rounding(TwoTokens(), [])  # type: ignore[arg-type]
    assert (found.positions, found.noise, found.reach) == (0, 0.0, 0.0)


@pytest.mark.rounding
def test_the_cpu_rounds_all_widths_alike(pair: tuple[Path, Path]) -> None:
    target = core.Target(str(pair[0]), n_ctx=128, n_threads=1)
    found = measure_rounding(target, [([6, 7, 8], list(range(20, 50)))])
    assert found.positions == 30
    assert found.noise < NEAR_TIE / SIGMAS


@pytest.mark.parametrize(
    ("gap", "noise", "severities"),
    [
        (0.04, None, []),
        (0.9, None, ["fault"]),
        (0.9, 0.0, ["fault"]),
        (0.9, 0.2, ["fault"]),  # 4.5 times
        (0.9, 0.4, ["note"]),
    ],
)
def test_a_gap_inside_the_noise_decides_nothing(
    gap: float, noise: float | None, severities: list[str]
) -> None:
    rounding = None if noise is None else Rounding(100, noise, 2 * noise, 1)
    found = Losslessness(100, 3.0, [Divergence(0, 7, gap)], rounding)
    assert [finding.severity for finding in found.judge()] == severities
