"""One answer of SmolLM2-135M-Instruct in Q4_0 with our drafter, then the same without.

The answer goes to stdout; counters, the verdict and the commands to repeat it go to stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import dflash2
import smollm2
from dflash2.cli.report import report

N_MAX = 7  # drafted tokens of a whole block
OUTTYPE = "q4_0"  # its kernels for several rows are the fastest on a CPU
HEAD_ROWS = 8192  # most frequent tokens: a third of the cost of a draft on a CPU
PROMPT = "What are the steps to change a flat tyre on a car?"


def verdict(chosen: dflash2.Stats, fixed: dflash2.Stats, plain: dflash2.Stats) -> str:
    """Whether drafting paid, from the cost of a whole draft's round in plain steps."""
    step = (plain.verify_ms + plain.sample_ms) / max(plain.num_rounds, 1)
    verify = fixed.verify_ms / max(fixed.num_rounds, 1) / step
    draft = fixed.draft_ms / max(fixed.num_drafts, 1) / step
    share = chosen.num_drafts / max(chosen.num_rounds, 1)
    lines = [
        f"A round with {N_MAX} drafted tokens costs {verify + draft:.1f} plain steps "
        f"(verify {verify:.1f}, draft {draft:.1f}) "
        f"and yields {fixed.mean_accept_length:.1f} tokens.",
        f"The engine measured that and drafted in {100 * share:.0f} % of its rounds.",
    ]
    if share < 0.5:
        lines.append(
            "A small model on a CPU is bound by arithmetic, so each verified row costs much of a "
            "step of its own.\nDrafting pays where a pass is bound by reading the weights: large "
            "models, types with kernels for many rows, GPUs."
        )
    return "\n".join(lines)


def talk(text: str = "") -> None:
    print(text, file=sys.stderr, flush=True)


def commands(target: Path, draft: Path, prompt: str) -> str:
    """The steps of the demo as command lines, paths relative to here where that is shorter."""
    here = Path.cwd()
    paths = {str(p): os.path.relpath(p, here) for p in (target, draft, smollm2.CHECKPOINT)}
    paths |= {str(smollm2.CONVERT): os.path.relpath(smollm2.CONVERT, here)}
    paths |= {sys.executable: os.path.relpath(sys.executable, here)}
    convert = [
        paths.get(word, word) for word in smollm2.convert_command(OUTTYPE, target, HEAD_ROWS)
    ]
    program = os.path.relpath(Path(sys.executable).parent / "dflash2", here)
    models = ["-m", paths[str(target)], "-md", paths[str(draft)]]
    generate = [program, "generate", *models, "--chat", "-p", prompt, "--compare-plain"]
    serve = ["llama-server", *models, "--spec-type", "draft-dflash", "--spec-draft-n-max", "7"]
    return "\n".join(f"  {shlex.join(words)}" for words in (convert, generate, serve))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-p", "--prompt", default=PROMPT, help=f"default: {PROMPT}")
    parser.add_argument("-n", "--max-tokens", type=int, default=160, help="default: 160")
    args = parser.parse_args()

    target = smollm2.q4_0_target_path()
    draft = smollm2.draft_path(OUTTYPE, target, HEAD_ROWS)
    for name, file in (("target", target), ("drafter", draft)):
        talk(f"{name:8} {file.name}, {file.stat().st_size / 1e6:.1f} MB")
    talk(f"prompt   {args.prompt}\n")

    params = dflash2.SamplingParams(temperature=0, max_tokens=args.max_tokens)
    with dflash2.load(target, draft, n_ctx=2048) as engine:
        tokens = engine.tokenize_chat([{"role": "user", "content": args.prompt}])
        ids = []
        for token in engine.stream(tokens, params):
            print(token.text, end="", flush=True)
            ids.append(token.token)
        print(flush=True)
        chosen = engine.stats
        talk("\nthe same prompt with whole drafts, then without any ..")
        fixed = engine.generate(tokens, params, spec_draft_n_max=N_MAX)
        plain = engine.generate(tokens, params, spec_draft_n_max=0)
    for name, stats, answer in (
        ("length chosen in each round", chosen, tuple(ids)),
        (f"always {N_MAX} drafted tokens", fixed.stats, fixed.tokens),
    ):
        same = ", same tokens" if answer == plain.tokens else ", parted at a near-tie"
        talk(f"\n{name}\n{report(stats, plain.stats, same)}")
    talk(f"\n{verdict(chosen, fixed.stats, plain.stats)}")
    talk(f"\nby hand:\n{commands(target, draft, args.prompt)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
