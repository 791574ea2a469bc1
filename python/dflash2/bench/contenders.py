"""Engines that take part in a measurement, each behind `run`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from dflash2.engine import Engine
from dflash2.types import SamplingParams
from dflash2.upstream.process import ServerProcess


@dataclass(frozen=True, kw_only=True)
class Run:
    """One answer, measured from its first token on, which comes with the prompt.

    Args:
        n_tokens: after the first.
        seconds: wall time of these.
        num_rounds: target passes; num_drafts: of them with a draft.
        num_verified_tokens, num_accepted_tokens: drafted ones, as in `Stats`.
        draft_ms, verify_ms: in total; None where an engine does not tell.
    """

    n_tokens: int
    seconds: float
    num_rounds: int
    num_drafts: int
    num_verified_tokens: int
    num_accepted_tokens: int
    draft_ms: float | None
    verify_ms: float | None


class Contender(Protocol):
    """name: of its row."""

    @property
    def name(self) -> str: ...
    def run(self, prompt: list[int], params: SamplingParams) -> Run: ...


class OurEngine:
    """An engine of ours.

    Args:
        spec_draft_n_max: of each request; None: as the engine was loaded.
    """

    def __init__(self, name: str, engine: Engine, spec_draft_n_max: int | None = None) -> None:
        self.name = name
        self._engine = engine
        self._n_draft = spec_draft_n_max

    def run(self, prompt: list[int], params: SamplingParams) -> Run:
        tokens = self._engine.stream(prompt, params, spec_draft_n_max=self._n_draft)
        next(tokens)
        begin = time.perf_counter()
        n = sum(1 for _ in tokens)
        seconds = time.perf_counter() - begin
        stats = self._engine.stats
        return Run(
            n_tokens=n,
            seconds=seconds,
            num_rounds=stats.num_rounds,
            num_drafts=stats.num_drafts,
            num_verified_tokens=stats.num_verified_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            draft_ms=stats.draft_ms,
            verify_ms=stats.verify_ms,
        )


class Server:
    """A llama-server that was started; see `ServerProcess`.

    Args:
        cache_prompt: it may keep what a prompt shares with the one before, as our engine does.
    """

    def __init__(self, name: str, process: ServerProcess, *, cache_prompt: bool = False) -> None:
        self.name = name
        self._process = process
        self._cache_prompt = cache_prompt
        self._counters = process.counters()
        self._draft_ms = 0.0

    def run(self, prompt: list[int], params: SamplingParams) -> Run:
        n_max = -1 if params.max_tokens is None else params.max_tokens
        answer = self._process.complete(
            prompt, n_max, cache_prompt=self._cache_prompt, **server_sampling(params)
        )
        before, self._counters = self._counters, self._process.counters()
        accepted = self._counters.num_accepted_tokens - before.num_accepted_tokens
        drafts = self._counters.num_drafts - before.num_drafts
        n = int(answer["timings"]["predicted_n"]) - 1
        return Run(
            n_tokens=n,
            seconds=answer["timings"]["predicted_ms"] / 1000.0,
            num_rounds=n - accepted,
            num_drafts=drafts,
            num_verified_tokens=self._counters.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=accepted,
            draft_ms=self._new_draft_ms() if drafts else 0.0,
            verify_ms=None,
        )

    def _new_draft_ms(self) -> float | None:
        total = self._process.draft_ms()
        if total is None:
            return None
        before, self._draft_ms = self._draft_ms, total
        return total - before


def server_sampling(params: SamplingParams) -> dict[str, Any]:
    """Fields of llama-server's /completion for the same law."""
    fields: dict[str, Any] = {
        "temperature": params.temperature,
        "repeat_penalty": params.repeat_penalty,
        "repeat_last_n": params.repeat_last_n,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "ignore_eos": params.ignore_eos,
    }
    if params.temperature > 0:  # a greedy server's own defaults do not change what it picks
        fields |= {
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "typical_p": params.typical_p,
        }
    if params.seed is not None:
        fields["seed"] = params.seed % 2**32
    return fields
