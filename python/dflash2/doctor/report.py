"""An examination in words and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from dflash2.doctor.bands import BANDS, of
from dflash2.doctor.examination import Examination
from dflash2.doctor.finding import Finding
from dflash2.doctor.rounding import NEAR_TIE

N_SHOWN = 8  # variants


def verdict(e: Examination) -> str:
    """One sentence."""
    faults = [f for f in e.findings if f.severity == "fault"]
    if not faults:
        return f"healthy: no fault was found, and none of {len(e.tried)} variants drafts better"
    stages = list(dict.fromkeys(f.stage for f in faults))
    return f"not healthy: look at {', '.join(stages)}"


def as_json(e: Examination) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "target": e.target,
        "draft": e.draft,
        "healthy": e.healthy,
        "verdict": verdict(e),
        "findings": [dataclasses.asdict(f) for f in e.findings],
        "passages": e.n_passages,
        "blocks": len(e.trial),
        "accept_length": e.trial.accept_length,
        "positions": _positions(e),
        "bands": [
            {**dataclasses.asdict(b), "found": of(e.trial, b.what, b.position)}
            for b in BANDS
            if b.position <= e.trial.recalls.shape[1]
        ],
        "stages": [dataclasses.asdict(p) for p in e.probes],
        "variants": [
            {
                "name": t.variant.name,
                "stage": t.variant.topic,
                "better": t.is_better,
                **dataclasses.asdict(t.comparison),
            }
            for t in e.tried
        ],
        "lossless": dataclasses.asdict(e.losslessness),
    }


def as_text(e: Examination) -> str:
    return "\n".join(
        [
            f"target    {e.target}",
            f"drafter   {e.draft}",
            f"text      {e.n_passages} passages that the target wrote, {len(e.trial)} blocks",
            "",
            *_position_lines(e),
            "",
            *_stage_lines(e),
            "",
            *_variant_lines(e),
            "",
            *_lossless_lines(e),
            "",
            *(line for f in e.findings for line in _finding_lines(f)),
            verdict(e),
        ]
    )


def _positions(e: Examination) -> list[dict[str, float | None]]:
    t = e.trial
    return [
        {
            "recall_at_1": None if e.unary is None else float(e.unary.agrees[:, i].mean()),
            "recall_at_k": float(t.recalls[:, i].mean()),
            "pick": float(t.agrees[:, i].mean()),
            "survival": float(t.survives[:, i].mean()),
            "overlap": float(t.overlap[:, i].mean()),
        }
        for i in range(t.recalls.shape[1])
    ]


def _position_lines(e: Examination) -> list[str]:
    rows = _positions(e)
    names = {
        "recall_at_1": "recall@1",
        "recall_at_k": f"recall@{e.top_k}",
        "pick": "selector",
        "survival": "survival",
        "overlap": "T=1",
    }
    lines = ["position  " + " ".join(f"{i + 1:5}" for i in range(len(rows)))]
    for key, name in names.items():
        values = [row[key] for row in rows]
        if None not in values:
            cells = " ".join(f"{value:5.2f}" for value in values)
            least = [f"{b.least:.2f} at {b.position}" for b in BANDS if key == KEYS.get(b.what, "")]
            expected = f"   expected at least {', '.join(least)}" if least else ""
            lines.append(f"{name:9} {cells}{expected}")
    return [*lines, f"mean accept length {e.trial.accept_length:.2f} at temperature 0"]


KEYS = {
    "recall of the candidates": "recall_at_k",
    "selector pick": "pick",
    "survival": "survival",
}


def _stage_lines(e: Examination) -> list[str]:
    lines = [f"{'stage':12} {'rms':>9} {'largest':>9}  not finite"]
    for p in e.probes:
        lines.append(f"{p.stage:12} {p.rms:9.3g} {p.largest:9.3g}  {p.bad}")
    return lines


def _variant_lines(e: Examination) -> list[str]:
    if not e.tried:
        return ["no variants were tried"]
    lines = [f"{'variant, the best first':44} {'T=1':>6} {'T=0':>6}  {'p':>7}"]
    ranked = sorted(e.tried, key=lambda t: -t.comparison.gain)
    for t in ranked[:N_SHOWN]:
        c = t.comparison
        mark = "  better" if t.is_better else ""
        lines.append(
            f"{t.variant.name[:44]:44} {c.gain:+6.2f} {c.length_gain:+6.2f}  {c.p:7.2g}{mark}"
        )
    if len(ranked) > N_SHOWN:
        lines.append(f"and {len(ranked) - N_SHOWN} that draft worse still")
    return lines


def _lossless_lines(e: Examination) -> list[str]:
    found = e.losslessness
    head = (
        f"lossless  {found.n_tokens} tokens drafted and compared with plain decoding, "
        f"accept length {found.accept_length:.2f}"
    )
    if not found.divergences:
        return [f"{head}: identical"]
    return [head] + [
        f"  text {d.passage} parts at token {d.token}, logit gap {d.gap:.4f}"
        f"{' (a near-tie)' if d.gap <= NEAR_TIE else ''}"
        for d in found.divergences
    ]


def _finding_lines(f: Finding) -> list[str]:
    lines = [f"{f.severity:5} {f.stage}: {f.text}"]
    return [*lines, f"      {f.evidence}"] if f.evidence else lines
