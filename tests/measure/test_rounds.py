"""Replayed rounds are the rounds of a real generation, or their expectation."""

from __future__ import annotations

from collections.abc import Sequence

import dflash2
import numpy as np
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from dflash2.measure.rounds import expected_rounds
from dflash2.measure.survival import Survival
from dflash2.measure.tally import Tally, TallyBook, context_range, parts
from dflash2.replay import read
from fake_drafters import Known, Scattered
from make_tiny_models import make_tiny_target

N_DRAFT = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> core.Target:
    """A law over 24 tokens that is wide enough for many acceptances."""
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    sizes = {"n_layer": 4, "n_embd": 64, "n_head_kv": 1, "n_ff": 64, "n_vocab": 24}
    make_tiny_target(path, **sizes, sharpness=1.0)
    return core.Target(str(path), n_ctx=128, n_rollback=7, n_threads=1)


def replayed(
    target: core.Target, drafter: core.Drafter, prompt: list[int], answer: list[int], t: float
) -> tuple[float, Sequence[float]]:
    """Rounds, and how many of them keep 1, 2, .. tokens."""
    layers = drafter.target_layers()
    reading = read(target, prompt + answer, layers, start=len(prompt), temperature=t)
    survival = Survival(reading, drafter, N_DRAFT)
    book = TallyBook(N_DRAFT)
    n_most = len(answer) - (not target.is_eog(answer[-1]))
    for _, chance, shares in expected_rounds(
        n_most, lambda start, n: survival.at(len(prompt) + start, n)
    ):
        book.add(("answer", 0), chance, shares)
    (tally,) = book.tallies() or (Tally(part="", context=0, rounds=0, survivors=(0,) * N_DRAFT),)
    return tally.rounds, tally.survivors


def test_greedy_replay_finds_the_rounds_of_the_generation(target: core.Target) -> None:
    prompt = [5, 6, 7]
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    truth = list(dflash2.Engine(target).generate(prompt, params).tokens)
    drafter = Known(target, prompt + truth, right=lambda at: at % 5 != 2 and at % 7 != 0)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=N_DRAFT)
    response = engine.generate(prompt, params)
    assert list(response.tokens) == truth
    rounds, survivors = replayed(target, drafter, prompt, truth, 0.0)
    assert rounds == response.stats.num_drafts > 15
    assert survivors == response.stats.accepted_per_pos
    assert survivors[0] > survivors[-1] > 0


def test_sampled_replay_expects_the_rounds_of_the_generation(target: core.Target) -> None:
    drafter = Scattered(target, n_draft=N_DRAFT)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=N_DRAFT)
    differences = []
    for seed in range(300):
        params = SamplingParams(temperature=1, seed=seed, max_tokens=24)
        response = engine.generate([5, 6, 7], params)
        counted = np.array([response.stats.num_drafts, *response.stats.accepted_per_pos])
        rounds, survivors = replayed(target, drafter, [5, 6, 7], list(response.tokens), 1.0)
        differences.append(counted - [rounds, *survivors])
    found = np.array(differences)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (error > 0).all()
    assert (error < 0.2).all(), "too noisy to say anything"
    assert (np.abs(found.mean(axis=0)) < 4.5 * error).all(), found.mean(axis=0) / error


def test_rounds_are_a_chain_over_the_text() -> None:
    # Each round of two keeps none, one or both with 1/2, 1/4, 1/4.
    found = {
        start: chance
        for start, chance, _ in expected_rounds(6, lambda _, n: [0.5, 0.25][: min(2, n)])
    }
    assert found == {0: 1.0, 1: 0.5, 2: 0.5, 3: 0.625, 4: 0.5625}


def test_parts_follow_the_tags_however_they_are_split() -> None:
    answer = [b"<th", b"ink>", b"hm", b"</think", b">", b"\n", b"so"]
    expected = ["answer", *["thinking"] * 4, *["answer"] * 2]
    assert parts([b"hi"], answer) == expected
    assert parts([b"hi <think>\n"], [b"hm</think> a", b"b"]) == ["thinking", "answer"]
    assert parts([b"<think> </think>"], [b"a", b"b <think> c"]) == ["answer", "thinking"]


def test_contexts_are_grouped_by_powers_of_two() -> None:
    assert [context_range(n) for n in (0, 127, 128, 255, 256, 5000)] == [0, 0, 128, 128, 256, 4096]
