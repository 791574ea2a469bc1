"""Text that the target itself wrote: only on it is a drafter's work fairly judged."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import dflash2.engine
from dflash2.engine import Engine
from dflash2.errors import DFlash2Error
from dflash2.prompts import BUILT_IN
from dflash2.types import SamplingParams

N_PROMPT = 96  # tokens of a user's text before each continuation
MIN_PROMPT = 8
MIN_ANSWER = 24  # shorter ones make too few blocks
MAX_PERIOD, N_REPEATS = 24, 3


@dataclass(frozen=True)
class Passage:
    """A prompt and the target's greedy continuation, loops cut off."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]


def default_prompts(engine: Engine, n: int) -> list[list[int]]:
    """n of the built-in questions, of every kind."""
    chosen = BUILT_IN[:: len(BUILT_IN) // n][:n]
    try:
        return [prompt.tokens(engine) for prompt in chosen]
    except DFlash2Error:  # no chat template
        return [
            engine.tokenize(f"{prompt.messages[0]['content']}\n")
            for prompt in chosen
            if prompt.messages
        ]


def prompts_of(engine: Engine, text: str, n: int) -> list[list[int]]:
    """Up to n pieces, spread evenly over a text.

    Raises:
        ValueError: the text is too short.
    """
    tokens = engine.tokenize(text)
    if len(tokens) < MIN_PROMPT:
        raise ValueError(f"text: expected {MIN_PROMPT} tokens or more, got {len(tokens)}")
    n = max(1, min(n, len(tokens) // MIN_PROMPT))
    size = min(N_PROMPT, len(tokens) // n)
    starts = [i * (len(tokens) - size) // max(1, n - 1) for i in range(n)]
    return [tokens[start : start + size] for start in starts]


def long_text(engine: Engine, text: str | None, n: int) -> list[int]:
    """n tokens: of the user's text, or of this package's source when that is shorter."""
    tokens = engine.tokenize(text) if text is not None else []
    if len(tokens) < n:
        tokens = engine.tokenize(inspect.getsource(dflash2.engine))
    return tokens[:n]


def write_passages(engine: Engine, prompts: Sequence[list[int]], n_tokens: int) -> list[Passage]:
    """The target continues each prompt greedily, without drafting.

    Raises:
        DFlash2Error: every continuation ends or loops at once.
    """
    params = SamplingParams(max_tokens=n_tokens)
    responses = engine.generate(list(prompts), params, spec_draft_n_max=0)
    passages = [
        Passage(list(prompt), cut_loop(list(response.tokens)))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    kept = [p for p in passages if len(p.answer) >= MIN_ANSWER]
    if not kept:
        raise DFlash2Error(
            "text: the target ends or repeats itself after every piece; give another --text"
        )
    return kept


def cut_loop(tokens: list[int]) -> list[int]:
    """Up to where a run of tokens begins to repeat itself for the second time."""
    for end in range(len(tokens) + 1):
        for period in range(1, MAX_PERIOD + 1):
            n = period * N_REPEATS
            if n <= end and n >= MIN_PROMPT and _repeats(tokens[end - n : end], period):
                return tokens[: end - n + period]
    return tokens


def _repeats(tokens: list[int], period: int) -> bool:
    return tokens[period:] == tokens[:-period]
