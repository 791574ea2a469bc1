"""Statistics over the requests of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash2.errors import DFlash2Error
from dflash2.measure.store import Record

N_RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST = 8  # requests; a bootstrap over fewer is far too sure
MOST_VALUES = 24  # of a label; requests with rarer ones are shown together
OTHER, NONE = "(other)", "(none)"

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Requests, or the parts of requests, that have something in common.

    Args:
        requests: that have rounds here.
        rounds: draft rounds, expected number.
        n_context: tokens before a round, about, on average.
        mean_accept_length: tokens per target pass, 1 + accepted / rounds.
        interval: 95 % confidence, bootstrap over requests; None: too few of them.
        survival: (n_draft,): shares of rounds that keep at least 1, 2, .. drafted tokens.
    """

    requests: int
    rounds: float
    n_context: float
    mean_accept_length: float
    interval: tuple[float, float] | None
    survival: tuple[float, ...]

    @classmethod
    def of(cls, rows: Sequence[Vector]) -> Group:
        """rows: [rounds, contexts summed over rounds, *survivors] per request, (2 + n_draft,)."""
        counts = np.stack(rows)
        rounds, contexts, survivors = counts[:, 0], counts[:, 1], counts[:, 2:]
        total = float(rounds.sum())
        return cls(
            requests=len(counts),
            rounds=total,
            n_context=float(contexts.sum()) / total,
            mean_accept_length=1.0 + float(survivors.sum()) / total,
            interval=interval(survivors.sum(axis=1), rounds),
            survival=tuple(float(s) for s in survivors.sum(axis=0) / total),
        )


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a run. Groups are by value, in the order in which tables show them.

    Args:
        n_draft: tokens drafted per round.
        requests: measured; skipped: could not be measured.
        generated: requests whose answer was generated, not recorded.
        tokens: of all answers.
        likeliest: share of the tokens of recorded answers at temperature 0 that the target finds
            most likely: near 1 if they are its own. None: there are none.
        overall: None: nothing was drafted.
        generation: counters of the real generations, to compare `replayed_generation` with.
        labels: by name of a user's label.
        contexts: by the least number of tokens before the round.
    """

    n_draft: int
    requests: int
    skipped: int
    generated: int
    tokens: int
    likeliest: float | None
    overall: Group | None
    generation: Group | None
    replayed_generation: Group | None
    labels: dict[str, dict[str, Group]]
    parts: dict[str, Group]
    temperatures: dict[str, Group]
    contexts: dict[int, Group]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def summarize(records: Iterable[Record], labels: Sequence[str] = (), n_skipped: int = 0) -> Summary:
    """The same records in the same order give the same summary, to the last bit.

    Args:
        labels: the user's fields to split by.
        n_skipped: requests that could not be measured.
    """
    rows: dict[Any, list[Vector]] = {}
    n_requests = n_tokens = n_generated = n_likeliest = n_recorded = 0
    for record in records:
        n_requests += 1
        n_tokens += record.n_answer
        n_generated += record.generated is not None
        if record.generated is None and record.temperature == 0:
            n_likeliest += record.n_likeliest
            n_recorded += record.n_answer - 1
        for key, row in _rows(record, labels).items():
            if row[0] > 0:
                rows.setdefault(key, []).append(row)

    def groups(kind: object, keep: int | None = None) -> dict[Any, Group]:
        return _groups({key[1]: r for key, r in rows.items() if key[0] == kind}, keep)

    overall = groups("")
    return Summary(
        n_draft=len(overall["all"].survival) if overall else 0,
        requests=n_requests,
        skipped=n_skipped,
        generated=n_generated,
        tokens=n_tokens,
        likeliest=n_likeliest / n_recorded if n_recorded else None,
        overall=overall.get("all"),
        generation=overall.get("generation"),
        replayed_generation=overall.get("replayed"),
        labels={name: groups(("label", name), MOST_VALUES) for name in labels},
        parts=groups("part"),
        temperatures=groups("temperature"),
        contexts=groups("context"),
    )


def _rows(record: Record, labels: Sequence[str]) -> dict[Any, Vector]:
    """Rows for `Group.of`, by every group that a request belongs to."""
    found: dict[Any, Vector] = {}

    def add(kind: object, value: object, row: Vector) -> None:
        found[kind, value] = found.get((kind, value), 0.0) + row

    for tally in record.tallies:
        middle = 1.5 * tally.context if tally.context else 64.0
        row = np.array([tally.rounds, tally.rounds * middle, *tally.survivors])
        add("", "all", row)
        add("part", tally.part, row)
        add("context", tally.context, row)
        add("temperature", f"{record.temperature:g}", row)
        for name in labels:
            add(("label", name), record.labels.get(name, NONE), row)
        if record.generated is not None:
            add("", "replayed", row)
    if n := record.num_drafts:
        middle = record.n_prompt + record.n_answer / 2
        add("", "generation", np.array([n, n * middle, *record.accepted_per_pos]))
    return found


def _groups(rows: dict[Any, list[Vector]], keep: int | None) -> dict[Any, Group]:
    common = sorted(rows, key=lambda value: (-len(rows[value]), value))
    kept = common if keep is None or len(common) <= keep else common[:keep]
    found = {value: Group.of(rows[value]) for value in sorted(kept)}
    rest = [row for value in sorted(common[len(kept) :]) for row in rows[value]]
    if rest:
        found[OTHER] = Group.of(rest)
    return found


def interval(accepted: Vector, rounds: Vector) -> tuple[float, float] | None:
    """Percentile bootstrap of 1 + sum(accepted) / sum(rounds) over requests, (n_requests,) each.

    None: fewer than FEWEST.

    Raises:
        DFlash2Error: scipy is not installed.
    """
    if len(rounds) < FEWEST:
        return None
    try:
        from scipy.stats import bootstrap
    except ImportError as e:
        raise DFlash2Error(
            "confidence intervals need scipy; run: pip install 'ggml-dflash2[measure]'"
        ) from e
    found = bootstrap(
        (accepted, rounds),
        lambda a, r, axis: 1.0 + a.sum(axis=axis) / r.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=N_RESAMPLES,
        batch=max(1, 1_000_000 // len(rounds)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)
