"""Accept lengths of several settings on the same prompts, with paired bootstrap intervals.

    python scripts/compare_acceptance.py rules    # match rule and greedy walk against rejection
    python scripts/compare_acceptance.py types    # our drafter in torch, file types, reduced heads
    python scripts/compare_acceptance.py devices  # the GPU against the CPU

Tokens over rounds, the bonus token included; 95 % intervals over prompts; ratios against the first
setting of a group, resampled in pairs. Fixed length. Answers that loop stay in. `types` needs torch
(group `reference` of pyproject.toml).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dflash2
import numpy as np
import smollm2
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap
from tqdm import tqdm
from training.held_out import held_out_prompts

N_CTX = 1024
Counts = NDArray[np.int64]  # (prompts, 2): tokens and rounds


@dataclass(frozen=True)
class Setting:
    group: str
    name: str
    params: dflash2.SamplingParams
    outtype: str = "q4_k_m"
    accept_rule: str = "rejection"
    head_rows: int | None = None
    gpu_layers: int | None = None  # None: as on the command line


@dataclass(frozen=True)
class Row:
    group: str
    name: str
    accept_length: float
    interval: tuple[float, float]
    ratio: float  # to the first setting of the group
    ratio_interval: tuple[float, float]
    draft_ms: float | None  # of a round; in torch not measured
    draft_mb: float | None


def rules(max_tokens: int) -> list[Setting]:
    samplers = {
        "T 1": {"temperature": 1.0},
        "T 0.7, top-p 0.95": {"temperature": 0.7, "top_p": 0.95},
        "T 1, top-k 20, top-p 0.95": {"temperature": 1.0, "top_k": 20, "top_p": 0.95},
    }
    return [
        Setting(
            group,
            rule,
            dflash2.SamplingParams(**options, max_tokens=max_tokens, seed=1),
            accept_rule=rule,
        )
        for group, options in samplers.items()
        for rule in ("match", "rejection")
    ]


def types(max_tokens: int) -> list[Setting]:
    files: list[tuple[str, int | None]] = [(t, None) for t in ("torch", "bf16", "q8_0", "q4_k_m")]
    files += [("q4_k_m", rows) for rows in (16384, 8192, 4096)]
    return [
        Setting(
            f"T {temperature}",
            outtype if rows is None else f"{outtype}, head of {rows}",
            dflash2.SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=1),
            outtype=outtype,
            head_rows=rows,
        )
        for temperature in (0, 1)
        for outtype, rows in files
    ]


def devices(max_tokens: int) -> list[Setting]:
    return [
        Setting(
            f"T {temperature}",
            name,
            dflash2.SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=1),
            gpu_layers=layers,
        )
        for temperature in (0, 1)
        for name, layers in (("CPU", 0), ("GPU", -1))
    ]


GROUPS: dict[str, Callable[[int], list[Setting]]] = {
    "rules": rules,
    "types": types,
    "devices": devices,
}


def accept_length(counts: Counts) -> float:
    return float(counts[:, 0].sum() / counts[:, 1].sum())


def interval(statistic: Callable[..., float], n_prompt: int) -> tuple[float, float]:
    """Of a function of prompt indices, 95 % percentiles over prompts."""
    result = bootstrap(
        (np.arange(n_prompt),),
        statistic,
        n_resamples=2000,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def measure(setting: Setting, prompts: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Tokens and rounds of each prompt, and what the drafts cost."""
    draft = smollm2.draft_path(setting.outtype, args.target, setting.head_rows)
    counts, draft_ms = [], 0.0
    with dflash2.load(
        args.target,
        draft,
        n_ctx=N_CTX,
        n_threads=args.threads,
        n_gpu_layers=args.gpu_layers if setting.gpu_layers is None else setting.gpu_layers,
        spec_draft_n_max=args.n_max,
        accept_rule=setting.accept_rule,
    ) as engine:
        for text in tqdm(prompts, desc=f"{setting.group}: {setting.name}", leave=False):
            message = [{"role": "user", "content": text}]
            stats = engine.generate(engine.tokenize_chat(message), setting.params).stats
            # The first token comes from the prompt's pass.
            counts.append((stats.num_accepted_tokens + stats.num_drafts, stats.num_drafts))
            draft_ms += stats.draft_ms
    table = np.array(counts)
    return {
        "counts": table,
        "draft_ms": draft_ms / table[:, 1].sum(),
        "draft_mb": draft.stat().st_size / 1e6,
    }


def measure_torch(
    setting: Setting, prompts: Sequence[str], args: argparse.Namespace
) -> dict[str, Any]:
    """The same by the exact loop in torch: checkpoint and dequantized target, F32."""
    try:
        import torch
    except ImportError as e:
        raise SystemExit(f"error: {e}; pip install --group reference") from e
    from training.checkpoint import load_checkpoint
    from training.exact_loop import ExactLoop
    from training.target_weights import load_weights
    from training.vocabulary import load_vocabulary

    weights, vocabulary = load_weights(args.target), load_vocabulary(args.target)
    loop = ExactLoop(weights, vocabulary, torch.device("cpu"), print)
    drafter, params = load_checkpoint(smollm2.CHECKPOINT), setting.params
    (run,) = loop.run(drafter, prompts, params.temperature, params.max_tokens)
    table = torch.stack([run.produced, run.rounds], dim=1).numpy()
    return {"counts": table, "draft_ms": None, "draft_mb": None}


def compare(
    settings: Sequence[Setting], prompts: Sequence[str], args: argparse.Namespace
) -> list[Row]:
    rows: list[Row] = []
    base: Counts = np.empty((0, 2), np.int64)
    for i, setting in enumerate(settings):
        run = measure_torch if setting.outtype == "torch" else measure
        result = run(setting, prompts, args)
        counts = result["counts"]
        if i == 0 or settings[i - 1].group != setting.group:
            base = counts

        def length(index: NDArray[np.intp], counts: Counts = counts) -> float:
            return accept_length(counts[index])

        def ratio(index: NDArray[np.intp], counts: Counts = counts, base: Counts = base) -> float:
            return accept_length(counts[index]) / accept_length(base[index])

        everything = np.arange(len(prompts))
        rows.append(
            Row(
                setting.group,
                setting.name,
                length(everything),
                interval(length, len(prompts)),
                ratio(everything),
                (1.0, 1.0) if counts is base else interval(ratio, len(prompts)),
                result["draft_ms"],
                result["draft_mb"],
            )
        )
        print(json.dumps(asdict(rows[-1])), file=sys.stderr)
    return rows


def report(rows: Sequence[Row]) -> Table:
    table = Table()
    for column in ("sampling", "setting", "accept length", "ratio", "draft ms", "file MB"):
        table.add_column(column, justify="left" if column in ("sampling", "setting") else "right")
    for r in rows:
        table.add_row(
            r.group,
            r.name,
            f"{r.accept_length:.3f} [{r.interval[0]:.3f}, {r.interval[1]:.3f}]",
            f"{r.ratio:.3f} [{r.ratio_interval[0]:.3f}, {r.ratio_interval[1]:.3f}]",
            "-" if r.draft_ms is None else f"{r.draft_ms:.2f}",
            "-" if r.draft_mb is None else f"{r.draft_mb:.1f}",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=GROUPS)
    parser.add_argument("--target", type=Path, help="target GGUF (default: SmolLM2-135M)")
    parser.add_argument("--prompts", type=int, default=60, help="of the held-out (default: 60)")
    parser.add_argument("--max-tokens", type=int, default=128, help="per prompt (default: 128)")
    parser.add_argument("--n-max", type=int, default=7, help="drafted tokens (default: 7)")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--gpu-layers", type=int, default=0, help="-1: all (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    if args.what == "types" and args.n_max != 7:
        parser.error("--n-max: torch drafts whole blocks; types needs 7")
    args.target = args.target or smollm2.target_path()
    held_out = [prompt for _, prompt in held_out_prompts()]
    if not 2 <= args.prompts <= len(held_out):
        parser.error(f"--prompts: expected 2 to {len(held_out)}, got {args.prompts}")
    step = len(held_out) / args.prompts
    prompts = [held_out[int(i * step)] for i in range(args.prompts)]
    rows = compare(GROUPS[args.what](args.max_tokens), prompts, args)
    if args.json:
        print(json.dumps([asdict(r) for r in rows], indent=1))
    else:
        Console(width=120).print(report(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
