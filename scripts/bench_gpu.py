#!/usr/bin/env python3
"""Plain decoding, upstream's draft-dflash and ours on models of real shapes, paired in one run.

The weights are random (make_shapes.py), so acceptance is forced: both engines keep the draft token
at position i with the same probability, of a geometric law whose mean accept length over a whole
block is the given one. Ours needs a build with -DDFLASH2_BENCH=ON for that; with --unforced both
accept what they happen to, which is good for a dry run only.

Times are wall times on the host. GPU busy and floor: see gpu_meter.py.

    python scripts/bench_gpu.py -m t.gguf -md d.gguf --server llama-server -o table
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import dflash2
import numpy as np
from dflash2.bench import Contender, OurEngine, Run, Server, measure, summarize
from dflash2.bench.paired import Runs
from dflash2.cli.bench import lengths, program, row_name
from dflash2.upstream.command import server_flags
from dflash2.upstream.process import ServerProcess
from gpu_meter import Floor, GpuBusy, floor_of

TOP_K, TOP_P = 40, 0.95  # llama-server's defaults, at temperature > 0

COLUMNS = (
    ("engine", "name", "{}"),
    ("context", "context", "{}"),
    ("T", "temperature", "{:g}"),
    ("length", "nominal_length", "{:.1f}"),
    ("measured", "accept_length", "{:.2f}"),
    ("tok/s", "tokens_per_second", "{:.1f}"),
    ("±", "tokens_per_second_spread", "{:.1f}"),
    ("x plain", "speed_up", "{:.2f}"),
    ("±", "speed_up_spread", "{:.2f}"),
    ("ms/round", "round_ms", "{:.2f}"),
    ("draft", "draft_ms", "{:.2f}"),
    ("verify", "verify_ms", "{:.2f}"),
    ("host", "host_ms", "{:.2f}"),
    ("tok/s at length", "at_length", "{:.1f}"),
    ("floor", "floor_ms", "{:.2f}"),
    ("GPU busy %", "gpu_busy", "{:.0f}"),
    ("first token ms", "first_token_ms", "{:.0f}"),
)


def synthetic_rates(length: float, n_draft: int, n_block: int) -> list[float]:
    """P(position i is kept) for i < n_draft: p^(i + 1), where 1 + p + .. + p^n_block = length.

    The law of upstream's --spec-synth-len, with one p whatever the number of drafted tokens.
    """
    roots = np.roots([*[1.0] * n_block, 1.0 - length])
    p = next(root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 0)
    return [float(min(p, 1.0)) ** (i + 1) for i in range(n_draft)]


def expected_length(length: float, n_draft: float, n_block: int) -> float:
    """Mean accept length of drafts of n_draft tokens at these rates; between two n: linear."""
    rates = synthetic_rates(length, n_block, n_block)
    return float(np.interp(n_draft, range(n_block + 1), np.cumsum([1.0, *rates])))


@dataclass
class Timed:
    """A contender whose runs are remembered.

    length: nominal accept length; None: plain decoding. before: called before each run.
    """

    contender: Contender
    length: float | None = None
    before: Callable[[], object] = lambda: None
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contender.name

    def run(self, prompt: list[int], params: dflash2.SamplingParams) -> Run:
        self.before()
        begin = time.monotonic()
        result = self.contender.run(prompt, params)
        self.spans.append((begin, time.monotonic()))
        return result


def forcing(engine: dflash2.Engine, rates: list[float]) -> Callable[[], object]:
    """Makes the engine accept at these rates when called."""
    set_rates = getattr(engine._streams.engine, "set_synthetic_acceptance", None)
    if set_rates is None:
        raise dflash2.DFlash2Error(
            "this build cannot force acceptance; build it with -DDFLASH2_BENCH=ON, "
            "or pass --unforced"
        )
    return partial(set_rates, rates)


def ours(stack: ExitStack, args: argparse.Namespace) -> Iterator[Timed]:
    def load(draft: Path | None) -> dflash2.Engine:
        return stack.enter_context(
            dflash2.load(
                args.model,
                draft,
                n_ctx=args.ctx_size,
                n_threads=args.threads,
                n_gpu_layers=args.n_gpu_layers,
            )
        )

    yield Timed(OurEngine("plain", load(None)))
    engine = load(args.model_draft)
    for length in args.accept_lengths:
        for n in args.ours:
            one = Timed(OurEngine(row_name("ours", n), engine, n), length)
            if not args.unforced:
                one.before = forcing(engine, synthetic_rates(length, args.block, args.block))
            yield one


def server_variants(args: argparse.Namespace) -> Iterator[tuple[str, Any, list[str]]]:
    """(name, accept length, flags) of every llama-server."""
    options = {
        "n_ctx": args.ctx_size,
        "n_threads": args.threads,
        "n_gpu_layers": args.n_gpu_layers,
    }
    more = ["--cache-ram", "0"]  # or it copies the K/V of a prompt to the host before the next one
    if not args.no_backend_sampling:
        more.append("--backend-sampling")
    yield "llama-server plain", None, server_flags(args.model, **options) + more
    for length in args.accept_lengths:
        for n in args.n_max:
            flags = server_flags(args.model, args.model_draft, n_draft_max=n, **options) + more
            if not args.unforced:
                rates = synthetic_rates(length, n, args.block)
                flags += ["--spec-synth-rates", ",".join(f"{rate:.6f}" for rate in rates)]
            yield f"llama-server {n}", length, flags


def prompt_of(n: int, seed: int) -> list[int]:
    """Random tokens that every vocabulary of make_shapes.py has."""
    return [int(token) for token in np.random.default_rng(seed).integers(300, 2000, n)]


def first_token_ms(one: Timed, n_context: int, args: argparse.Namespace) -> float:
    """Median wall time from a prompt that shares nothing with the last one to its first token."""
    params = dflash2.SamplingParams(max_tokens=1, ignore_eos=True)
    times = []
    for i in range(args.repetitions):
        one.run(prompt_of(n_context, 1 + i), params)
        begin, end = one.spans[-1]
        times.append(1000.0 * (end - begin))
    return statistics.median(times)


def at_length(one: Timed, runs: Runs, round_ms: float, args: argparse.Namespace) -> float | None:
    """Tokens per second if the runs had kept as many tokens as the rates say, at the same round."""
    drafts = sum(run.num_drafts for of_repetition in runs for run in of_repetition)
    tokens = sum(run.num_verified_tokens for of_repetition in runs for run in of_repetition)
    if one.length is None or args.unforced or not drafts:
        return None
    return 1000.0 * expected_length(one.length, tokens / drafts, args.block) / round_ms


def rows_of(
    turn: list[Timed], args: argparse.Namespace, floor: Floor, gpu: GpuBusy
) -> Iterator[dict[str, Any]]:
    """Every context and temperature, for the contenders that are up; the first is plain."""
    for n_context in args.contexts:
        prompt = prompt_of(n_context, 0)
        first: dict[str, float] = {}  # the same for every accept length
        for one in turn:
            if one.name not in first:
                first[one.name] = first_token_ms(one, n_context, args)
        for temperature in args.temperatures:
            params = dflash2.SamplingParams(
                temperature=temperature,
                max_tokens=args.predict,
                ignore_eos=True,
                top_k=TOP_K if temperature else 0,
                top_p=TOP_P if temperature else 1.0,
            )
            for one in turn:
                one.spans.clear()
            runs = measure(turn, [prompt], params, repetitions=args.repetitions)
            for one, its in zip(turn, runs, strict=True):
                row = dataclasses.asdict(summarize(one.name, its, runs[0]))
                yield {
                    "context": n_context,
                    "temperature": temperature,
                    "nominal_length": one.length,
                    **row,
                    "at_length": at_length(one, its, row["round_ms"], args),
                    "floor_ms": floor.round_ms(n_context, drafts=one.length is not None),
                    "gpu_busy": gpu.mean(one.spans[1:]),  # the first one only warms up
                    "first_token_ms": first[one.name],
                }


def all_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """With ours, as many servers at once as --at-once allows, until all had a turn."""
    floor = floor_of(args.model, args.model_draft, 1e9 * args.bandwidth)
    with ExitStack() as stack:
        gpu = stack.enter_context(GpuBusy())
        own = list(ours(stack, args))
        variants = list(server_variants(args))
        for at in range(0, len(variants), args.at_once):
            with ExitStack() as servers:
                turn = list(own)
                for name, length, flags in variants[at : at + args.at_once]:
                    process = servers.enter_context(ServerProcess(program(args.server), flags))
                    turn.append(Timed(Server(name, process, cache_prompt=True), length))
                yield from rows_of(turn, args, floor, gpu)


def markdown(rows: list[dict[str, Any]]) -> str:
    def place(r: dict[str, Any]) -> tuple[Any, ...]:
        return r["context"], r["temperature"], r["nominal_length"] or 0.0

    lines = [[head for head, _, _ in COLUMNS], [":--", *["--:"] * (len(COLUMNS) - 1)]]
    for r in sorted(rows, key=place):
        lines.append(["-" if r[key] is None else form.format(r[key]) for _, key, form in COLUMNS])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(out: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """OUT.json and OUT.md, written anew after every turn: what was measured is kept."""
    text = json.dumps({**about, "rows": rows}, indent=1)
    out.with_suffix(".json").write_text(text + "\n")
    notes = ", ".join(f"{key} {value}" for key, value in about.items())
    out.with_suffix(".md").write_text(f"{markdown(rows)}\n\n{notes}\n")


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(item) for item in text.split(",")]

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("-m", "--model", type=Path, required=True, help="target GGUF")
    add("-md", "--model-draft", type=Path, required=True, help="drafter GGUF")
    add("--server", required=True, help="llama-server, or xllamacpp: the one in that package")
    add("-o", "--out", type=Path, required=True, help="writes OUT.json and OUT.md")
    add("--contexts", type=numbers(int), default="512,8192", help="prompt tokens")
    add("--accept-lengths", type=numbers(float), default="3.8,4.8", help="over a whole block")
    add("--temperatures", type=numbers(float), default="0,1", help="top-k 40, top-p 0.95")
    add("--n-max", type=numbers(int), default="3,7", help="drafted by llama-server")
    add("--ours", type=lengths, default="auto", help="drafted by ours; auto: it chooses")
    add("--unforced", action="store_true", help="accept what is accepted")
    add("--no-backend-sampling", action="store_true", help="llama-server samples on the host")
    add("-n", "--predict", type=int, default=192, help="tokens per run")
    add("-r", "--repetitions", type=int, default=3, help="runs of each")
    add("--at-once", type=int, default=99, help="servers that fit beside ours in memory")
    add("-ngl", "--n-gpu-layers", type=int, default=-1, help="-1: all")
    add("-t", "--threads", type=int, default=8, help="on the CPU")
    add("--bandwidth", type=float, default=4300.0, help="of the memory, GB/s, for the floor")
    add("--note", default="", help="machine, commit and what else the numbers belong to")
    args = parser.parse_args()
    args.ctx_size = max(args.contexts) + args.predict + 64
    args.block = dflash2._native.core.DraftModel(str(args.model_draft)).hparams["block_size"] - 1
    return args


def main() -> int:
    args = arguments()
    about = {
        "target": args.model.name,
        "draft": args.model_draft.name,
        "predict": args.predict,
        "repetitions": args.repetitions,
        "forced": not args.unforced,
        "backend_sampling": not args.no_backend_sampling,
        "bandwidth": args.bandwidth,
        "note": args.note,
    }
    rows: list[dict[str, Any]] = []
    try:
        for row in all_rows(args):
            rows.append(row)
            write(args.out, about, rows)
    except (dflash2.DFlash2Error, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
