"""The same target and drafter file in upstream's llama-server and in our engine, greedy.

Our engine walks the lattice greedily and accepts equal samples, as upstream does, so both must
accept about as much per round. Prints accept lengths (1 + accepted / drafts); exit status 1 when
they differ by more than --tolerance.

The two round differently, so long texts part at near-ties and then differ by chance. Both therefore
continue the same contexts by a few tokens: each prompt with 0, 1, .. segments of our plain answer.

    python scripts/compare_upstream.py [--outtype bf16] [--n-draft-max 3] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dflash2
import smollm2
from dflash2.upstream.command import XLLAMACPP, server_flags
from dflash2.upstream.process import ServerProcess
from prompts import PROMPTS

N_CTX = 1024


def contexts(engine: dflash2.Engine, args: argparse.Namespace) -> list[list[int]]:
    """Token ids to continue: each prompt followed by 0, 1, .. segments of its plain answer."""
    params = dflash2.SamplingParams(temperature=0, max_tokens=args.segments * args.max_tokens)
    found = []
    for text in PROMPTS[: args.prompts]:
        prompt = engine.tokenize_chat([{"role": "user", "content": text}])
        answer = engine.generate(prompt, params, spec_draft_n_max=0).tokens
        found += [[*prompt, *answer[:n]] for n in range(0, len(answer), args.max_tokens)]
    return found


def run_ours(engine: dflash2.Engine, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    params = dflash2.SamplingParams(temperature=0, max_tokens=max_tokens)
    answers = [engine.generate(prompt, params) for prompt in prompts]
    stats = engine.total_stats
    return {
        "texts": [answer.text for answer in answers],
        "drafts": [answer.stats.num_drafts for answer in answers],
        "accepted": [answer.stats.num_accepted_tokens for answer in answers],
        "num_tokens": sum(len(answer.tokens) for answer in answers),
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "accepted_per_pos": list(stats.accepted_per_pos),
    }


def run_upstream(
    target: Path, draft: Path, prompts: list[list[int]], args: argparse.Namespace
) -> dict[str, Any]:
    flags = server_flags(
        target, draft, n_draft_max=args.n_draft_max, n_ctx=N_CTX, n_threads=args.threads
    )
    answers = []
    with ServerProcess(XLLAMACPP, flags) as server:
        counts = [server.counters()]
        for prompt in prompts:
            answers.append(server.complete(prompt, args.max_tokens, temperature=0.0))
            counts.append(server.counters())
    steps = list(itertools.pairwise(counts))
    return {
        "texts": [answer["content"] for answer in answers],
        "drafts": [b.num_drafts - a.num_drafts for a, b in steps],
        "accepted": [b.num_accepted_tokens - a.num_accepted_tokens for a, b in steps],
        "num_tokens": sum(answer["timings"]["predicted_n"] for answer in answers),
        **dataclasses.asdict(counts[-1]),
    }


def accept_length(run: dict[str, Any], which: list[int]) -> float:
    """1 + accepted / drafts over some of the continuations."""
    accepted, drafts = (sum(run[name][i] for i in which) for name in ("accepted", "drafts"))
    return 1.0 + accepted / drafts if drafts else 0.0


def compare(target: Path, draft: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Both runs, their accept lengths and the ratio ours / upstream."""
    engine = dflash2.load(
        target,
        draft,
        n_ctx=N_CTX,
        n_threads=args.threads,
        spec_draft_n_max=args.n_draft_max,
        accept_rule="match",
    )
    prompts = contexts(engine, args)
    with ThreadPoolExecutor(1) as pool:  # side by side: counters are compared, not speed
        server = pool.submit(run_upstream, target, draft, prompts, args)
        ours = run_ours(engine, prompts, args.max_tokens)
        upstream = server.result()
    every = list(range(len(prompts)))
    same = [i for i in every if ours["texts"][i] == upstream["texts"][i]]
    for run in (ours, upstream):
        run["mean_accept_length"] = accept_length(run, every)
        run["mean_accept_length_identical"] = accept_length(run, same)
    return {
        "ours": ours,
        "upstream": upstream,
        "ratio": ours["mean_accept_length"] / upstream["mean_accept_length"],
        "continuations": len(every),
        "identical": len(same),
    }


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    print(
        f"{'':10}{'tokens':>8}{'drafts':>8}{'accepted':>10}{'accept length':>15}"
        f"{'identical ones':>16}  by position"
    )
    for name in ("upstream", "ours"):
        run = result[name]
        rates = [n / run["num_drafts"] for n in run["accepted_per_pos"]]
        print(
            f"{name:10}{run['num_tokens']:8}{run['num_drafts']:8}{run['num_accepted_tokens']:10}"
            f"{run['mean_accept_length']:15.3f}{run['mean_accept_length_identical']:16.3f}"
            f"  {' '.join(f'{r:.2f}'.lstrip('0') for r in rates)}"
        )
    print(
        f"ratio {result['ratio']:.3f} (allowed: within {args.tolerance:.0%}), "
        f"{result['identical']} of {result['continuations']} continuations identical"
    )


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="target GGUF (default: SmolLM2-135M)")
    parser.add_argument("--draft", type=Path, help="drafter GGUF (default: ours, as --outtype)")
    parser.add_argument("--outtype", default="q4_k_m", help="type of our drafter (default: q4_k_m)")
    parser.add_argument("--n-draft-max", type=int, default=7, help="drafted per round (default: 7)")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="default: all")
    parser.add_argument("--segments", type=int, default=4, help="per prompt (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=24, help="per segment (default: 24)")
    parser.add_argument("--tolerance", type=float, default=0.05, help="default: 0.05")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


def main() -> int:
    args = arguments()
    target = args.target or smollm2.target_path()
    draft = args.draft or smollm2.draft_path(args.outtype, target)
    result = compare(target, draft, args)
    if args.json:
        print(json.dumps(result))
    else:
        report(result, args)
    return 0 if abs(result["ratio"] - 1.0) <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
