"""Greedy text with drafting against plain decoding of the same target, token by token.

A verify batch and a single-token pass may round differently, so the two may part at a near-tie:
there the logits of both tokens are read again and their gap is printed. A gap above --max-gap is a
bug: exit status 1.

    python scripts/check_lossless.py [--target T.gguf --draft D.gguf] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import smollm2
from dflash2._native import core
from prompts import PROMPTS


def generate(engine: Any, prompt: list[int], max_tokens: int, n_draft_max: int) -> list[int]:
    request = core.Request()
    request.prompt = prompt
    request.max_tokens = max_tokens
    request.n_draft_max = n_draft_max
    engine.begin(request)
    ids: list[int] = []
    while not engine.done:
        ids += [token.id for token in engine.next()]
    return ids


def first_difference(a: list[int], b: list[int]) -> int | None:
    """Index of the first token that differs; None: equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def logit_gap(target: Any, prefix: list[int], a: int, b: int) -> float:
    """|logit(a) - logit(b)| after `prefix`, decoded anew."""
    target.truncate(0)
    for start in range(0, len(prefix), 256):
        target.decode(prefix[start : start + 256], start, all_logits=True)
    logits = target.logits((len(prefix) - 1) % 256)
    return abs(float(logits[a]) - float(logits[b]))


def check(target_path: Path, draft_path: Path, args: argparse.Namespace) -> dict[str, Any]:
    target = core.Target(str(target_path), n_ctx=2048, n_threads=args.threads)
    drafter = core.GraphDrafter(core.DraftModel(str(draft_path)), target, n_threads=args.threads)
    engine = core.Engine(target, drafter)
    differences = []
    n_tokens = 0
    for index, text in enumerate(PROMPTS[: args.prompts]):
        prompt = smollm2.chat_ids(target, text)
        plain = generate(engine, prompt, args.max_tokens, n_draft_max=0)
        drafted = generate(engine, prompt, args.max_tokens, n_draft_max=-1)
        n_tokens += len(drafted)
        at = first_difference(plain, drafted)
        print(f"\r{index + 1}/{args.prompts}", end="", file=sys.stderr, flush=True)
        if at is not None:
            differences.append((index, at, prompt, plain, drafted))
    print(file=sys.stderr)

    rows = []
    for index, at, prompt, plain, drafted in differences:
        row: dict[str, Any] = {"prompt": index, "token": at, "gap": None}
        if at < min(len(plain), len(drafted)):
            row["gap"] = logit_gap(target, prompt + plain[:at], plain[at], drafted[at])
        rows.append(row)
    bad = [r for r in rows if r["gap"] is None or r["gap"] > args.max_gap]
    return {
        "prompts": args.prompts,
        "tokens": n_tokens,
        "identical": args.prompts - len(rows),
        "near_ties": len(rows) - len(bad),
        "failures": len(bad),
        "differences": rows,
        "mean_accept_length": engine.total_stats.mean_accept_length,
    }


def report(result: dict[str, Any], max_gap: float) -> None:
    for row in result["differences"]:
        gap = "ended early" if row["gap"] is None else f"logit gap {row['gap']:.4f}"
        print(f"prompt {row['prompt']:2}  first difference at token {row['token']:3}  {gap}")
    print(
        f"{result['tokens']} tokens of {result['prompts']} prompts, "
        f"mean accept length {result['mean_accept_length']:.2f}: "
        f"{result['identical']} identical, {result['near_ties']} parted at a near-tie "
        f"(gap up to {max_gap}), {result['failures']} failures"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="target GGUF (default: SmolLM2-135M)")
    parser.add_argument("--draft", type=Path, help="drafter GGUF (default: ours, as --outtype)")
    parser.add_argument("--outtype", default="q4_k_m", help="type of our drafter (default: q4_k_m)")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="default: all")
    parser.add_argument("--max-tokens", type=int, default=128, help="per prompt (default: 128)")
    parser.add_argument("--max-gap", type=float, default=0.05, help="near-tie (default: 0.05)")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    target = args.target or smollm2.target_path()
    draft = args.draft or smollm2.draft_path(args.outtype, target)
    result = check(target, draft, args)
    if args.json:
        print(json.dumps(result))
    else:
        report(result, args.max_gap)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
