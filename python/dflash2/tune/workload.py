"""What a target answers to prompts, how long that takes, and how much of it drafts would give."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dflash2._native import core
from dflash2.engine import Engine
from dflash2.measure.rounds import expected_rounds
from dflash2.measure.survival import Survival
from dflash2.prompts import LabelledPrompt
from dflash2.replay import Reading, read
from dflash2.types import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One prompt's.

    Args:
        n_tokens: after the first one, which the prompt's pass gives.
        n_context: tokens before the middle of the answer.
        rounds: (1 + n_draft,) expected target passes when 0, 1, .. tokens are drafted.
        rounds_match: the same by llama-server's rule, which keeps a draft token that is equal to
            the sampled one.
        plain_ms: of the tokens by plain decoding.
        drafted_ms, drafted_rounds: with the longest drafts in every round, to the same length.
    """

    label: str
    n_tokens: int
    n_context: int
    rounds: tuple[float, ...]
    rounds_match: tuple[float, ...]
    plain_ms: float
    drafted_ms: float
    drafted_rounds: int


class Workload:
    """Answers prompts plainly and with the longest drafts, then drafts along the plain answers.

    At temperature > 0 the law is the target's at that temperature: top-k and the like are left out.
    """

    def __init__(
        self, target: core.Target, drafter: core.GraphDrafter, params: SamplingParams
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._params = params

    def answers(
        self, prompts: Sequence[LabelledPrompt], on_prompt: Callable[[], object] = lambda: None
    ) -> list[Answer]:
        """Of the prompts whose answer is longer than one token.

        Raises:
            ContextFullError: a prompt does not fit.
        """
        found = []
        for i, prompt in enumerate(prompts):
            found += self._answer(prompt, self._seeded(i))
            on_prompt()
        return found

    def _answer(self, prompt: LabelledPrompt, params: SamplingParams) -> list[Answer]:
        """None when there is nothing after the first token."""
        plain = Engine(self._target)
        tokens = prompt.tokens(plain)
        answer, plain_ms = timed(plain, tokens, params)
        # A new engine knows nothing of what the target holds and begins anew.
        drafting = Engine(self._target, self._drafter, spec_draft_n_max=self._drafter.max_draft())
        _, drafted_ms = timed(drafting, tokens, params)
        if len(answer) == 1:
            return []
        rounds, match = self._replay(tokens, answer)
        return [
            Answer(
                label=prompt.label,
                n_tokens=len(answer) - 1,
                n_context=len(tokens) + len(answer) // 2,
                rounds=rounds,
                rounds_match=match,
                plain_ms=plain_ms,
                drafted_ms=drafted_ms,
                drafted_rounds=drafting.stats.num_rounds,
            )
        ]

    def _seeded(self, i: int) -> SamplingParams:
        return self._params if self._params.seed is not None else replace(self._params, seed=i)

    def _replay(
        self, prompt: list[int], answer: list[int]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Expected rounds by our rule and by llama-server's."""
        reading = read(
            self._target,
            [*prompt, *answer],
            self._drafter.target_layers(),
            start=len(prompt),
            window=self._drafter.context_window(),
            temperature=self._params.temperature,
        )
        # A draft may end a text by itself; at a limit of tokens the target has the last word.
        n_most = len(answer) - (not self._target.is_eog(answer[-1]))
        rounds = self._rounds(reading, n_most)
        if reading.temperature == 0:
            return rounds, rounds
        return rounds, self._rounds(replace(reading, temperature=0.0), n_most)

    def _rounds(self, reading: Reading, n_most: int) -> tuple[float, ...]:
        n_draft = self._drafter.max_draft()
        along = Survival(reading, self._drafter, n_draft)
        shares = [along.at(reading.start + i, n_most - 1 - i) for i in range(n_most - 1)]
        n_tokens = len(reading.tokens) - 1 - reading.start
        found = [float(n_tokens)]
        for m in range(1, n_draft + 1):
            rounds = list(expected_rounds(n_most, partial(_first, shares, m)))
            if n_most > n_tokens:  # ended by itself
                found.append(sum(chance for _, chance, _ in rounds))
            else:
                found.append(n_tokens - sum(chance * sum(s) for _, chance, s in rounds))
        return tuple(found)


def _first(shares: Sequence[Sequence[float]], m: int, start: int, n: int) -> Sequence[float]:
    return shares[start][: min(m, n)]


def timed(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[list[int], float]:
    """The answer, and milliseconds of its tokens after the first."""
    stream = engine.stream(prompt, params)
    tokens = [next(stream).token]
    begin = time.perf_counter()
    tokens += [token.token for token in stream]
    return tokens, 1000.0 * (time.perf_counter() - begin)
