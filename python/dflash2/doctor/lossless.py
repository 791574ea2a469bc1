"""Greedy text with drafting against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash2._native import core
from dflash2.doctor.finding import Finding, fault, note
from dflash2.doctor.passages import Passage
from dflash2.doctor.rounding import NEAR_TIE, Rounding, logit_gap, measure_rounding
from dflash2.engine import Engine
from dflash2.types import SamplingParams


@dataclass(frozen=True)
class Divergence:
    """First token that differs: its index in the answer, and the gap between the two logits."""

    passage: int
    token: int
    gap: float


@dataclass(frozen=True)
class Losslessness:
    """rounding: the texts read again, when they part beyond near-ties."""

    n_tokens: int
    accept_length: float
    divergences: list[Divergence]
    rounding: Rounding | None = None

    def judge(self) -> list[Finding]:
        wide = [d for d in self.divergences if d.gap > NEAR_TIE]
        if not wide:
            return []
        if self.rounding is not None and self.rounding.explains:
            return [
                note(
                    "lossless",
                    "drafted greedy text differs from plain decoding by more than near-ties, but "
                    "is as often the target's best as its plain text: the target rounds "
                    "differently from pass to pass, a file with less quantized weights does less",
                    str(self.rounding),
                )
            ]
        places = ", ".join(f"text {d.passage} token {d.token}, logit gap {d.gap:.3f}" for d in wide)
        return [
            fault(
                "lossless",
                "drafted greedy text differs from plain decoding, and not at a near-tie: "
                "this is a bug of the engine or a backend",
                f"{places}; {self.rounding}",
            )
        ]


def check(target: core.Target, drafter: core.Drafter, passages: Sequence[Passage]) -> Losslessness:
    """Drafts every passage again; its answer is the plain text."""
    if not passages:
        return Losslessness(0, 1.0, [])
    for seq in range(target.n_seq):
        target.truncate(0, seq=seq)
        drafter.truncate(seq, 0)
    engine = Engine(target, drafter, spec_draft_n_max=drafter.max_draft())
    n_max = max(len(p.answer) for p in passages)
    responses = engine.generate([p.prompt for p in passages], SamplingParams(max_tokens=n_max))
    stats = engine.total_stats
    places = []
    for i, (passage, response) in enumerate(zip(passages, responses, strict=True)):
        pairs = zip(passage.answer, response.tokens, strict=False)
        at = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
        if at is not None:
            places.append((i, at, passage.answer[at], response.tokens[at]))
    divergences = [
        Divergence(i, at, logit_gap(target, [*passages[i].prompt, *passages[i].answer[:at]], a, b))
        for i, at, a, b in places
    ]
    rounding = None
    if any(d.gap > NEAR_TIE for d in divergences):
        rounding = measure_rounding(
            target,
            [(p.prompt, p.answer) for p in passages],
            [  # no further than the plain answer, whose loops are cut off
                (p.prompt, r.tokens[: len(p.answer)])
                for p, r in zip(passages, responses, strict=True)
            ],
        )
    return Losslessness(stats.num_generated_tokens, stats.mean_accept_length, divergences, rounding)
