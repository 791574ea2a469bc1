"""`dflash2 tune`: what drafting is worth on this machine and your prompts, and the best flags."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from dflash2._native import core
from dflash2.cli import options
from dflash2.cli.ui import Ui
from dflash2.costs import measure_costs, n_passes
from dflash2.errors import DFlash2Error
from dflash2.loader import open_models
from dflash2.prompts import QUESTIONS, LabelledPrompt, ask, labels, read_prompts
from dflash2.tune.result import TuneResult, expect, saved_path
from dflash2.tune.workload import Workload
from dflash2.types import SamplingParams
from dflash2.upstream.command import server_flags

HELP = "say which draft length pays on this machine, if any"

ALL = "all"
BUILT_IN = [ask(label, text) for label, texts in QUESTIONS.items() for text in texts[:2]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help="a question a line, or *.jsonl with messages or prompt (default: 12 built-in ones)",
    )
    group.add_argument(
        "--label",
        metavar="FIELD",
        default="task",
        help="field of *.jsonl that names the kind of work (default: task)",
    )
    group.add_argument(
        "-n",
        "--predict",
        "--max-tokens",
        metavar="N",
        type=options.positive,
        default=64,
        help="tokens of an answer (default: 64)",
    )
    group.add_argument("--temp", metavar="T", type=float, default=0.0, help="(default: 0)")
    group.add_argument("-s", "--seed", metavar="N", type=int, help="(default: 0, 1, ..)")
    group.add_argument(
        "--contexts",
        metavar="N,..",
        type=contexts,
        help="tokens at which costs are measured (default: as in the prompts, and 4 times that)",
    )
    group.add_argument(
        "-r",
        "--repetitions",
        metavar="N",
        type=options.positive,
        default=9,
        help="of each pass and draft (default: 9)",
    )
    options.add_model_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no notes")


def contexts(text: str) -> list[int]:
    return sorted({options.positive(item) for item in text.split(",")})


def run(args: argparse.Namespace) -> int:
    ui = Ui(quiet=args.quiet)
    if args.model_draft is None:
        args.usage_error("expected a drafter: -md FILE")
    try:
        params = SamplingParams(temperature=args.temp, seed=args.seed, max_tokens=args.predict)
    except ValueError as e:
        args.usage_error(str(e))
        raise
    prompts = read_prompts(args.prompts, args.label) if args.prompts else BUILT_IN
    path = saved_path(args.model, args.model_draft)
    target, drafter = open_models(
        args.model,
        args.model_draft,
        n_ctx=args.ctx_size,
        n_batch=args.batch_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
        draft_device=args.device_draft,
    )
    assert drafter is not None
    result = tune(args, target, drafter, prompts, params)
    result.save(path)
    if args.json:
        print(json.dumps({**result.as_json(), "flags": flags(args, result)}, indent=1))
    else:
        print_result(result, flags(args, result))
    ui.note(f"saved     {path}, for dflash2 serve")
    return 0


def tune(
    args: argparse.Namespace,
    target: core.Target,
    drafter: core.GraphDrafter,
    prompts: list[LabelledPrompt],
    params: SamplingParams,
) -> TuneResult:
    total = len(prompts) + n_passes(args.contexts or [0, 0], args.repetitions)
    with tqdm(total=total, disable=args.quiet or None, leave=False) as bar:
        answers = Workload(target, drafter, params).answers(prompts, bar.update)
        rounds = sum(a.drafted_rounds for a in answers)
        if not rounds:
            raise DFlash2Error("prompts: expected answers of several tokens, got none")
        n_context = round(statistics.mean(a.n_context for a in answers))
        most = target.n_ctx - (args.repetitions + 2) * 2 * (drafter.max_draft() + 2)
        costs = measure_costs(
            target,
            drafter,
            target.tokenize(text_of(prompts)),
            contexts=args.contexts or sorted({min(n_context, most), min(4 * n_context, most)}),
            repetitions=args.repetitions,
            on_pass=bar.update,
        )
    costs = costs.scaled(
        n_context,
        step_ms=sum(a.plain_ms for a in answers) / sum(a.n_tokens for a in answers),
        round_ms=sum(a.drafted_ms for a in answers) / rounds,
    )
    return TuneResult(
        target=str(Path(args.model).resolve()),
        draft=str(Path(args.model_draft).resolve()),
        settings={
            "n_ctx": args.ctx_size,
            "n_threads": target.n_threads,
            "n_gpu_layers": args.n_gpu_layers,
            "draft_device": args.device_draft,
            "temperature": args.temp,
        },
        costs=costs,
        overall=expect(ALL, answers, costs),
        classes=tuple(
            expect(label, of, costs)
            for label in labels(prompts)
            if (of := [a for a in answers if a.label == label])
        ),
    )


def text_of(prompts: list[LabelledPrompt]) -> str:
    return " ".join(
        prompt.text or " ".join(message["content"] for message in prompt.messages or ())
        for prompt in prompts
    )


def flags(args: argparse.Namespace, result: TuneResult) -> dict[str, str]:
    """Command lines to paste."""
    ours = ["dflash2", "generate", "-m", args.model]
    if result.overall.best:
        ours += ["-md", args.model_draft]
    if args.n_gpu_layers:
        ours += ["-ngl", str(args.n_gpu_layers)]
    n = result.overall.server_best
    server = server_flags(
        args.model,
        args.model_draft if n else None,
        n_draft_max=n or None,
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
        draft_device=args.device_draft,
    )
    return {"dflash2": shlex.join(ours), "llama-server": shlex.join(["llama-server", *server])}


def print_result(result: TuneResult, commands: dict[str, str]) -> None:
    console = Console(highlight=False)
    works = [*(result.classes if len(result.classes) > 1 else ()), result.overall]
    table = Table(title="expected tok/s", box=box.SIMPLE, show_footer=True)
    table.add_column("tokens drafted a round", footer="best, x plain", justify="right")
    for of in works:
        footer = f"{of.best}, {of.speed_up:.2f}"
        table.add_column(Text(of.label or "-"), footer=footer, justify="right")
    for m in range(result.costs.n_draft + 1):
        cells = [f"{of.tokens_per_second[m]:.1f}" for of in works]
        table.add_row("none" if m == 0 else str(m), *cells)
    console.print(table)
    verdict = "use the drafter here" if result.overall.best else "do not use a drafter here"
    console.print(f"{verdict}: {result.reason}", soft_wrap=True, markup=False)
    for name, command in commands.items():
        console.print(f"{name:13}{command}", soft_wrap=True, markup=False)
