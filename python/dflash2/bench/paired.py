"""Runs every contender on every prompt, side by side in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dflash2.bench.contenders import Contender, Run
from dflash2.types import SamplingParams

Runs = list[list[Run]]  # of one contender: by repetition, then by prompt


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    *,
    repetitions: int = 3,
    on_run: Callable[[], object] = lambda: None,
) -> list[Runs]:
    """All runs, for each contender.

    A prompt is given to all contenders before the next one comes, each time in another order, so
    that a machine that slows down does so for all. A first run of each is not counted.

    Args:
        params: with temperature > 0 and no seed, the seed is the number of the run.
        on_run: called `n_runs(..)` times.
    """
    runs: list[Runs] = [[] for _ in contenders]
    for contender in contenders:
        contender.run(prompts[0], replace(params, seed=0))
        on_run()
    turn = 0
    for repetition in range(repetitions):
        for of_contender in runs:
            of_contender.append([])
        for prompt in prompts:
            its = params if params.seed is not None else replace(params, seed=turn)
            for i in range(len(contenders)):
                which = (turn + i) % len(contenders)
                runs[which][repetition].append(contenders[which].run(prompt, its))
                on_run()
            turn += 1
    return runs


def n_runs(contenders: int, prompts: int, repetitions: int) -> int:
    return contenders * (1 + prompts * repetitions)
