"""Drafters written in Python that stand in for the draft graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from dflash2._native import core
from numpy.typing import NDArray

TOP_K = 4


class FakeDrafter(core.Drafter):
    """Checks that the engine hands over each sequence's context without gaps; subclasses choose
    the candidates."""

    def __init__(self, target: core.Target, n_draft: int = 7, window: int = 0) -> None:
        super().__init__()
        self.n_vocab, self.n_embd = target.n_vocab, target.n_embd
        self.n_draft, self.window = n_draft, window
        self.layers = [1, 3] if target.n_layer > 3 else [0]
        self.begin = [0] * target.n_seq
        self.end = [0] * target.n_seq
        self.widths: list[int] = []  # of every draft

    def lattice(self, anchor: int, position: int, n_draft: int) -> core.Lattice:
        raise NotImplementedError

    def _visible(self, position: int) -> int:
        """Rows before a position that a draft there looks at."""
        return min(position, self.window) if self.window > 0 else position

    def truncate(self, seq: int, n_keep: int) -> bool:
        enough = n_keep - self._visible(n_keep) >= self.begin[seq]
        kept = n_keep == 0 or (n_keep <= self.end[seq] and enough)
        self.end[seq] = n_keep if kept else 0
        if self.end[seq] == 0:
            self.begin[seq] = 0
        return kept

    def inject(self, seq: int, features: NDArray[np.float32], position: int) -> None:
        n_rows, n_taps, n_embd = features.shape
        assert (n_taps, n_embd) == (len(self.target_layers()), self.n_embd)
        if self.begin[seq] == self.end[seq]:
            self.begin[seq] = self.end[seq] = position
        assert position == self.end[seq], "rows must follow the context without a gap"
        assert np.isfinite(features).all()
        assert features.any(axis=(1, 2)).all(), "a row was not computed"
        self.end[seq] += n_rows

    def draft(self, jobs: Sequence[tuple[int, int, int]], n_draft: int) -> list[core.Lattice]:
        assert len({seq for seq, _, _ in jobs}) == len(jobs)
        assert 1 <= n_draft <= self.n_draft
        for seq, anchor, position in jobs:
            assert position == self.end[seq], "the anchor must follow the context"
            assert 0 <= anchor < self.n_vocab
            assert position - self._visible(position) >= self.begin[seq], "the context misses rows"
        self.widths.append(n_draft)
        return [self.lattice(anchor, position, n_draft) for _, anchor, position in jobs]

    @property
    def n_calls(self) -> int:
        return len(self.widths)

    def max_draft(self) -> int:
        return self.n_draft

    def n_seq(self) -> int:
        return len(self.end)

    def context_window(self) -> int:
        return self.window

    def target_layers(self) -> list[int]:
        return self.layers


class Known(FakeDrafter):
    """Knows the tokens to come. Where `right` says no, another token is drafted instead."""

    def __init__(
        self, target: core.Target, tokens: Sequence[int], right: Callable[[int], bool]
    ) -> None:
        super().__init__(target)
        self.tokens = list(tokens)
        self.right = right

    def lattice(self, anchor: int, position: int, n_draft: int) -> core.Lattice:
        cand = np.zeros((n_draft, TOP_K), np.int32)
        for i in range(n_draft):
            at = position + 1 + i
            truth = self.tokens[at] if at < len(self.tokens) else 0
            first = truth if self.right(at) else truth + 1
            cand[i] = [(first + k) % self.n_vocab for k in range(TOP_K)]
        best_first = np.arange(TOP_K, 0, -1, dtype=np.float32)
        return core.Lattice(cand, np.broadcast_to(best_first, (n_draft, TOP_K, TOP_K)).copy())


class Scattered(FakeDrafter):
    """Informative random lattices, a pure function of anchor and position."""

    def __init__(self, target: core.Target, n_draft: int = 4, spread: float = 1.0) -> None:
        super().__init__(target, n_draft)
        random = np.random.default_rng(5)
        top_k = min(8, self.n_vocab)
        ids = range(self.n_vocab)
        cand = [[random.choice(ids, top_k, replace=False) for _ in range(n_draft)] for _ in ids]
        score = random.normal(scale=spread, size=(self.n_vocab, n_draft, top_k, top_k))
        self.lattices = [
            [
                core.Lattice(np.array(c[:n], np.int32), s[:n].astype(np.float32))
                for n in range(1, n_draft + 1)
            ]
            for c, s in zip(cand, score, strict=True)
        ]

    def lattice(self, anchor: int, position: int, n_draft: int) -> core.Lattice:
        return self.lattices[(anchor + 7 * position) % self.n_vocab][n_draft - 1]


class Bigram(FakeDrafter):
    """Knows the target's logits after a single token; good where `attention` is near 0."""

    def __init__(self, target: core.Target, alone: core.Target, n_draft: int = 7) -> None:
        """alone: the same model; its memory is overwritten."""
        super().__init__(target, n_draft)
        logits = []
        for token in range(self.n_vocab):
            alone.truncate(0)
            alone.decode([token], 0)
            logits.append(alone.logits(0))
        self.logits = np.stack(logits)
        self.best = np.argsort(-self.logits, axis=1)[:, :TOP_K].astype(np.int32)

    def lattice(self, anchor: int, position: int, n_draft: int) -> core.Lattice:
        cand = np.zeros((n_draft, TOP_K), np.int32)
        score = np.zeros((n_draft, TOP_K, TOP_K), np.float32)
        before = np.full(TOP_K, anchor, np.int32)
        for i in range(n_draft):
            cand[i] = self.best[before[0]]
            score[i] = self.logits[before[:, None], cand[i]]
            before = cand[i]
        return core.Lattice(cand, score)
