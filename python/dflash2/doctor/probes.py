"""Ranges of the values inside the draft graph, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash2._native import core
from dflash2.doctor.finding import Finding, fault, note
from dflash2.doctor.trial import Bench

F16_MAX = 65504.0
N_BLOCKS, STRIDE = 8, 8


@dataclass(frozen=True)
class Probe:
    """Of one stage over some blocks. bad: values that are not finite; rms, largest: of the rest."""

    stage: str
    bad: int
    rms: float
    largest: float


def stages(n_layer: int) -> list[str]:
    """In the order of computation."""
    layers = [f"{kind}-{i}" for i in range(n_layer) for kind in ("attn_out", "layer_out")]
    return ["fc_out", "fused", *layers, "hidden"]


def probe(bench: Bench, drafter: core.GraphDrafter, n_layer: int) -> list[Probe]:
    """Drafts a few blocks of the first passage and looks into the graph."""
    names = stages(n_layer)
    values: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]] = {
        name: [] for name in names
    }
    drafter.watch(names)
    for _ in zip(range(N_BLOCKS), bench.blocks(drafter, STRIDE), strict=False):
        for name, data in drafter.watched().items():
            values[name].append(data.ravel())
    drafter.watch([])
    return [_probe(name, np.concatenate(values[name])) for name in names]


def _probe(name: str, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Probe:
    good = x[np.isfinite(x)].astype(np.float64)
    return Probe(
        stage=name,
        bad=len(x) - len(good),
        rms=float(np.sqrt(np.mean(good**2))) if len(good) else 0.0,
        largest=float(np.abs(good).max(initial=0)),
    )


def judge(probes: Sequence[Probe]) -> list[Finding]:
    for p in probes:  # what follows a bad stage inherits it
        if p.bad:
            text = f"{p.stage} has values that are not finite"
            return [fault("overflow", text, f"{p.bad} values")]
        if p.rms == 0:
            return [fault("layers", f"{p.stage} is all zeros")]
    large = [p for p in probes if p.largest > F16_MAX]
    if not large:
        return []
    text = f"values from {large[0].stage} on exceed the range of F16: do not compute in F16"
    return [note("overflow", text, f"largest {max(p.largest for p in large):.3g}")]
