#!/usr/bin/env python3
"""Records what a draft would have been at every token of greedy answers.

    python scripts/record_drafts.py

Writes tests/data/drafts-smollm2.txt, for tests of the length controller: the 30 built-in prompts
and those of repeat_requests.jsonl, 97 tokens each, the Q4_0 target with its Q4_0 drafter.
A request is a line "LABEL PROMPT_TOKENS N" and N lines, one for each anchor:

    gap of the target's two largest logits where the anchor was chosen,
    the selector's confidence at each position of its path, in hundredths,
    and 1 or 0 for each position: whether the path has the target's own token there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from dflash2 import SamplingParams, load
from dflash2._native import core
from dflash2.prompts import BUILT_IN, LabelledPrompt, read_prompts
from dflash2.replay import Block, read, replay
from smollm2 import ROOT, draft_path, q4_0_target_path
from tqdm import tqdm

FILE = ROOT / "tests" / "data" / "drafts-smollm2.txt"
REPEATS = Path(__file__).with_name("repeat_requests.jsonl")
N_TOKENS = 97


def confidences(block: Block) -> list[float]:
    """The largest probability at each position of the path, as the engine has it at T = 0."""
    found, origin = [], 0
    for i, token in enumerate(block.path):
        score = block.score[i, origin]
        score = score[np.isfinite(score)]
        found.append(float(1 / np.exp(score - score.max()).sum()))
        origin = int(np.flatnonzero(block.cand[i] == token)[0])
    return found


def logit_gaps(target: core.Target, tokens: list[int], start: int) -> Iterator[float]:
    """Of the logits that tokens[start], tokens[start + 1] and so on were chosen from."""
    target.set_taps([])
    target.truncate(0)
    target.decode(tokens[: start - 1], 0, all_logits=False)
    for i in range(start - 1, len(tokens) - 1):
        target.decode([tokens[i]], i, all_logits=True)
        second, first = np.partition(target.logits(0), -2)[-2:]
        yield float(first - second)


def lines(
    target: core.Target, drafter: core.GraphDrafter, prompt: list[int], answer: list[int]
) -> list[str]:
    tokens = prompt + answer
    padded = tokens + [0] * drafter.max_draft()  # the last drafts reach beyond the answer
    reading = read(target, padded, drafter.target_layers(), start=len(prompt))
    blocks = list(replay([reading], drafter))[: len(answer) - 1]
    gaps = list(logit_gaps(target, tokens, len(prompt)))
    return [
        f"{gap:.2f} "
        + " ".join(f"{100 * c:.0f}" for c in confidences(block))
        + " "
        + "".join(str(int(agrees)) for agrees in block.agrees)
        for gap, block in zip(gaps, blocks, strict=False)
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    file = q4_0_target_path()
    draft = draft_path("q4_0", file, 8192)
    engine = load(file, draft, n_ctx=1024, n_threads=1)
    target = core.Target(str(file), n_ctx=1024, n_threads=1)
    drafter = core.GraphDrafter(core.DraftModel(str(draft)), target, n_threads=1)
    params = SamplingParams(temperature=0, max_tokens=N_TOKENS)
    prompts: list[LabelledPrompt] = [*BUILT_IN, *read_prompts(REPEATS)]
    found = []
    for prompt in tqdm(prompts):
        tokens = prompt.tokens(engine)
        answer = [token.token for token in engine.stream(tokens, params)]
        recorded = lines(target, drafter, tokens, answer)
        found += [f"{prompt.label} {len(tokens)} {len(recorded)}", *recorded]
    FILE.write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
