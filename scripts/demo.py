"""One answer of SmolLM2-135M-Instruct with our drafter, then plain decoding of the same prompt.

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

PROMPT = "What are the steps to change a flat tyre on a car?"


def verdict(drafted: dflash2.Stats, plain: dflash2.Stats) -> str:
    """Whether drafting paid. The engine chose the lengths."""
    share = f"{drafted.num_drafts} of {drafted.num_rounds} rounds"
    if drafted.generation_tps > 1.02 * plain.generation_tps:
        return (
            f"drafting pays here: {share} had a draft, "
            f"a round yields {drafted.num_generated_tokens / drafted.num_rounds:.1f} tokens."
        )
    return (
        f"drafting does not pay here, and the engine noticed: {share} had a draft.\n"
        "A small model in Q4_1 is bound by arithmetic on a CPU, so each verified row costs nearly "
        "a step of its own;\nit pays where a pass is bound by reading the weights: large models, "
        "types with batch kernels, GPUs."
    )


def talk(text: str = "") -> None:
    print(text, file=sys.stderr, flush=True)


def commands(target: Path, draft: Path, prompt: str) -> str:
    """The steps of the demo as command lines, paths relative to here where that is shorter."""
    here = Path.cwd()
    paths = {str(p): os.path.relpath(p, here) for p in (target, draft, smollm2.CHECKPOINT)}
    paths |= {str(smollm2.CONVERT): os.path.relpath(smollm2.CONVERT, here)}
    paths |= {sys.executable: os.path.relpath(sys.executable, here)}
    convert = [paths.get(word, word) for word in smollm2.convert_command("q4_k_m", target)]
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

    target = smollm2.target_path()
    draft = smollm2.draft_path("q4_k_m", target)
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
        drafted = engine.stats
        talk("\nplain decoding of the same prompt ..")
        answer = engine.generate(tokens, params, spec_draft_n_max=0)
    same = ", same tokens" if answer.tokens == tuple(ids) else ", parted at a near-tie"
    talk(f"\n{report(drafted, answer.stats, same)}\n\n{verdict(drafted, answer.stats)}")
    talk(f"\nby hand:\n{commands(target, draft, args.prompt)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
