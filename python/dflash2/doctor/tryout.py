"""Variants against the file, and what the best of them says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash2.doctor.finding import Finding, fault
from dflash2.doctor.gguf_file import GgufFile
from dflash2.doctor.trial import Bench, Comparison, Trial, compare
from dflash2.doctor.variants import SELECTOR_OFF, Variant

SCREEN = 4  # of the blocks, every so many decide whether a variant is worth all of them


@dataclass(frozen=True)
class Tried:
    variant: Variant
    comparison: Comparison
    is_better: bool


def needs_length(variant: Variant) -> bool:
    """Windows are told apart only in contexts longer than they are."""
    return variant.topic == "window"


@dataclass(frozen=True)
class Room:
    """Where a variant is tried, and what the file itself does there."""

    bench: Bench
    base: Trial


class Tryout:
    """Tries variants. unary: the trial of the one without a selector."""

    def __init__(self, file: GgufFile, path: Path, n: int, stride: int) -> None:
        self.file = file
        self.path = path
        self.n = n
        self.stride = stride
        self.unary: Trial | None = None

    def of(self, variant: Variant, room: Room) -> Tried:
        self.file.write_copy(self.path, variant.edit())
        drafter = room.bench.drafter(self.path)
        is_unary = variant.name == SELECTOR_OFF
        if not is_unary:
            comparison = compare(room.bench.run(drafter, self.stride * SCREEN), room.base)
            if comparison.is_worse:
                return Tried(variant, comparison, False)
        trial = room.bench.run(drafter, self.stride)
        if is_unary:
            self.unary = trial
        comparison = compare(trial, room.base)
        n_draft = trial.overlap.shape[1]
        return Tried(variant, comparison, comparison.is_better(self.n, n_draft))


def named(tried: Sequence[Tried]) -> list[Finding]:
    """The variant that gains most names the fault; others that gain are its evidence."""
    better = sorted((t for t in tried if t.is_better), key=lambda t: -t.comparison.gain)
    if not better:
        return []
    best, others = better[0], better[1:]
    c = best.comparison
    evidence = (
        f"{best.variant.name}: {c.gain:+.2f} tokens accepted per sampled draft, "
        f"{c.length_gain:+.2f} accept length at temperature 0, p = {c.p:.1g} over {c.n} blocks"
    )
    if others:
        also = ", ".join(f"{t.variant.name} ({t.comparison.gain:+.2f})" for t in others[:3])
        evidence += f"; better as well: {also}"
    return [fault(best.variant.topic, best.variant.fault, evidence)]
