"""What the runs of a contender come to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash2.bench.contenders import Run
from dflash2.bench.paired import Runs


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One row.

    Args:
        tokens_per_second: all tokens of a repetition over its seconds, prompts not counted; the
            median of the repetitions. `_spread`: half of what lies between the extreme ones; None
            when there was one repetition.
        speed_up: over plain decoding in the same repetition, likewise; None: nothing to compare.
        n_tokens: in all runs.
        accept_length: 1 + accepted / drafts; 0 without drafts.
        round_ms, draft_ms, verify_ms, host_ms: of a round, of a draft, of a target pass, and of
            what else happens in a round; None where an engine does not tell.
    """

    name: str
    tokens_per_second: float
    tokens_per_second_spread: float | None
    speed_up: float | None
    speed_up_spread: float | None
    n_tokens: int
    accept_length: float
    round_ms: float
    draft_ms: float | None
    verify_ms: float | None
    host_ms: float | None


def summarize(name: str, runs: Runs, plain: Runs | None = None) -> Summary:
    """plain: runs of plain decoding in the same measurement."""
    rates = [rate(of_repetition) for of_repetition in runs]
    ratios = []
    if plain is not None:
        ratios = [a / rate(b) if rate(b) else 0.0 for a, b in zip(rates, plain, strict=True)]
    every = [run for of_repetition in runs for run in of_repetition]
    rounds = sum(run.num_rounds for run in every)
    drafts = sum(run.num_drafts for run in every)
    accepted = sum(run.num_accepted_tokens for run in every)
    total_ms = 1000.0 * sum(run.seconds for run in every)
    draft_ms, verify_ms = total(r.draft_ms for r in every), total(r.verify_ms for r in every)
    host_ms = None
    if draft_ms is not None and verify_ms is not None:
        host_ms = per(max(0.0, total_ms - draft_ms - verify_ms), rounds)
    return Summary(
        name=name,
        tokens_per_second=statistics.median(rates),
        tokens_per_second_spread=spread(rates),
        speed_up=statistics.median(ratios) if ratios else None,
        speed_up_spread=spread(ratios),
        n_tokens=sum(run.n_tokens for run in every),
        accept_length=1.0 + accepted / drafts if drafts else 0.0,
        round_ms=per(total_ms, rounds),
        draft_ms=None if draft_ms is None or not drafts else per(draft_ms, drafts),
        verify_ms=None if verify_ms is None else per(verify_ms, rounds),
        host_ms=host_ms,
    )


def rate(runs: Sequence[Run]) -> float:
    """Tokens per second over several runs."""
    seconds = sum(run.seconds for run in runs)
    return sum(run.n_tokens for run in runs) / seconds if seconds > 0 else 0.0


def spread(values: Sequence[float]) -> float | None:
    return (max(values) - min(values)) / 2.0 if len(values) > 1 else None


def total(values: Iterable[float | None]) -> float | None:
    """None when one of them is."""
    known = list(values)
    return None if None in known else sum(v for v in known if v is not None)


def per(value: float, n: int) -> float:
    return value / n if n else 0.0
