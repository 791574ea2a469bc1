"""What the engine emits is what the target alone would emit, whatever the drafter does."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import dflash2
import numpy as np
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from drafters import Garbage, Oracle
from greedy import assert_same, decode_alone, open_target
from make_tiny_models import make_tiny_pair
from scipy.stats import chi2

N_TOKENS = 16

Pair = tuple[Path, Path]


def make_prompts(n: int, n_vocab: int) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(6, n_vocab, random.integers(1, 60)).tolist() for _ in range(n)]


def same_as_alone(engine: dflash2.Engine, target: core.Target) -> None:
    params = SamplingParams(max_tokens=N_TOKENS)
    for prompt in make_prompts(20, target.n_vocab):
        answer = engine.generate(prompt, params)
        assert_same(target, prompt, answer.tokens, decode_alone(target, prompt, N_TOKENS))


@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_equals_plain_decoding(tmp_path: Path, seed: int) -> None:
    files = make_tiny_pair(tmp_path, seed=seed)
    with dflash2.load(*files, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        same_as_alone(engine, open_target(files[0]))
        assert engine.total_stats.num_drafts > 100


def test_full_attention_drafter_is_lossless(tmp_path: Path) -> None:
    files = make_tiny_pair(tmp_path, layer_types=["full_attention", "sliding_attention"])
    with dflash2.load(*files, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        same_as_alone(engine, open_target(files[0]))


def test_garbage_drafter_is_lossless(pair: Pair) -> None:
    target = open_target(pair[0])
    drafter = Garbage(target.n_vocab, target.n_embd)
    same_as_alone(dflash2.Engine(target, drafter, spec_draft_n_max=7), open_target(pair[0]))
    assert drafter.calls > 100


def test_oracle_is_accepted_always(pair: Pair) -> None:
    target = open_target(pair[0])
    oracle = Oracle(target.n_vocab, target.n_embd)
    engine = dflash2.Engine(target, oracle, spec_draft_n_max=7)
    alone = open_target(pair[0])
    for prompt in make_prompts(5, target.n_vocab):
        truth = decode_alone(alone, prompt, 40)
        oracle.tokens = prompt + truth
        answer = engine.generate(prompt, SamplingParams(max_tokens=len(truth)))
        assert_same(alone, prompt, answer.tokens, truth)
        stats = answer.stats
        assert stats.acceptance_rate == 1.0
        assert stats.num_draft_tokens > 0
        # the first token needs no round, every other one brings 7 drafted and 1 bonus
        assert stats.num_rounds == math.ceil((len(truth) - 1) / 8)


@pytest.mark.parametrize("n", [0, 1, 3, 7])
def test_draft_length_does_not_change_the_tokens(engine: dflash2.Engine, n: int) -> None:
    params = SamplingParams(max_tokens=N_TOKENS, repeat_penalty=1.3)
    prompt = [10, 300, 41]
    plain = engine.generate(prompt, params, spec_draft_n_max=0)
    drafted = engine.generate(prompt, params, spec_draft_n_max=n)
    assert drafted.tokens == plain.tokens
    assert plain.stats.num_drafts == 0
    assert drafted.stats.num_draft_tokens <= n * drafted.stats.num_rounds
    assert (drafted.stats.num_drafts > 0) == (n > 0)


@pytest.mark.parametrize("kind", ["graph", "garbage", "oracle"])
def test_sampled_tokens_follow_the_targets_law(pair: Pair, kind: str) -> None:
    """Two tokens of two rounds, against the exact joint law: chi-square."""
    target = open_target(pair[0], n_ctx=64)
    prompt, top_k, temperature, n = [9, 400, 77], 3, 1.5, 400
    drafter: core.Drafter
    if kind == "graph":
        drafter = core.GraphDrafter(core.DraftModel(str(pair[1])), target)
    elif kind == "garbage":
        drafter = Garbage(target.n_vocab, target.n_embd)
    else:
        drafter = Oracle(target.n_vocab, target.n_embd)
        drafter.tokens = prompt + decode_alone(open_target(pair[0]), prompt, 3)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)

    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(n):
        params = SamplingParams(temperature=temperature, top_k=top_k, seed=seed, max_tokens=3)
        counts[engine.generate(prompt, params).tokens[:2]] += 1
    assert engine.total_stats.num_drafts == n

    def p_value(expected: dict[tuple[int, int], float]) -> float:
        assert set(counts) <= set(expected), "a token outside the target's law"
        statistic = sum((counts[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
        return float(chi2.sf(statistic, len(expected) - 1))

    alone = open_target(pair[0], n_ctx=64)
    assert p_value(joint_law(alone, prompt, top_k, temperature)) > 1e-4
    assert p_value(joint_law(alone, prompt, top_k, temperature / 2)) < 1e-6, "judges nothing"


def joint_law(
    target: core.Target, prompt: list[int], top_k: int, temperature: float
) -> dict[tuple[int, int], float]:
    """Of the first two tokens."""

    def law(tokens: list[int]) -> dict[int, float]:
        target.truncate(0)
        target.decode(tokens, 0)
        logits = target.logits(len(tokens) - 1).astype(np.float64)
        ids = logits.argsort()[-top_k:]
        p = np.exp((logits[ids] - logits[ids].max()) / temperature)
        return {int(i): float(x) for i, x in zip(ids, p / p.sum(), strict=True)}

    return {
        (a, b): p_a * p_b for a, p_a in law(prompt).items() for b, p_b in law([*prompt, a]).items()
    }


@pytest.mark.rounding  # the second prompt is read from its prefix on
def test_a_seed_repeats_a_request(engine: dflash2.Engine) -> None:
    drawn = engine.generate("ab", SamplingParams(temperature=1.0, max_tokens=16))
    params = SamplingParams(temperature=1.0, max_tokens=16, seed=drawn.seed)
    assert engine.generate("ab", params).tokens == drawn.tokens
    other = SamplingParams(temperature=1.0, max_tokens=16, seed=drawn.seed ^ 1)
    assert engine.generate("ab", other).tokens != drawn.tokens


@pytest.mark.rounding
def test_real_pair_drafts_well_and_equals_plain_decoding(real_pair: Pair) -> None:
    params = SamplingParams(max_tokens=24)
    with dflash2.load(*real_pair, n_ctx=512, n_threads=1, spec_draft_n_max=7) as engine:
        prompt = engine.tokenize_chat([{"role": "user", "content": "Count from one to twenty."}])
        drafted = engine.generate(prompt, params)
        plain = engine.generate(prompt, params, spec_draft_n_max=0)
    assert drafted.stats.mean_accept_length > 2.0
    assert_same(open_target(real_pair[0]), prompt, drafted.tokens, plain.tokens)
