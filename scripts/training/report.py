"""Accept lengths with confidence intervals, as tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from training.speculate import Speculation

N_BOOTSTRAP = 1000


@dataclass(frozen=True)
class AcceptLength:
    """Tokens of a round, the bonus token included."""

    mean: float
    low: float  # of the 95 % interval over prompts
    high: float
    n_prompt: int
    survival: list[float]  # share of the rounds that kept position 1..


def accept_length(run: Speculation, rows: Sequence[int]) -> AcceptLength:
    """Over prompts `rows`; tokens over rounds, so that long outputs weigh more."""
    pairs = [(int(run.produced[i]), int(run.rounds[i])) for i in rows if run.rounds[i] > 0]
    draws = random.Random(0)
    means = sorted(_ratio(draws.choices(pairs, k=len(pairs))) for _ in range(N_BOOTSTRAP))
    index = list(rows)
    survival = run.survived[index].sum(0) / run.rounds[index].sum().clamp(min=1)
    low, high = means[int(0.025 * N_BOOTSTRAP)], means[int(0.975 * N_BOOTSTRAP)]
    return AcceptLength(_ratio(pairs), low, high, len(pairs), survival.tolist())


def _ratio(pairs: Sequence[tuple[int, int]]) -> float:
    produced, rounds = map(sum, zip(*pairs, strict=True)) if pairs else (0, 0)
    return produced / rounds if rounds else float("nan")


def table(name: str, run: Speculation, labels: Sequence[str]) -> str:
    """A few lines: all prompts that do not loop, each label, and all with loops."""
    quiet = [i for i in range(len(labels)) if not run.looped[i]]
    total = accept_length(run, quiet)
    everything = accept_length(run, range(len(labels)))
    positions = " ".join(f"{s:.3f}".lstrip("0") for s in total.survival)
    by_label = []
    for label in sorted(set(labels)):
        rows = [i for i in quiet if labels[i] == label]
        by_label.append(f"{label} {accept_length(run, rows).mean:.2f}")
    return (
        f"{name:24} {total.mean:.3f} [{total.low:.3f}, {total.high:.3f}]  {total.n_prompt} prompts,"
        f" with loops {everything.mean:.3f} ({int(run.looped.sum())} loop)\n"
        f"{'':24} by position {positions}\n{'':24} {', '.join(by_label)}"
    )
