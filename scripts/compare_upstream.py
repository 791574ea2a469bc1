"""The same target and drafter file in upstream's llama-server and in our engine, greedy.

Our engine walks the lattice greedily and accepts equal samples, as upstream does, so both must
accept about as much per round. Prints accept lengths (1 + accepted / drafts); exit status 1 when
they differ by more than --tolerance.

    python scripts/compare_upstream.py [--outtype bf16] [--n-draft-max 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import smollm2
import upstream_server
from dflash2._native import core
from prompts import PROMPTS

N_CTX = 1024


def run_ours(
    target: Any, draft: Path, prompts: list[list[int]], args: argparse.Namespace
) -> dict[str, Any]:
    drafter = core.GraphDrafter(core.DraftModel(str(draft)), target, n_threads=args.threads)
    engine = core.Engine(target, drafter, n_draft_max=args.n_draft_max, accept_rule="match")
    texts = []
    for prompt in prompts:
        request = core.Request()
        request.prompt = prompt
        request.max_tokens = args.max_tokens
        engine.begin(request)
        text = ""
        while not engine.done:
            text += "".join(token.text for token in engine.next())
        texts.append(text)
    stats = engine.total_stats
    return {
        "texts": texts,
        "num_tokens": stats.n_generated,
        "seconds": (stats.ms_draft + stats.ms_verify + stats.ms_sample) / 1000,
        "num_drafts": stats.n_drafts,
        "num_draft_tokens": stats.n_drafted,
        "num_accepted_tokens": stats.n_accepted,
        "accepted_per_pos": list(stats.accepted_per_pos),
    }


def accept_length(run: dict[str, Any]) -> float:
    return 1.0 + float(run["num_accepted_tokens"]) / float(run["num_drafts"])


def compare(target_path: Path, draft: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Both runs, their accept lengths and the ratio ours / upstream."""
    target = core.Target(str(target_path), n_ctx=N_CTX, n_threads=args.threads)
    prompts = [smollm2.chat_ids(target, text) for text in PROMPTS[: args.prompts]]
    job = {
        "target": str(target_path),
        "draft": str(draft),
        "n_draft_max": args.n_draft_max,
        "n_ctx": N_CTX,
        "n_threads": args.threads,
        "max_tokens": args.max_tokens,
        "prompts": prompts,
    }
    with ThreadPoolExecutor(1) as pool:  # side by side: counters are compared, not speed
        server = pool.submit(upstream_server.run, job)
        ours = run_ours(target, draft, prompts, args)
        upstream = server.result()
    same = sum(a == b for a, b in zip(ours.pop("texts"), upstream.pop("texts"), strict=True))
    for run in (ours, upstream):
        run["mean_accept_length"] = accept_length(run)
    return {
        "ours": ours,
        "upstream": upstream,
        "ratio": ours["mean_accept_length"] / upstream["mean_accept_length"],
        "identical_texts": same,
    }


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    print(f"{'':10}{'tokens':>8}{'drafts':>8}{'accepted':>10}{'accept length':>15}  by position")
    for name in ("upstream", "ours"):
        run = result[name]
        rates = [n / run["num_drafts"] for n in run["accepted_per_pos"]]
        print(
            f"{name:10}{run['num_tokens']:8}{run['num_drafts']:8}{run['num_accepted_tokens']:10}"
            f"{run['mean_accept_length']:15.3f}  {' '.join(f'{r:.2f}'.lstrip('0') for r in rates)}"
        )
    print(
        f"ratio {result['ratio']:.3f} (allowed: within {args.tolerance:.0%}), "
        f"{result['identical_texts']} of {args.prompts} texts identical"
    )


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="target GGUF (default: SmolLM2-135M)")
    parser.add_argument("--draft", type=Path, help="drafter GGUF (default: ours, as --outtype)")
    parser.add_argument("--outtype", default="q4_k_m", help="type of our drafter (default: q4_k_m)")
    parser.add_argument("--n-draft-max", type=int, default=7, help="drafted per round (default: 7)")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="default: all")
    parser.add_argument("--max-tokens", type=int, default=96, help="per prompt (default: 96)")
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
