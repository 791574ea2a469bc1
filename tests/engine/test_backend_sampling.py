"""Rows that are cut to their largest logits where they are computed give the same law."""

from __future__ import annotations

from pathlib import Path

import dflash2
import numpy as np
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from exact_laws import CHAINS, PROMPT, ExactLaws, count_continuations, law_target, p_value
from fake_drafters import Scattered
from plain_decoding import NEAR_TIE, assert_same, decode_alone, prompts

Pair = tuple[Path, Path]

N = 2000
LEAST_P = 1e-4


def open_engine(pair: Pair, *, on: bool, n_seq: int = 3) -> dflash2.Engine:
    target = core.Target(str(pair[0]), n_ctx=256, n_seq=n_seq, n_threads=1, backend_sampling=on)
    drafter = core.GraphDrafter(core.DraftModel(str(pair[1])), target)
    return dflash2.Engine(target, drafter, spec_draft_n_max=7)


def test_greedy_answers_are_the_targets(pair: Pair, alone: core.Target) -> None:
    engine = open_engine(pair, on=True)
    for prompt in prompts(6, 512):
        answer = engine.generate(prompt, SamplingParams(max_tokens=24))
        assert_same(alone, prompt, answer.tokens, decode_alone(alone, prompt, 24))
    assert engine.stats.num_drafts > 0


def test_requests_of_every_kind_side_by_side(pair: Pair) -> None:
    """Whole rows and cut ones in one pass, and slots that change from one to the other."""
    kinds = [
        SamplingParams(max_tokens=16),
        SamplingParams(max_tokens=16, temperature=0.8, top_k=20, top_p=0.9, seed=1),
        SamplingParams(max_tokens=16, temperature=0.8, seed=2),
        SamplingParams(max_tokens=16, presence_penalty=2.0),
        SamplingParams(max_tokens=16, ignore_eos=True, logit_bias={300: 9.0}),
        SamplingParams(max_tokens=16, ignore_eos=True, logit_bias={300: -9.0}),
    ]
    texts = prompts(len(kinds), 512)
    cut = open_engine(pair, on=True).generate(texts, kinds)
    whole = open_engine(pair, on=False).generate(texts, kinds)
    equal = [a.tokens == b.tokens for a, b in zip(cut, whole, strict=True)]
    assert sum(equal) >= len(kinds) - 1, equal  # a draw may fall where rounding decides


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return law_target(tmp_path_factory.mktemp("laws") / "target.gguf")


@pytest.mark.parametrize("chain", [name for name, chain in CHAINS.items() if chain.get("top_k")])
def test_continuations_have_the_targets_law(path: Path, chain: str) -> None:
    params = CHAINS[chain]
    target = core.Target(str(path), n_ctx=64, n_seq=4, n_threads=1, backend_sampling=True)
    engine = core.Engine(target, Scattered(target), n_draft_max=4)

    def request(seed: int) -> core.Request:
        return SamplingParams(max_tokens=4, **params).to_request(PROMPT, seed, -1)

    counts = count_continuations(engine, request, N)
    alone = core.Target(str(path), n_ctx=64, n_threads=1)
    assert p_value(counts, ExactLaws(alone, params).continuations()) > LEAST_P
    assert engine.total_stats.n_accepted > 0


def test_cut_rows_are_not_handed_out_as_whole_ones(pair: Pair, alone: core.Target) -> None:
    target = core.Target(str(pair[0]), n_ctx=64, n_threads=1, backend_sampling=True)
    engine = core.Engine(target, None)
    engine.submit(SamplingParams(max_tokens=4).to_request([5, 6, 7], 0, 0))
    while not engine.idle:
        engine.step()
    with pytest.raises(ValueError, match="was cut"):
        target.logits(0)
    target.truncate(0)
    target.decode([5, 6, 7], 0)
    alone.truncate(0)
    alone.decode([5, 6, 7], 0)
    np.testing.assert_allclose(target.logits(2), alone.logits(2), atol=NEAR_TIE)
    with pytest.raises(ValueError, match="sequence 1"):
        target.decode([5], 0, seq=1)
