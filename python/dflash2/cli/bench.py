"""`dflash2 bench`: plain decoding, ours and llama-server on the same prompts, in one run."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dflash2 import __version__
from dflash2._native import LLAMA_CPP_PYTHON
from dflash2.bench import Contender, OurEngine, Server, Summary, measure, summarize
from dflash2.bench.paired import n_runs
from dflash2.cli import options
from dflash2.engine import Engine
from dflash2.loader import load
from dflash2.prompts import BUILT_IN, LabelledPrompt, read_prompts
from dflash2.upstream.command import XLLAMACPP, find_server, server_flags
from dflash2.upstream.process import ServerProcess

HELP = "measure plain decoding, drafting and llama-server in one run"

PLAIN = "plain"
COLUMNS = (
    ("engine", "name"),
    ("tok/s", "tokens_per_second"),
    ("x plain", "speed_up"),
    ("accept length", "accept_length"),
    ("ms/round", "round_ms"),
    ("ms/draft", "draft_ms"),
    ("ms/verify", "verify_ms"),
    ("host ms/round", "host_ms"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help="a question a line, or *.jsonl with messages or prompt (default: 30 built-in ones)",
    )
    group.add_argument(
        "-p",
        "--n-prompt",
        metavar="N",
        type=options.positive,
        help="fill each prompt up to N tokens with the other ones (default: as they are)",
    )
    group.add_argument(
        "-r",
        "--repetitions",
        metavar="N",
        type=options.positive,
        default=3,
        help="runs of each prompt (default: 3)",
    )
    group.add_argument(
        "--spec-draft-n-max",
        metavar="N,..",
        type=lengths,
        default=[None],
        help="draft lengths to compare; auto: the engine chooses (default: auto)",
    )
    group.add_argument(
        "--server",
        metavar="PATH",
        help="also measure this llama-server; xllamacpp: the one inside that package",
    )
    group.add_argument(
        "-o", "--output", choices=["md", "json", "csv"], default="md", help="(default: md)"
    )
    options.add_model_options(parser)
    options.add_sampling_options(parser)
    parser.set_defaults(predict=128)


def lengths(text: str) -> list[int | None]:
    """ "auto,3,7"; None stands for auto."""
    return [None if item == "auto" else options.positive(item) for item in text.split(",")]


def run(args: argparse.Namespace) -> int:
    params = options.sampling_params(args)
    prompts = read_prompts(args.prompts) if args.prompts else BUILT_IN
    server = program(args.server)
    if args.threads is None:  # the same for all contenders
        args.threads = max(1, (os.cpu_count() or 2) // 2)
    with ExitStack() as stack:
        plain = stack.enter_context(load_engine(args, draft=False))
        contenders: list[Contender] = [OurEngine(PLAIN, plain)]
        tokens = prompt_tokens(plain, prompts, args.n_prompt)
        if args.model_draft:
            engine = stack.enter_context(load_engine(args, draft=True))
            for n in args.spec_draft_n_max:
                contenders.append(OurEngine(row_name("ours", n), engine, n))
        if server:
            for name, flags in server_rows(args):
                process = stack.enter_context(ServerProcess(server, flags))
                contenders.append(Server(name, process))
        n = n_runs(len(contenders), len(tokens), args.repetitions)
        with tqdm(total=n, unit="run", disable=None, leave=False) as bar:
            runs = measure(
                contenders, tokens, params, repetitions=args.repetitions, on_run=bar.update
            )
        about = describe(args, plain, tokens)
    rows = [summarize(c.name, of, runs[0]) for c, of in zip(contenders, runs, strict=True)]
    write(args.output, about, rows)
    return 0


def program(server: str | None) -> list[str]:
    """Empty: none asked for."""
    if server is None:
        return []
    return list(XLLAMACPP) if server == "xllamacpp" else [find_server(server)]


def load_engine(args: argparse.Namespace, *, draft: bool) -> Engine:
    return load(
        args.model,
        args.model_draft if draft else None,
        n_ctx=args.ctx_size,
        n_batch=args.batch_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
        draft_device=args.device_draft,
    )


def server_rows(args: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Plain, and each fixed length; llama-server knows no other, and takes 3 by default."""

    def flags(draft: str | None, n: int | None = None) -> list[str]:
        return server_flags(
            args.model,
            draft,
            n_draft_max=n,
            n_ctx=args.ctx_size,
            n_threads=args.threads,
            n_gpu_layers=args.n_gpu_layers,
            draft_device=args.device_draft,
        )

    rows = [("llama-server plain", flags(None))]
    if args.model_draft:
        fixed = [n for n in args.spec_draft_n_max if n is not None] or [3]
        rows += [(row_name("llama-server", n), flags(args.model_draft, n)) for n in fixed]
    return rows


def row_name(engine: str, n: int | None) -> str:
    return f"{engine} {'auto' if n is None else n}"


def prompt_tokens(
    engine: Engine, prompts: list[LabelledPrompt], n_prompt: int | None
) -> list[list[int]]:
    """Each prompt, after so much of the others that it has n_prompt tokens."""
    tokens = [prompt.tokens(engine) for prompt in prompts]
    if n_prompt is None:
        return tokens
    others = [token for prompt in tokens for token in prompt]
    filled = []
    for prompt in tokens:
        n = max(0, n_prompt - len(prompt))
        filled.append((others * (n // len(others) + 1))[:n] + prompt[-n_prompt:])
    return filled


def describe(args: argparse.Namespace, engine: Engine, prompts: list[list[int]]) -> dict[str, Any]:
    """What the numbers belong to."""
    return {
        "target": Path(args.model).name,
        "description": engine.description,
        "draft": Path(args.model_draft).name if args.model_draft else None,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "n_threads": args.threads,
        "n_gpu_layers": args.n_gpu_layers,
        "n_ctx": args.ctx_size,
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "max_tokens": args.predict,
        "temperature": args.temp,
        "repetitions": args.repetitions,
        "version": f"dflash2 {__version__}, llama-cpp-python {LLAMA_CPP_PYTHON}",
    }


def write(kind: str, about: dict[str, Any], rows: list[Summary]) -> None:
    if kind == "json":
        print(json.dumps({**about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1))
    elif kind == "csv":
        fields = [field.name for field in dataclasses.fields(Summary)]
        writer = csv.DictWriter(sys.stdout, [*about, *fields], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**about, **dataclasses.asdict(row)} for row in rows)
    else:
        print(as_markdown(rows))
        print("\n" + ", ".join(f"{key} {value}" for key, value in about.items()))


def as_markdown(rows: list[Summary]) -> str:
    cells = [[head for head, _ in COLUMNS]]
    cells += [[cell(row, field) for _, field in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    rule = [":" + "-" * (widths[0] - 1)] + ["-" * (width - 1) + ":" for width in widths[1:]]
    return "\n".join([lines[0], "| " + " | ".join(rule) + " |", *lines[1:]])


def cell(row: Summary, field: str) -> str:
    value = getattr(row, field)
    if value is None or (field == "accept_length" and not value):
        return "-"
    if isinstance(value, str):
        return value
    spread = getattr(row, f"{field}_spread", None)
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"
