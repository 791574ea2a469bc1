"""Expected speed: what was measured on the traffic, priced by a table of costs."""

from __future__ import annotations

from dataclasses import dataclass

from dflash2.costs import CostTable
from dflash2.measure.summary import Group, Summary


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Speeds relative to plain decoding, by tokens drafted per round.

    Args:
        speed_up: (1 + n_draft,): when 0, 1, .. tokens are drafted in every round.
        round_cost: (1 + n_draft,): of a round, in steps of plain decoding.
        verify_cost: (1 + n_draft,): the target's pass of it alone; 1 without a draft.
        labels: by name and value of a label, at the best length for all the traffic.
    """

    speed_up: tuple[float, ...]
    round_cost: tuple[float, ...]
    verify_cost: tuple[float, ...]
    labels: dict[str, dict[str, float]]

    @property
    def best(self) -> int:
        """Tokens to draft, 1 or more, even where plain decoding is faster."""
        return 1 + max(range(len(self.speed_up) - 1), key=lambda i: self.speed_up[1 + i])

    @property
    def best_speed_up(self) -> float:
        return self.speed_up[self.best]


def project(summary: Summary, costs: CostTable) -> Projection | None:
    """None: nothing was measured. Contexts are taken at their mean.

    Raises:
        ValueError: the table is for shorter drafts.
    """
    overall = summary.overall
    if overall is None:
        return None

    def speed_up(group: Group) -> tuple[float, ...]:
        return costs.speed_up(group.survival, round(group.n_context))

    n_context = round(overall.n_context)
    plain = costs.round_ms(0, n_context)
    counts = range(1 + summary.n_draft)
    found = Projection(
        speed_up=speed_up(overall),
        round_cost=tuple(costs.round_ms(m, n_context) / plain for m in counts),
        verify_cost=(1.0, *(costs.verify_ms(m, n_context) / plain for m in counts[1:])),
        labels={},
    )
    for label, groups in summary.labels.items():
        found.labels[label] = {v: speed_up(group)[found.best] for v, group in groups.items()}
    return found
