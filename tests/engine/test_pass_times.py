"""Target passes are timed when an engine is made, unless it is given a clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from dflash2 import SamplingParams
from dflash2._native import core
from fake_drafters import Known
from plain_decoding import assert_same, decode_alone, prompts

N_TOKENS = 40


def rounds(
    pair: tuple[Path, Path], alone: core.Target, clock: Callable[[], float] | None
) -> list[bool]:
    """Which rounds of a new engine's first answer draft; the drafter is always right."""
    prompt = prompts(1, 512)[0]
    truth = decode_alone(alone, prompt, N_TOKENS)
    target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
    drafter = Known(target, prompt + truth, lambda at: True)
    engine = core.Engine(target, drafter, clock=clock)
    engine.submit(SamplingParams(max_tokens=N_TOKENS).to_request(prompt, 0, -1))
    tokens: list[int] = []
    drafts: list[bool] = []
    while not engine.idle:
        n_before = drafter.n_calls
        for progress in engine.step():
            tokens += [token.id for token in progress.tokens]
        drafts.append(drafter.n_calls > n_before)
    assert_same(alone, prompt, tokens, truth)  # nothing of the timed passes is left
    return drafts[1:]  # the first step reads the prompt


def test_the_first_round_drafts_since_passes_are_timed_before_it(
    pair: tuple[Path, Path], alone: core.Target
) -> None:
    assert rounds(pair, alone, None)[0]


def test_passes_are_not_timed_by_a_given_clock(pair: tuple[Path, Path], alone: core.Target) -> None:
    """So rounds are plain until their costs are known; by this clock all take as long."""
    drafts = rounds(pair, alone, itertools.count(0.0).__next__)
    assert not any(drafts[:2])
    assert any(drafts)
