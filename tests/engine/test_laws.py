"""Sampled continuations have exactly the target's law after each sampler chain.

`scripts/soak.py --laws` does the same with 2e5 continuations for each chain.
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
from exact_laws import CHAINS, PROMPT, ExactLaws, count_continuations, law_target, p_value
from fake_drafters import Bigram, Scattered
from fake_machine import FakeMachine
from make_tiny_models import make_tiny_pair

N = 2000
LEAST_P = 1e-4
# Longer than what is looked at, so that whole blocks are verified.
MAX_TOKENS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return law_target(tmp_path_factory.mktemp("laws") / "target.gguf")


def measure(
    path: Path,
    drafter_of: Callable[[core.Target], core.Drafter | None],
    chain: str,
    n: int = N,
    **options: Any,
) -> tuple[float, core.Stats]:
    target = core.Target(str(path), n_ctx=64, n_seq=4, n_threads=1)
    engine = core.Engine(target, drafter_of(target), n_draft_max=4, **options)
    return judge(path, engine, chain, n), engine.total_stats


def judge(path: Path, engine: core.Engine, chain: str, n: int = N) -> float:
    params = CHAINS[chain]

    def request(seed: int) -> core.Request:
        return SamplingParams(max_tokens=MAX_TOKENS, **params).to_request(PROMPT, seed, -1)

    counts = count_continuations(engine, request, n)
    alone = core.Target(str(path), n_ctx=64, n_threads=1)
    return p_value(counts, ExactLaws(alone, params).continuations())


# Where rounding moves a token over the border of a cut, the laws differ by it.
AT_A_BORDER = ("min_p", "logit_bias, typical_p")


@pytest.mark.parametrize(
    "chain",
    [pytest.param(c, marks=pytest.mark.rounding if c in AT_A_BORDER else ()) for c in CHAINS],
)
def test_continuations_have_the_targets_law(path: Path, chain: str) -> None:
    p, stats = measure(path, Scattered, chain)
    assert p > LEAST_P
    assert stats.n_drafts > N / 2
    assert 0 < stats.n_accepted < stats.n_drafted


@pytest.mark.parametrize(
    ("chain", "n_seq"), [("none", 1), ("all cuts", 1), ("grammar", 1), ("temperature", 4)]
)
@pytest.mark.rounding
def test_adaptive_lengths_keep_the_targets_law(path: Path, chain: str, n_seq: int) -> None:
    """On a machine that changes before the lengths have settled."""
    target = core.Target(str(path), n_ctx=64, n_seq=n_seq, n_threads=1)
    drafter = Scattered(target)
    random = np.random.default_rng(3)

    def pass_ms(rows: int) -> float:
        slope = (0.01, 0.1)[len(machine.rows) // 100 % 2]
        return (1 + slope * rows) * random.lognormal(sigma=0.2)

    machine = FakeMachine(target, drafter, pass_ms, lambda width: 0.02)
    engine = core.Engine(target, drafter, clock=machine)
    assert judge(path, engine, chain) > LEAST_P
    stats = engine.total_stats
    assert 0 < stats.n_drafts < stats.n_rounds, "some rounds are plain"
    assert min(Counter(drafter.widths)[width] for width in (1, 2)) > 40, "widths vary"
    if n_seq == 1:
        assert stats.n_accepted < stats.n_verified < 0.99 * stats.n_drafted, "drafts are shortened"
        assert any(rows > 4 for rows in machine.rows), "passes are padded"


def bigram(target: core.Target) -> core.Drafter:
    """Knows the target, so that much is accepted and faults in q and in the chain show."""
    return Bigram(target, core.Target(target.path, n_ctx=64, n_threads=1))


@pytest.mark.parametrize("chain", ["temperature", "grammar"])
def test_good_drafts_keep_the_targets_law(path: Path, chain: str) -> None:
    p, stats = measure(path, bigram, chain)
    assert p > LEAST_P
    assert stats.n_accepted > N / 10


@pytest.mark.parametrize(
    ("chain", "draft_temperature"), [("none", 0.3), ("none", 3.0), ("top_p", 3.0)]
)
def test_the_draft_temperature_does_not_change_it(
    path: Path, chain: str, draft_temperature: float
) -> None:
    p, stats = measure(path, bigram, chain, draft_temperature=draft_temperature)
    assert p > LEAST_P
    assert stats.n_accepted > 0


def test_the_match_rule_has_the_targets_law(path: Path) -> None:
    p, stats = measure(path, Scattered, "temperature", accept_rule="match")
    assert p > LEAST_P
    assert stats.n_accepted > 0


def test_plain_decoding_has_the_targets_law(path: Path) -> None:
    p, stats = measure(path, lambda target: None, "all cuts")
    assert p > LEAST_P
    assert stats.n_drafts == 0


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_draft_graph_keeps_the_targets_law(tmp_path: Path, hybrid: bool) -> None:
    files = make_tiny_pair(
        tmp_path,
        hybrid=hybrid,
        **{"hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "ff": 64, "top_k": 7},
        layers=1,
        block_size=4,
        vocab=24,
        target_layers=2,
        taps=(0,),
    )
    params = {"temperature": 1.0, "top_k": 6}
    target = core.Target(str(files[0]), n_ctx=64, n_seq=4, n_rollback=3, n_threads=1)
    drafter = core.GraphDrafter(core.DraftModel(str(files[1])), target)
    engine = core.Engine(target, drafter, n_draft_max=7)

    def request(seed: int) -> core.Request:
        return SamplingParams(max_tokens=MAX_TOKENS, **params).to_request(PROMPT, seed, -1)

    counts = count_continuations(engine, request, 1000)
    alone = core.Target(str(files[0]), n_ctx=64, n_threads=1)
    assert p_value(counts, ExactLaws(alone, params).continuations()) > LEAST_P
    assert engine.total_stats.n_accepted > 0


def test_the_checker_rejects_a_wrong_law(path: Path) -> None:
    """Another temperature, by one part in ten."""
    params = CHAINS["temperature"]
    target = core.Target(str(path), n_ctx=64, n_seq=4, n_threads=1)
    engine = core.Engine(target, Scattered(target), n_draft_max=7)

    def request(seed: int) -> core.Request:
        return SamplingParams(max_tokens=4, temperature=0.77).to_request(PROMPT, seed, -1)

    counts = count_continuations(engine, request, N)
    alone = core.Target(str(path), n_ctx=64, n_threads=1)
    assert p_value(counts, ExactLaws(alone, params).continuations()) < 1e-6
