"""Drafters written in Python that stand in for the draft graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from dflash2._native import core
from numpy.typing import NDArray

TOP_K = 4


class FakeDrafter(core.Drafter):
    """Keeps track of the context as the engine must hand it over; subclasses choose candidates."""

    def __init__(self, n_vocab: int, n_embd: int, n_draft: int = 7) -> None:
        super().__init__()
        self.n_vocab = n_vocab
        self.n_embd = n_embd
        self.n_draft = n_draft
        self.ends: dict[int, int] = {}  # where each sequence's context ends
        self.calls = 0

    def candidates(self, position: int) -> NDArray[np.int32]:
        """(TOP_K,) distinct ids for a position; the first one scores best."""
        raise NotImplementedError

    def truncate(self, seq: int, n_keep: int) -> bool:
        whole = n_keep <= self.ends.get(seq, 0)
        self.ends[seq] = n_keep if whole else 0
        return whole

    def inject(self, seq: int, features: NDArray[np.float32], position: int) -> None:
        n_rows, n_taps, n_embd = features.shape
        assert (n_taps, n_embd) == (len(self.target_layers()), self.n_embd)
        assert position == self.ends[seq], "rows must follow the context without a gap"
        assert np.isfinite(features).all()
        assert features.any(axis=(1, 2)).all(), "a row was not computed"
        self.ends[seq] += n_rows

    def draft(self, jobs: Sequence[tuple[int, int, int]], n_draft: int) -> list[core.Lattice]:
        assert 1 <= n_draft <= self.n_draft
        return [self.lattice(*job, n_draft) for job in jobs]

    def lattice(self, seq: int, anchor: int, position: int, n_draft: int) -> core.Lattice:
        assert position == self.ends[seq], "the anchor must follow the context"
        assert 0 <= anchor < self.n_vocab
        self.calls += 1
        cand = np.stack([self.candidates(position + 1 + i) for i in range(n_draft)])
        best_first = np.arange(TOP_K, 0, -1, dtype=np.float32)
        score = np.broadcast_to(best_first, (n_draft, TOP_K, TOP_K)).copy()
        return core.Lattice(cand.astype(np.int32), score)

    def n_seq(self) -> int:
        return 1

    def max_draft(self) -> int:
        return self.n_draft

    def context_window(self) -> int:
        return 0

    def target_layers(self) -> list[int]:
        return [1, 3]


class Oracle(FakeDrafter):
    """Drafts what is known to come: tokens[i] stands at position i."""

    tokens: list[int]

    def candidates(self, position: int) -> NDArray[np.int32]:
        truth = self.tokens[position] if position < len(self.tokens) else 0
        return np.array([truth, *((truth + i) % self.n_vocab for i in range(1, TOP_K))], np.int32)


class Garbage(FakeDrafter):
    """Drafts random tokens."""

    def __init__(self, n_vocab: int, n_embd: int) -> None:
        super().__init__(n_vocab, n_embd)
        self.random = np.random.default_rng(0)

    def candidates(self, position: int) -> NDArray[np.int32]:
        return self.random.choice(self.n_vocab, TOP_K, replace=False).astype(np.int32)


class Callback(FakeDrafter):
    """Calls a function at the start of each draft, then drafts token 0."""

    on_draft: Callable[[], None]

    def candidates(self, position: int) -> NDArray[np.int32]:
        self.on_draft()
        return np.arange(TOP_K, dtype=np.int32)
