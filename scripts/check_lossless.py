"""Greedy text with drafting against plain decoding of the same target, token by token.

A verify batch and a single-token pass may round differently, so the two may part at a near-tie:
there the logits of both tokens are read again and their gap is printed. Up to 0.05 is a near-tie.
If texts part beyond that, the target alone reads both again, plain text in passes of 1 row, drafted
text in passes about as wide as a verification: when drafted tokens are as often its best as plain
ones it is the target that rounds, else drafting has a bug. Exit status 1 for a bug.

    python scripts/check_lossless.py [--target T.gguf --draft D.gguf] [--f16] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dflash2
import smollm2
from dflash2._native import core
from dflash2.doctor.rounding import NEAR_TIE, logit_gap, measure_rounding
from prompts import PROMPTS

N_CTX = 1024
N_BATCH = 256


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs; None: equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def check(target: Path, draft: Path, args: argparse.Namespace) -> dict[str, Any]:
    params = dflash2.SamplingParams(temperature=0, max_tokens=args.max_tokens)
    place: Any = {"n_threads": args.threads, "n_gpu_layers": args.n_gpu_layers}
    fresh = core.Target(str(target), n_ctx=N_CTX, n_batch=N_BATCH, **place)
    differences = []
    plain_texts, drafted_texts = [], []
    with dflash2.load(target, draft, n_ctx=N_CTX, **place) as engine:
        for index, text in enumerate(PROMPTS[: args.prompts]):
            prompt = engine.tokenize_chat([{"role": "user", "content": text}])
            plain = engine.generate(prompt, params, spec_draft_n_max=0).tokens
            drafted = engine.generate(
                prompt, params, spec_draft_n_max=engine.spec_draft_n_max
            ).tokens
            plain_texts.append((prompt, plain))
            drafted_texts.append((prompt, drafted))
            at = first_difference(plain, drafted)
            if at is not None:
                gap = None
                if at < min(len(plain), len(drafted)):
                    gap = logit_gap(fresh, [*prompt, *plain[:at]], plain[at], drafted[at])
                differences.append({"prompt": index, "token": at, "gap": gap})
            if sys.stderr.isatty():
                end = "\n" if index + 1 == args.prompts else ""
                print(f"\r{index + 1}/{args.prompts}", end=end, file=sys.stderr, flush=True)
        stats = engine.total_stats
    wide = [d for d in differences if d["gap"] is None or d["gap"] > NEAR_TIE]
    rounding = measure_rounding(fresh, plain_texts, drafted_texts) if wide else None
    explained = [d for d in wide if d["gap"] is not None and rounding and rounding.explains]
    return {
        "prompts": args.prompts,
        "tokens": stats.num_generated_tokens // 2,
        "identical": args.prompts - len(differences),
        "near_ties": len(differences) - len(wide),
        "explained": len(explained),
        "failures": len(wide) - len(explained),
        "rounding": rounding and {"text": str(rounding), **asdict(rounding)},
        "differences": differences,
        "mean_accept_length": stats.mean_accept_length,
    }


def report(result: dict[str, Any]) -> None:
    for row in result["differences"]:
        gap = "ended early" if row["gap"] is None else f"logit gap {row['gap']:.4f}"
        print(f"prompt {row['prompt']:2}  first difference at token {row['token']:3}  {gap}")
    print(
        f"{result['tokens']} tokens of {result['prompts']} prompts, "
        f"mean accept length {result['mean_accept_length']:.2f}: "
        f"{result['identical']} identical, {result['near_ties']} parted at a near-tie "
        f"(gap up to {NEAR_TIE}), {result['explained']} where the target rounds, "
        f"{result['failures']} failures"
    )
    if result["rounding"]:
        print(result["rounding"]["text"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="target GGUF (default: SmolLM2-135M)")
    parser.add_argument(
        "--f16", action="store_true", help="of a copy in F16, which rounds less from pass to pass"
    )
    parser.add_argument("--draft", type=Path, help="drafter GGUF (default: ours, as --outtype)")
    parser.add_argument("--outtype", default="q4_k_m", help="type of our drafter (default: q4_k_m)")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="default: all")
    parser.add_argument("--max-tokens", type=int, default=128, help="per prompt (default: 128)")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    parser.add_argument("--n-gpu-layers", type=int, default=0, help="-1: all (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    target = args.target or smollm2.target_path()
    draft = args.draft or smollm2.draft_path(args.outtype, target)
    if args.f16:
        target = smollm2.requantized(target, "F16")
    result = check(target, draft, args)
    if args.json:
        print(json.dumps(result))
    else:
        report(result)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
