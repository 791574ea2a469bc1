"""How far the drafts of rounds along a known text survive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash2._native import core
from dflash2.replay import P_FLOOR, Block, Reading


class Survival:
    """Drafts at ascending places of a text. `reading` must have the features the drafter needs.

    Args:
        n_draft: tokens per draft.
    """

    def __init__(self, reading: Reading, drafter: core.Drafter, n_draft: int) -> None:
        self._reading = reading
        self._drafter = drafter
        self._n_draft = n_draft
        self._n_injected = reading.n_skipped
        drafter.truncate(0, 0)

    def at(self, position: int, n: int) -> Sequence[float]:
        """(up to n,): probabilities, given the text, that the round keeps at least 1, 2, .. tokens.

        A token x of the text was an accepted draft with probability min(p, q)(x) / p(x); at
        temperature 0 it was if the draft's token is x.

        Args:
            position: of the anchor, behind that of the call before.
            n: tokens that may be kept.
        """
        block = self._block(position, n)
        if block.temperature == 0:
            return [float(kept) for kept in block.survives]
        p = np.array([law(x) for law, x in zip(block.laws, block.text, strict=True)])
        kept = np.minimum(1.0, block.q_text / np.maximum(p, P_FLOOR))
        return [float(share) for share in np.cumprod(kept)]

    def _block(self, position: int, n: int) -> Block:
        r = self._reading
        rows = r.features[self._n_injected - r.n_skipped : position - r.n_skipped]
        self._drafter.inject(0, rows, self._n_injected)
        self._n_injected = position
        job = (0, int(r.tokens[position]), position)
        (lattice,) = self._drafter.draft([job], self._n_draft)
        n = min(n, len(lattice.cand))
        at = position - r.start
        return Block(
            reading=0,
            position=position,
            text=r.tokens[position + 1 : position + 1 + n],
            argmax=r.argmax[at : at + n],
            laws=r.laws[at : at + n],
            cand=lattice.cand[:n],
            score=lattice.score[:n],
            path=np.array(core.walk_greedy(lattice)[0][:n], np.int32),
            temperature=r.temperature,
        )
