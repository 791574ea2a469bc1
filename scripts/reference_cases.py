"""What the draft graph is compared with the torch reference on: drafters, contexts, tolerances.

Symbols in shapes: n_pos drafted positions (n_draft), k = top_k candidates, r = k + 4 ids
kept so that near-ties at the edge of the candidate set can be told from errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from make_tiny_models import N_VOCAB, Weights
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

# Measured on x86-64 with F32 weights and F32 draft K/V: the value in brackets. F16 K/V: 5e-3.
HIDDEN_TOLERANCE = 1e-4  # of the RMS of the row [3e-5; RoPE's rounding grows with the position]
LOGIT_TIE = 1e-4  # relative: candidates this close may take each other's place [1 of 528 sets]
EDGE_TOLERANCE = 1e-3  # absolute, in logits [5e-5]
PATH_AGREEMENT = 0.99  # of the blocks; two close scores may swap a greedy pick [all]

N_ROUNDS = 16
N_SPARE = 4  # ids kept below the top k

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """A tiny drafter and the context that it drafts from."""

    name: str
    context: int  # rows injected before the first draft
    start: int = 0  # position of the first row
    feature_std: float = 1.0
    n_draft: int | None = None  # tokens drafted after the anchor; None: block_size - 1
    seed: int = 0
    checkpoint: dict[str, Any] = field(default_factory=dict)  # options of make_tiny_checkpoint

    @property
    def block_size(self) -> int:
        return int(self.checkpoint.get("block_size", 8))

    @property
    def width(self) -> int:
        """Columns of a feature row: n_taps * n_embd."""
        return len(self.checkpoint.get("taps", (0, 1, 2))) * int(self.checkpoint.get("hidden", 320))

    def rounds(self) -> Iterator[Round]:
        """The first round injects the context, the others 1 to block_size accepted rows."""
        weights = Weights(self.seed)
        raw = np.random.PCG64(np.random.SeedSequence([self.seed, 1])).random_raw(2 * N_ROUNDS)
        position = self.start
        for i in range(N_ROUNDS):
            n_rows = 1 + int(raw[2 * i]) % self.block_size if i else self.context
            features = weights.normal(f"features.{i}", (n_rows, self.width), self.feature_std)
            position += n_rows
            anchor = int(raw[2 * i + 1]) % N_VOCAB
            yield Round(features, anchor, position, self.n_draft or self.block_size - 1)


@dataclass(frozen=True)
class Round:
    features: Floats  # (n_rows, n_taps * n_embd): rows position - n_rows and later
    anchor: int
    position: int  # of the anchor
    n_draft: int


@dataclass(frozen=True)
class Block:
    """What the reference drafts in one round."""

    hidden: Floats  # (n_pos, n_embd): after the final norm, without the anchor's row
    ids: Ints  # (n_pos, r): best logits first
    logits: Floats  # (n_pos, r): of ids
    score: Floats  # (n_pos, from k, to k): edges among ids[:, :k]; from = 0 is the anchor at pos 0
    path: Ints  # (n_pos,): greedy


CASES = [
    Case("full", 12, checkpoint={"layer_types": [FULL] * 2}),
    Case("sliding-short-context", 10, checkpoint={"sliding_window": 32}),
    Case("sliding-long-context", 300, checkpoint={"sliding_window": 24}),
    Case("window-of-one-block", 20, checkpoint={"sliding_window": 8}),
    Case(
        "mixed-layers",
        40,
        checkpoint={"layers": 3, "layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 32},
    ),
    Case("far-from-zero", 21, start=300, checkpoint={"layer_types": [SLIDING, FULL]}),
    Case("tiny-features", 24, feature_std=0.01),  # the epsilon of the norms shows
    Case("huge-features", 24, feature_std=3e4),  # F16 overflows
    Case("short-block", 24, n_draft=3),  # fewer mask tokens than the drafter was trained with
    Case("causal-block", 30, checkpoint={"is_causal": True, "layer_types": [SLIDING, FULL]}),
    Case("block-16", 25, checkpoint={"block_size": 16, "sliding_window": 40}),
    Case(
        "conv-kernel-3", 33, checkpoint={"kernel": 3, "block_size": 16, "layer_types": [FULL] * 2}
    ),
    Case(
        "wide",
        50,
        checkpoint={
            "hidden": 512,
            "heads": 8,
            "kernel": 3,
            "block_size": 16,
            "layer_types": [FULL, SLIDING],
            "sliding_window": 48,
        },
    ),
    Case("logit-scale-and-softcap", 35, checkpoint={"output_multiplier": 1.75, "softcap": 6.0}),
    Case("embedding-scale", 35, checkpoint={"embedding_scale": math.sqrt(320.0)}),
    Case(
        "five-taps-rank-32",
        45,
        checkpoint={
            "layers": 4,
            "heads": 6,
            "kv_heads": 3,
            "head_dim": 32,
            "group": 32,
            "rank": 32,
            "top_k": 8,
            "taps": (0, 1, 2, 4, 6),
            "target_layers": 8,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        },
    ),
]


@dataclass
class Difference:
    """The largest differences over the blocks added, and the counts that back a verdict."""

    hidden: float = 0.0  # largest error of an element, relative to the RMS of its row
    edge: float = 0.0  # absolute
    n_pos: int = 0
    n_same_set: int = 0  # positions whose candidates are the reference's
    n_wrong_set: int = 0  # positions where a candidate differs by more than a near-tie
    n_blocks: int = 0
    n_same_path: int = 0

    def add(self, ref: Block, *, hidden: Floats, cand: Ints, score: Floats, path: Ints) -> None:
        """hidden (n_pos, n_embd), cand (n_pos, k), score (n_pos, from, to), path (n_pos,)."""
        self.add_path(ref.path, path)
        rms = np.sqrt(np.mean(ref.hidden**2, axis=1, keepdims=True))
        self.hidden = max(self.hidden, _largest((hidden - ref.hidden) / rms))
        k = ref.score.shape[1]
        for i, ids in enumerate(cand):
            self.n_pos += 1
            wanted = ref.ids[i, :k]
            if set(ids) == set(wanted):
                self.n_same_set += 1
            elif not _near_tie(ids, ref.ids[i], ref.logits[i], k):
                self.n_wrong_set += 1
            # Compare the edges between ids that both sides have.
            to, ref_to = np.nonzero(ids[:, None] == wanted)
            if i == 0:
                from_, ref_from = np.array([0]), np.array([0])
            else:
                from_, ref_from = np.nonzero(cand[i - 1][:, None] == ref.ids[i - 1, :k])
            edges = score[i][np.ix_(from_, to)] - ref.score[i][np.ix_(ref_from, ref_to)]
            self.edge = max(self.edge, _largest(edges))

    def add_path(self, ref: Ints, path: Ints) -> None:
        self.n_blocks += 1
        self.n_same_path += int(np.array_equal(path, ref))

    def merge(self, other: Difference) -> None:
        self.hidden = max(self.hidden, other.hidden)
        self.edge = max(self.edge, other.edge)
        for name in ("n_pos", "n_same_set", "n_wrong_set", "n_blocks", "n_same_path"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def faults(self, *, coarse: bool = False) -> list[str]:
        """What is out of tolerance, one line each; empty when the graph matches the reference.

        coarse: for backends that multiply F32 in TF32 or F16.
        """
        hidden, edge = (1e-2, 3e-2) if coarse else (HIDDEN_TOLERANCE, EDGE_TOLERANCE)
        most_wrong = self.n_pos // 10 if coarse else 0
        agreement = 0.9 if coarse else PATH_AGREEMENT
        checks = [
            (self.hidden <= hidden, f"hidden: {self.hidden:.2e} > {hidden:g}"),
            (self.edge <= edge, f"edge scores: {self.edge:.2e} > {edge:g}"),
            (
                self.n_wrong_set <= most_wrong,
                f"candidates: {self.n_wrong_set} of {self.n_pos} sets differ",
            ),
            (
                self.n_same_path >= agreement * self.n_blocks,
                f"greedy paths: {self.n_same_path} of {self.n_blocks} blocks agree",
            ),
        ]
        return [text for passed, text in checks if not passed]


def _largest(values: Floats) -> float:
    """NaN counts as infinite, so that it can never pass for a small difference."""
    return float(np.max(np.nan_to_num(np.abs(values), nan=np.inf), initial=0.0))


def _near_tie(ids: Ints, ref_ids: Ints, ref_logits: Floats, k: int) -> bool:
    """Whether ids differ from the best k only by ids whose logits tie with the k-th best."""
    logit = dict(zip(ref_ids.tolist(), ref_logits.tolist(), strict=True))
    edge = logit[int(ref_ids[k - 1])]
    swapped = set(ids.tolist()) ^ set(ref_ids[:k].tolist())
    same_size = len(set(ids.tolist())) == k
    return same_size and all(
        i in logit and abs(logit[i] - edge) <= LOGIT_TIE * max(abs(edge), 1.0) for i in swapped
    )
