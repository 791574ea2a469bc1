"""A machine whose passes and drafts take what a test says: the clock of an engine."""

from __future__ import annotations

from collections.abc import Callable

from dflash2._native import core
from fake_drafters import FakeDrafter


class FakeMachine:
    """Give it as an engine's clock. `rows` are those of every target pass, padding included.

    Args:
        pass_ms: of a target pass over a number of rows.
        draft_ms: of a draft of a width.
    """

    def __init__(
        self,
        target: core.Target,
        drafter: FakeDrafter,
        pass_ms: Callable[[int], float],
        draft_ms: Callable[[int], float],
    ) -> None:
        self.target, self.drafter = target, drafter
        self.pass_ms, self.draft_ms = pass_ms, draft_ms
        self.rows: list[int] = []
        self.ms = 0.0  # passed so far
        self._n_reads = 0
        self._n_drafts = 0

    def __call__(self) -> float:
        """A round reads it at its begin, before the draft, around the pass and at its end."""
        moment = self._n_reads % 5
        self._n_reads += 1
        if moment == 2 and self.drafter.n_calls > self._n_drafts:
            self.ms += self.draft_ms(self.drafter.widths[-1])
        if moment == 3:
            self.rows.append(len(self.target.tapped()))
            self.ms += self.pass_ms(self.rows[-1])
        self._n_drafts = self.drafter.n_calls
        return self.ms
