"""Faults that break the law are caught.

On the real engine: drafters that know the draws to come, so that lengths anticipate and streams
are shared. Its walk and verification are its own, so faults in q and u are planted in a round
that is modelled in Python on the target's real laws; in core, by test-losslessness.cpp; and in the
engine's sources, by scripts/mutate.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from exact_laws import PROMPT, ExactLaws, law_target, p_value
from fake_drafters import Scattered

N = 12_000
N_ENGINE = 9000
N_DRAFT = 3
N_TOKENS = 3
PARAMS: dict[str, Any] = {"temperature": 1.0, "top_k": 5}
DRAFT_TEMPERATURE = 0.6

Drafted = tuple[list[int], list[list[tuple[int, float]]]]
Verify = Callable[["Model", Drafted, tuple[int, ...], int, int], tuple[int, int]]


class Model:
    """Rounds over tables: laws of the target and lattices of the drafter."""

    def __init__(self, target: core.Target) -> None:
        self.exact = ExactLaws(target, PARAMS)
        self.drafter = Scattered(target, N_DRAFT)
        self.laws: dict[tuple[int, ...], list[tuple[int, float]]] = {}
        self.eog = {token for token in range(target.n_vocab) if target.is_eog(token)}

    def law(self, path: tuple[int, ...]) -> list[tuple[int, float]]:
        if path not in self.laws:
            p = self.exact.after(path)
            self.laws[path] = [(int(i), float(p[i])) for i in np.flatnonzero(p)]
        return self.laws[path]

    def walk(self, anchor: int, position: int, seed: int, round: int) -> Drafted:
        lattice = self.drafter.lattice(anchor, position, N_DRAFT)
        return core.walk_sample(lattice, DRAFT_TEMPERATURE, seed, 0, position, round)

    def generate(
        self, seed: int, change: Callable[[Drafted], Drafted], verify: Verify
    ) -> tuple[int, ...]:
        path = (core.draw(self.law(()), core.uniform(seed, 0, "residual", 0)),)
        round = 0
        while len(path) < N_TOKENS and not self.eog & set(path):
            position = len(path) - 1
            drafted = change(self.walk(path[-1], position, seed, round))
            n_accept, token = verify(self, drafted, path, seed, position)
            path = (*path, *drafted[0][:n_accept], token)
            round += 1
        end = next((i + 1 for i, token in enumerate(path) if token in self.eog), N_TOKENS)
        return path[: min(end, N_TOKENS)]


def right(
    model: Model, drafted: Drafted, path: tuple[int, ...], seed: int, at: int
) -> tuple[int, int]:
    tokens, q = drafted
    return core.verify_rejection(tokens, q, lambda i: model.law((*path, *tokens[:i])), seed, 0, at)


def as_it_is(drafted: Drafted) -> Drafted:
    return drafted


def q_without_temperature(drafted: Drafted) -> Drafted:
    """softmax(score) is reported for what softmax(score / T) drew."""
    tokens, q = drafted
    flat = []
    for law in q:
        p = np.array([prob for _, prob in law]) ** DRAFT_TEMPERATURE
        flat.append([(token, float(x)) for (token, _), x in zip(law, p / p.sum(), strict=True)])
    return tokens, flat


def anticipating(drafted: Drafted, least: float = 0.3) -> Drafted:
    """Ends before a token that was drawn against the odds."""
    tokens, q = drafted
    n = 0
    while n < len(tokens) and dict(q[n])[tokens[n]] >= least:
        n += 1
    return tokens[:n], q[:n]


def step_by_step(accept: Callable[..., float]) -> Verify:
    """verify_rejection in Python, with another source of u."""

    def verify(
        model: Model, drafted: Drafted, path: tuple[int, ...], seed: int, at: int
    ) -> tuple[int, int]:
        tokens, q = drafted
        for i, (token, law_q) in enumerate(zip(tokens, q, strict=True)):
            law_p = model.law((*path, *tokens[:i]))
            p, u = dict(law_p).get(token, 0.0), accept(seed, at + 1 + i)
            if not u * dict(law_q)[token] <= p:
                u = core.uniform(seed, 0, "residual", at + 1 + i)
                return i, core.draw(core.residual(law_p, law_q), u)
        u = core.uniform(seed, 0, "residual", at + 1 + len(tokens))
        return len(tokens), core.draw(model.law((*path, *tokens)), u)

    return verify


def own_stream(seed: int, position: int) -> float:
    return core.uniform(seed, 0, "accept", position)


def shared_with_the_residual(seed: int, position: int) -> float:
    return core.uniform(seed, 0, "residual", position)


def shared_with_the_draft(seed: int, position: int) -> float:
    return core.uniform(seed, 0, "draft", position, 0)


def zero(seed: int, position: int) -> float:
    """u = 0 now and then, as from a generator on [0, 1) with few bits."""
    u = core.uniform(seed, 0, "accept", position)
    return 0.0 if u < 1 / 64 else u


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = law_target(tmp_path_factory.mktemp("faults") / "target.gguf")
    return Model(core.Target(str(path), n_ctx=64, n_threads=1))


def measure(model: Model, change: Callable[[Drafted], Drafted], verify: Verify) -> float:
    counts = Counter(model.generate(seed, change, verify) for seed in range(N))
    return p_value(counts, model.exact.continuations(N_TOKENS))


@pytest.mark.parametrize("verify", [right, step_by_step(own_stream)], ids=["core", "python"])
def test_the_model_of_a_round_is_lossless(model: Model, verify: Verify) -> None:
    assert measure(model, as_it_is, verify) > 1e-4


FAULTS = {
    "q without temperature": (q_without_temperature, right),
    "a length that looks at the drawn token": (anticipating, right),
    "accept and residual share a stream": (as_it_is, step_by_step(shared_with_the_residual)),
    "draft and accept share a stream": (as_it_is, step_by_step(shared_with_the_draft)),
    "u = 0": (as_it_is, step_by_step(zero)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(model: Model, fault: str) -> None:
    change, verify = FAULTS[fault]
    assert measure(model, change, verify) < 1e-6


class Foresight(Scattered):
    """Knows what the engine will draw: its seed and streams. `sees` is the stream that decides."""

    sees = "nothing"
    seed = round = 0

    def lattice(self, anchor: int, position: int, n_draft: int) -> core.Lattice:
        round, self.round = self.round, self.round + 1
        if self.sees == "length":
            return self._anticipating(super().lattice(anchor, position, n_draft), position, round)
        if self.sees == "nothing":
            u = core.uniform(self.seed + N, 0, "accept", position + 1)
        else:
            of_round = round if self.sees == "draft" else 0
            u = core.uniform(self.seed, 0, self.sees, position + 1, of_round)
        return super().lattice(anchor + (u < 0.5), position, n_draft)

    def _anticipating(self, whole: core.Lattice, position: int, round: int) -> core.Lattice:
        """Ends before the first token that will be drawn against the odds."""
        drafted = core.walk_sample(whole, PARAMS["temperature"], self.seed, 0, position, round)
        n = len(anticipating(drafted, 0.12)[0])
        return core.Lattice(whole.cand[:n], whole.score[:n])


def measure_engine(folder: Path, sees: str) -> float:
    path = str(law_target(folder / "target.gguf"))
    target = core.Target(path, n_ctx=64, n_threads=1)
    drafter = Foresight(target, N_DRAFT)
    drafter.sees = sees
    engine = core.Engine(target, drafter, n_draft_max=N_DRAFT)
    params = SamplingParams(max_tokens=N_TOKENS + 1, **PARAMS)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(N_ENGINE):
        drafter.seed, drafter.round = seed, 0
        engine.submit(params.to_request(PROMPT, seed, -1))
        tokens: list[int] = []
        while not engine.idle:
            tokens += [token.id for progress in engine.step() for token in progress.tokens]
        counts[tuple(tokens[:N_TOKENS])] += 1
    assert engine.total_stats.n_accepted > N_ENGINE / 20
    alone = core.Target(path, n_ctx=64, n_threads=1)
    return p_value(counts, ExactLaws(alone, PARAMS).continuations(N_TOKENS))


@pytest.mark.rounding  # top_k cuts at a border
def test_the_engine_is_lossless_with_a_drafter_that_draws_for_itself(tmp_path: Path) -> None:
    assert measure_engine(tmp_path, "nothing") > 1e-4


@pytest.mark.parametrize("sees", ["length", "draft", "accept", "residual"])
def test_a_drafter_with_foresight_is_caught_on_the_engine(tmp_path: Path, sees: str) -> None:
    assert measure_engine(tmp_path, sees) < 1e-6
