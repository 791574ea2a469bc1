"""What a drafter that works does on text that its target wrote greedily.

Wide on purpose: trained drafters of this design differ a lot, broken ones fall far outside.
SmolLM2-135M's has 0.95 and 0.58 at the first position, see docs/doctor.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash2.doctor.finding import Finding, fault
from dflash2.doctor.trial import Trial


@dataclass(frozen=True)
class Band:
    """least: a healthy drafter's smallest value, at the drafted position `position` (from 1)."""

    what: str
    position: int
    least: float


BANDS = (
    Band("recall of the candidates", 1, 0.75),
    Band("recall of the candidates", 2, 0.55),
    Band("selector pick", 1, 0.35),
    Band("survival", 2, 0.10),
)
LEAST_FIRST_IDS = 0.5  # share of candidates below K


def of(trial: Trial, what: str, position: int) -> float:
    values = {
        "recall of the candidates": trial.recalls,
        "selector pick": trial.agrees,
        "survival": trial.survives,
    }[what]
    return float(values[:, position - 1].mean())


def judge(trial: Trial, bands: Sequence[Band] = BANDS) -> list[Finding]:
    n_draft = trial.recalls.shape[1]
    if trial.first_ids > LEAST_FIRST_IDS:
        return [
            fault(
                "overflow",
                "the candidates are the first ids of the vocabulary: the logits are not numbers "
                "or all equal",
                f"{trial.first_ids:.0%} of the candidates",
            )
        ]
    below = [
        f"{band.what} at position {band.position} is {of(trial, band.what, band.position):.2f}, "
        f"expected {band.least:.2f} or more"
        for band in bands
        if band.position <= n_draft and of(trial, band.what, band.position) < band.least
    ]
    if not below:
        return []
    return [fault("bands", "drafts are far worse than a trained drafter's", "; ".join(below))]
