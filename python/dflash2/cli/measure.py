"""`dflash2 measure`: how much of what the drafter drafts is accepted on your own traffic."""

from __future__ import annotations

import argparse
import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dflash2.cli import options
from dflash2.cli.ui import Ui
from dflash2.costs import CostTable
from dflash2.measure.projection import Projection, project
from dflash2.measure.recorder import Settings
from dflash2.measure.run import Measurer, Run, measure_here
from dflash2.measure.store import Store
from dflash2.measure.summary import Group, Summary
from dflash2.tune.result import saved_path

HELP = "acceptance on your own traffic, with a report"

LOCAL = "local"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--traffic",
        metavar="FILE",
        type=Path,
        required=True,
        help="JSON lines with messages, or a prompt and perhaps its completion",
    )
    group.add_argument(
        "--label", metavar="FIELD", action="append", default=[], help="split by it; repeatable"
    )
    group.add_argument(
        "--skip-bad", action="store_true", help="count lines that cannot be measured and go on"
    )
    group.add_argument(
        "-n",
        "--predict",
        "--max-tokens",
        metavar="N",
        type=options.positive,
        default=256,
        help="most tokens of an answer that has to be generated (default: 256)",
    )
    group.add_argument(
        "--temp", metavar="T", type=float, default=0.0, help="of lines that say none (default: 0)"
    )
    group.add_argument(
        "--spec-draft-n-max",
        "--num-draft-tokens",
        metavar="N",
        type=options.positive,
        help="tokens drafted per round (default: all that the drafter can)",
    )
    options.add_model_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="results, from which a broken-off run goes on (default: FILE-measured)",
    )
    group.add_argument(
        "--costs",
        metavar="FILE",
        type=Path,
        help="for the expected speed (default: what dflash2 tune saved here for these models)",
    )
    group.add_argument("--html", metavar="FILE", type=Path, help="write a report")
    group.add_argument(
        "--parquet", action="store_true", help="write the results to DIR/requests.parquet too"
    )
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no notes")
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const=LOCAL,
        help="spread over a Ray cluster (no ADDRESS: over this machine)",
    )


def run(args: argparse.Namespace) -> int:
    ui = Ui(quiet=args.quiet)
    if args.model_draft is None:
        args.usage_error("expected a drafter: -md FILE")
    if not (args.temp == 0 or 1e-3 <= args.temp <= 100):
        args.usage_error(f"--temp: expected 0, or 0.001 to 100, got {args.temp}")
    if args.costs is None:
        saved = saved_path(args.model, args.model_draft)
        args.costs = saved if saved.exists() else None
    costs = None if args.costs is None else CostTable.load(args.costs)
    settings = settings_of(args)
    out = args.out or args.traffic.with_name(f"{args.traffic.stem}-measured")
    out.mkdir(parents=True, exist_ok=True)
    if args.html is not None:
        from dflash2.measure.report import render

        if not args.html.parent.is_dir():
            raise FileNotFoundError(f"{args.html.parent}: expected a folder for --html, found none")
    measurer: Measurer = measure_here
    if args.ray is not None:
        from dflash2.measure.cluster import measure_on

        measurer = partial(measure_on, args.ray)
    with Store(out / "requests.jsonl") as store:
        todo = Run(args.traffic, settings, store, labels=args.label, skip_bad=args.skip_bad)
        with tqdm(total=len(todo), unit="request", disable=args.quiet or None) as bar:
            for _ in todo.measure(measurer):
                bar.update()
        summary = todo.summary()
        if args.parquet:
            store.write_parquet(out / "requests.parquet")
    projection = None if costs is None else project(summary, costs)
    result = as_json(args, settings, summary, projection)
    (out / "summary.json").write_text(result + "\n", encoding="utf-8")
    if args.html is not None:
        page = render(summary, projection, title=title(args), facts=facts(args, settings))
        args.html.write_text(page, encoding="utf-8")
        ui.note(f"report    {args.html}")
    print(result if args.json else as_text(summary, projection), flush=True)
    ui.note(f"results   {out}")
    return 0


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        target=args.model,
        draft=args.model_draft,
        n_draft=args.spec_draft_n_max,
        max_tokens=args.predict,
        temperature=args.temp,
        n_ctx=args.ctx_size,
        n_batch=args.batch_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
        draft_device=args.device_draft,
    )


def title(args: argparse.Namespace) -> str:
    return f"{Path(args.model_draft).name} on {args.traffic.name}"


def facts(args: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """Names of files without their folders: a page is passed on."""
    return {
        "Traffic": args.traffic.name,
        "Large model": Path(settings.target).name,
        "Drafter": Path(settings.draft).name,
        "Context": f"{settings.n_ctx} tokens",
        "Generated answers": f"up to {settings.max_tokens} tokens, temperature "
        f"{settings.temperature:g} where the traffic says none",
        "Costs": "not given" if args.costs is None else args.costs.name,
    }


def as_json(
    args: argparse.Namespace, settings: Settings, summary: Summary, projection: Projection | None
) -> str:
    result: dict[str, Any] = {
        "traffic": str(args.traffic),
        "settings": dataclasses.asdict(settings),
    }
    result |= summary.as_json()
    result["projection"] = None if projection is None else dataclasses.asdict(projection)
    return json.dumps(result, ensure_ascii=False, indent=1)


def as_text(summary: Summary, projection: Projection | None) -> str:
    skipped = f", {summary.skipped} skipped" if summary.skipped else ""
    lines = [f"{summary.requests} requests, {summary.tokens:,} tokens of answers{skipped}"]
    if summary.overall is None:
        return "\n".join([*lines, "no answer was long enough for a draft"])
    lines += ["", f"{'':24} requests   rounds   accept length (95 %)    by position"]
    lines.append(row("all", summary.overall))
    splits: list[tuple[str, dict[str, Group]]] = list(summary.labels.items())
    splits += [("part", summary.parts), ("temperature", summary.temperatures)]
    splits.append(("context from", {str(low): g for low, g in summary.contexts.items()}))
    for name, groups in splits:
        if len(groups) > 1:
            lines += ["", name, *(row(f"  {value}", group) for value, group in groups.items())]
    if projection is not None:
        speeds = " ".join(f"{m}: {x:.2f}" for m, x in enumerate(projection.speed_up[1:], start=1))
        lines += [
            "",
            f"expected speed, plain decoding = 1, by --spec-draft-n-max: {speeds}",
            f"best: --spec-draft-n-max {projection.best}, {projection.best_speed_up:.2f}x"
            if projection.best_speed_up > 1
            else "best: no drafter",
        ]
    return "\n".join(lines)


def row(name: str, group: Group) -> str:
    interval = (
        "" if group.interval is None else f"({group.interval[0]:.2f} to {group.interval[1]:.2f})"
    )
    positions = " ".join(f"{s:.2f}".lstrip("0") for s in group.survival)
    return (
        f"{name[:24]:24} {group.requests:8,} {group.rounds:8,.0f}   "
        f"{group.mean_accept_length:5.2f} {interval:16}   {positions}"
    )
