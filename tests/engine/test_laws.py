"""Sampled continuations have exactly the target's law after each sampler chain.

`scripts/soak.py --laws` does the same with 2e5 continuations for each chain.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from exact_laws import CHAINS, PROMPT, ExactLaws, count_continuations, law_target, p_value
from fake_drafters import Scattered
from make_tiny_models import make_tiny_pair

N = 2000
LEAST_P = 1e-4
# Longer than what is looked at, so that whole blocks are verified.
MAX_TOKENS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return law_target(tmp_path_factory.mktemp("laws") / "target.gguf")


def measure(
    path: Path, drafter_of, chain: str, n: int = N, **options: object
) -> tuple[float, core.Stats]:
    params = CHAINS[chain]
    target = core.Target(str(path), n_ctx=64, n_seq=4, n_threads=1)
    engine = core.Engine(target, drafter_of(target), **options)

    def request(seed: int) -> core.Request:
        return SamplingParams(max_tokens=MAX_TOKENS, **params).to_request(PROMPT, seed, -1)

    counts = count_continuations(engine, request, n)
    alone = core.Target(str(path), n_ctx=64, n_threads=1)
    return p_value(counts, ExactLaws(alone, params).continuations()), engine.total_stats


@pytest.mark.parametrize("chain", CHAINS)
def test_continuations_have_the_targets_law(path: Path, chain: str) -> None:
    p, stats = measure(path, Scattered, chain)
    assert p > LEAST_P
    assert stats.n_drafts > N / 2
    assert 0 < stats.n_accepted < stats.n_drafted


@pytest.mark.parametrize("draft_temperature", [0.3, 3.0])
def test_the_draft_temperature_does_not_change_it(path: Path, draft_temperature: float) -> None:
    p, stats = measure(path, Scattered, "top_p", draft_temperature=draft_temperature)
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
    engine = core.Engine(target, drafter)

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
    engine = core.Engine(target, Scattered(target))

    def request(seed: int) -> core.Request:
        return SamplingParams(max_tokens=4, temperature=0.77).to_request(PROMPT, seed, -1)

    counts = count_continuations(engine, request, N)
    alone = core.Target(str(path), n_ctx=64, n_threads=1)
    assert p_value(counts, ExactLaws(alone, params).continuations()) < 1e-6
