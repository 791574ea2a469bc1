"""What goes into a request and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash2._native import core
from dflash2.grammar import json_schema_to_gbnf

Mode = Literal["adaptive", "fixed", "plain"]
AcceptRule = Literal["rejection", "match"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. The defaults are greedy decoding.

    Applied in llama.cpp's order: grammar, logit_bias, penalties, top_k, typical_p, top_p, min_p,
    temperature.

    Args:
        temperature: 0 takes the most likely token.
        top_k: keep the k most likely tokens; 0: all.
        typical_p: locally typical sampling with this probability; 1: off.
        top_p: keep the smallest set of tokens with this probability; 1: all.
        min_p: drop tokens below this fraction of the most likely one; 0: none.
        repeat_penalty: divides the logits of recent tokens; 1: off.
        frequency_penalty: subtracted once per recent occurrence; 0: off.
        presence_penalty: subtracted from recent tokens; 0: off.
        repeat_last_n: how many tokens are recent; -1: all.
        logit_bias: added to the logits of token ids; -inf: never.
        grammar: the text follows this GBNF grammar (start symbol "root").
        json_schema: the text is JSON that follows this schema; instead of a grammar.
        seed: None draws one for each request; it is reported in `Response.seed`.
        max_tokens: None: until the generation ends or the context is full.
        stop: the text ends before the first of these strings.
        ignore_eos: never end the generation by itself.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str = ""
    json_schema: str | Mapping[str, Any] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        i32 = 2**31
        warm = self.temperature == 0 or 1e-3 <= self.temperature < math.inf
        _require("temperature", self.temperature, warm, "0 (greedy), or 0.001 or more")
        _require("top_k", self.top_k, 0 <= self.top_k < i32, "0 (all) or more")
        _require("typical_p", self.typical_p, 0 < self.typical_p <= 1, "a number in (0, 1]")
        _require("top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]")
        _require("min_p", self.min_p, 0 <= self.min_p < 1, "a number in [0, 1)")
        _require(
            "repeat_penalty", self.repeat_penalty, 0 < self.repeat_penalty < math.inf, "above 0"
        )
        _require("repeat_last_n", self.repeat_last_n, -1 <= self.repeat_last_n < i32, "-1 or more")
        if self.seed is not None:
            _require("seed", self.seed, 0 <= self.seed < 2**64, "0 to 2^64 - 1")
        for name in ("frequency_penalty", "presence_penalty"):
            _require(name, getattr(self, name), math.isfinite(getattr(self, name)), "a number")
        if self.max_tokens is not None:
            _require("max_tokens", self.max_tokens, 0 < self.max_tokens < i32, "1 or more")
        _require("stop", stop, all(map(_is_text, stop)), "non-empty strings of UTF-8")
        both = bool(self.grammar) and self.json_schema is not None
        _require("json_schema", self.json_schema, not both, "no grammar beside it")

    def to_request(self, prompt: list[int], seed: int, n_draft_max: int) -> core.Request:
        """For the compiled module. n_draft_max: -1 is the engine's."""
        request = core.Request()
        request.prompt = prompt
        request.temperature = self.temperature
        request.top_k = self.top_k
        request.typical_p = self.typical_p
        request.top_p = self.top_p
        request.min_p = self.min_p
        request.repeat_penalty = self.repeat_penalty
        request.frequency_penalty = self.frequency_penalty
        request.presence_penalty = self.presence_penalty
        request.repeat_last_n = self.repeat_last_n
        request.logit_bias = dict(self.logit_bias)
        request.grammar = self.grammar
        if self.json_schema is not None:
            request.grammar = json_schema_to_gbnf(self.json_schema)
        request.seed = seed
        request.max_tokens = -1 if self.max_tokens is None else self.max_tokens
        request.stop = list(self.stop)
        request.ignore_eos = self.ignore_eos
        request.n_draft_max = n_draft_max
        return request


def _is_text(value: object) -> bool:
    """Not empty, and no lone surrogate in it."""
    if not isinstance(value, str) or not value:
        return False
    return value.encode(errors="ignore").decode() == value


def _require(name: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    Args:
        token: its id.
        text: what became safe to show with it: whole characters, nothing of a stop string. May be
            empty. The texts of a stream, joined, are the text of the answer.
        from_draft: drafted and accepted; False: chosen by the target.
        finish_reason: of the last token: "stop" (end of generation or a stop string), "length"
            (max_tokens), "context" (full) or "dead_end"; else None. At a dead end grammar,
            logit_bias and ignore_eos leave no token: the last one is -1.
    """

    token: int
    text: str
    from_draft: bool
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters, named as vLLM's metrics, and wall times in milliseconds.

    Args:
        num_prompt_tokens: prompt tokens.
        num_cached_tokens: of these, taken over from the request before.
        num_generated_tokens: tokens emitted.
        num_rounds: target passes after the prompt, with or without a draft.
        num_drafts: rounds with a draft.
        num_draft_tokens: tokens drafted.
        num_verified_tokens: of these, verified by the target.
        num_accepted_tokens: of these, kept.
        accepted_per_pos: drafts whose token at this position was kept.
        mean_accept_length: 1 + accepted / drafts, the bonus token included; 0 without drafts.
        acceptance_rate: accepted / verified; 0 when none was verified.
        prompt_ms: decoding the prompt.
        draft_ms: draft passes and walks.
        verify_ms: target passes.
        sample_ms: sampling, acceptance and text.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_rounds: int
    num_drafts: int
    num_draft_tokens: int
    num_verified_tokens: int
    num_accepted_tokens: int
    accepted_per_pos: tuple[int, ...]
    mean_accept_length: float
    acceptance_rate: float
    prompt_ms: float
    draft_ms: float
    verify_ms: float
    sample_ms: float

    @property
    def mean_draft_length(self) -> float:
        """Tokens per draft."""
        return self.num_draft_tokens / max(1, self.num_drafts)

    @property
    def mean_verified_length(self) -> float:
        """Tokens verified per draft."""
        return self.num_verified_tokens / max(1, self.num_drafts)

    @property
    def prompt_tps(self) -> float:
        """Prompt tokens decoded per second."""
        return _per_second(self.num_prompt_tokens - self.num_cached_tokens, self.prompt_ms)

    @property
    def generation_tps(self) -> float:
        """Generated tokens per second, the prompt not counted."""
        total = self.draft_ms + self.verify_ms + self.sample_ms
        return _per_second(self.num_generated_tokens, total)

    @classmethod
    def of(cls, stats: core.Stats) -> Stats:
        """Copies the counters of the compiled module."""
        return cls(
            num_prompt_tokens=stats.n_prompt,
            num_cached_tokens=stats.n_cached,
            num_generated_tokens=stats.n_generated,
            num_rounds=stats.n_rounds,
            num_drafts=stats.n_drafts,
            num_draft_tokens=stats.n_drafted,
            num_verified_tokens=stats.n_verified,
            num_accepted_tokens=stats.n_accepted,
            accepted_per_pos=tuple(stats.accepted_per_pos),
            mean_accept_length=stats.mean_accept_length,
            acceptance_rate=stats.acceptance_rate,
            prompt_ms=stats.ms_prompt,
            draft_ms=stats.ms_draft,
            verify_ms=stats.ms_verify,
            sample_ms=stats.ms_sample,
        )


def _per_second(n: int, ms: float) -> float:
    return 1000.0 * n / ms if ms > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole answer.

    Args:
        text: without the stop string that ended it.
        tokens: ids of all generated tokens, an end-of-generation token included.
        finish_reason: "stop", "length", "context" or "dead_end"; see `Token`.
        seed: of this request. As `SamplingParams.seed` it repeats the answer when the mode is not
            "adaptive", where the text also depends on how long passes took.
        mode: "adaptive", "fixed" (draft length) or "plain".
        accept_rule: "rejection", or "match": asked for, or at temperature 0, where it is the same;
            None: plain.
        stats: of this request.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    seed: int
    mode: Mode
    accept_rule: AcceptRule | None
    stats: Stats
