"""The lines at the end of a run. Counters and formulas as in vLLM's metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from dflash2.types import Stats


def report(stats: Stats, plain: Stats | None = None, note: str = "") -> str:
    """Several lines. plain: counters of plain decoding on the same prompt. note: added to it."""
    compared = ""
    if plain is not None:
        up = speed_up(stats, plain)
        compared = f"   (plain {plain.generation_tps:.1f}, speed-up {up:.2f}x{note})"
    lines = [
        f"prompt    {stats.num_prompt_tokens:6,} tok {stats.prompt_tps:9,.1f} tok/s",
        f"generate  {stats.num_generated_tokens:6,} tok "
        f"{stats.generation_tps:9,.1f} tok/s{compared}",
    ]
    if stats.num_drafts > 0:
        lines += [
            f"draft     {stats.num_drafts:6,} of {stats.num_rounds:,} rounds   "
            f"{stats.num_draft_tokens:,} drafted   {stats.num_verified_tokens:,} verified   "
            f"{stats.num_accepted_tokens:,} accepted ({100 * stats.acceptance_rate:.1f} %)   "
            f"mean accept length {stats.mean_accept_length:.2f}",
            "by position  " + " ".join(_rate(n, stats) for n in stats.accepted_per_pos),
        ]
    return "\n".join(lines)


def as_json(stats: Stats) -> dict[str, Any]:
    return {
        **dataclasses.asdict(stats),
        "mean_draft_length": stats.mean_draft_length,
        "mean_verified_length": stats.mean_verified_length,
        "prompt_tps": stats.prompt_tps,
        "generation_tps": stats.generation_tps,
    }


def speed_up(stats: Stats, plain: Stats) -> float:
    return stats.generation_tps / plain.generation_tps if plain.generation_tps > 0 else 0.0


def _rate(n: int, stats: Stats) -> str:
    """ ".92", or "1.0"."""
    return "1.0" if n == stats.num_drafts else f"{n / stats.num_drafts:.2f}".lstrip("0")
