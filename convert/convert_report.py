"""A conversion result as a table, as JSON and as command lines to paste."""

from __future__ import annotations

import dataclasses
import json
import shlex

from drafter_convert import ConversionResult
from rich.console import Console
from rich.table import Table


def commands(result: ConversionResult) -> list[str]:
    """The command lines that run the converted drafter."""
    target, draft = shlex.quote(str(result.target)), shlex.quote(str(result.outfile))
    n_max = result.block_size - 1
    return [
        f"llama-server -m {target} -md {draft} --spec-type draft-dflash --spec-draft-n-max {n_max}",
        f"dflash2 generate -m {target} -md {draft} -p 'Write a haiku about caches.'",
    ]


def to_json(result: ConversionResult) -> str:
    """The result as one JSON object."""
    return json.dumps({**dataclasses.asdict(result), "commands": commands(result)}, default=str)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 100_000 else f"{n_bytes:,} B"


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.2g}"


def print_report(result: ConversionResult, console: Console) -> None:
    """Table of tensors, totals, and what to run next."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("tensor", "shape", "type"):
        table.add_column(title, no_wrap=True)
    for title in ("size", "max error", "relative rms"):
        table.add_column(title, justify="right", no_wrap=True)
    for t in result.tensors:
        table.add_row(
            t.name,
            "[" + ", ".join(map(str, t.shape)) + "]",
            t.type,
            _size(t.n_bytes),
            _number(t.max_error),
            _number(t.relative_rms),
        )
    console.print(table, markup=False)
    verb = "would write" if result.dry_run else "wrote and verified"
    console.print(
        f"\n{verb} {result.outfile}: {len(result.tensors)} tensors, {result.n_params / 1e6:,.1f} M "
        f"parameters, {_size(result.n_bytes)} (from {_size(result.source_bytes)}), "
        f"{result.seconds:.1f} s",
        soft_wrap=True,
        markup=False,
    )
    if result.dry_run:
        console.print(f"needs about {_size(result.memory_bytes)} of memory", markup=False)
    else:
        console.print("\nloads in llama.cpp b10658 or later and in dflash2:", markup=False)
        for line in commands(result):
            console.print("  " + line, soft_wrap=True, markup=False)
