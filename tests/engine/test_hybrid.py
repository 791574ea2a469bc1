"""Targets with recurrent layers: what is rejected leaves no trace in their state."""

from __future__ import annotations

from pathlib import Path

import dflash2
import numpy as np
import pytest
from dflash2 import IncompatibleModelsError, SamplingParams
from dflash2._native import core
from fake_drafters import Known
from plain_decoding import assert_same, decode_alone, prompts

N_TOKENS = 24

Pair = tuple[Path, Path]

RIGHT = {"wrong": lambda at: False, "half right": lambda at: at * 2654435761 >> 7 & 1 == 0}


def open_hybrid(pair: Pair, n_rollback: int = 7, **sizes: int) -> core.Target:
    sizes = {"n_ctx": 256, **sizes}
    return core.Target(str(pair[0]), n_rollback=n_rollback, n_threads=1, **sizes)


# -- the target


@pytest.mark.rounding
@pytest.mark.parametrize("back", [1, 3, 7])
def test_rows_of_the_last_decode_are_taken_back(hybrid_pair: Pair, back: int) -> None:
    target = open_hybrid(hybrid_pair)
    tokens = list(range(100, 120))
    target.decode(tokens, 0)
    target.truncate(20 - back)
    target.decode([300, 301], 20 - back, all_logits=True)
    rolled = np.stack([target.logits(row) for row in range(2)])
    target.truncate(0)
    target.decode([*tokens[: 20 - back], 300, 301], 0, all_logits=True)
    fresh = np.stack([target.logits(20 - back + row) for row in range(2)])
    np.testing.assert_allclose(rolled, fresh, atol=5e-3)


def test_earlier_rows_cannot_be_taken_back(hybrid_pair: Pair) -> None:
    """libllama would restore another state without a word."""
    target = open_hybrid(hybrid_pair)
    target.decode([100, 101, 102, 103], 0)
    target.decode([104, 105], 4)
    with pytest.raises(IncompatibleModelsError, match="rolled back to position 4"):
        target.truncate(4)
    target.truncate(5)
    with pytest.raises(IncompatibleModelsError, match="rolled back to position 4"):
        target.truncate(4)  # a snapshot is restored once
    target.truncate(0)
    target.decode([100], 0)


# -- greedy


@pytest.mark.parametrize("kind", RIGHT)
def test_greedy_equals_plain_decoding(
    hybrid_pair: Pair, hybrid_alone: core.Target, kind: str
) -> None:
    target = open_hybrid(hybrid_pair)
    drafter = Known(target, [], RIGHT[kind])
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)
    for prompt in prompts(8, target.n_vocab):
        truth = decode_alone(hybrid_alone, prompt, N_TOKENS)
        drafter.tokens = prompt + truth
        answer = engine.generate(prompt, SamplingParams(max_tokens=N_TOKENS))
        assert_same(hybrid_alone, prompt, answer.tokens, truth)
    total = engine.total_stats
    assert total.num_drafts > 30
    assert (total.num_accepted_tokens > 0) == (kind == "half right")


def test_greedy_with_the_draft_graph_equals_plain_decoding(
    hybrid_pair: Pair, hybrid_alone: core.Target
) -> None:
    with dflash2.load(*hybrid_pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        for prompt in prompts(8, hybrid_alone.n_vocab):
            answer = engine.generate(prompt, SamplingParams(max_tokens=N_TOKENS))
            truth = decode_alone(hybrid_alone, prompt, N_TOKENS)
            assert_same(hybrid_alone, prompt, answer.tokens, truth)
        assert engine.total_stats.num_drafts > 100


def test_slots_equal_plain_decoding(hybrid_pair: Pair, hybrid_alone: core.Target) -> None:
    some = prompts(6, hybrid_alone.n_vocab)
    params = [SamplingParams(max_tokens=5 + 4 * i) for i in range(6)]
    with dflash2.load(
        *hybrid_pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=3
    ) as engine:
        answers = engine.generate(some, params)
    for prompt, each, answer in zip(some, params, answers, strict=True):
        truth = decode_alone(hybrid_alone, prompt, each.max_tokens or 0)
        assert_same(hybrid_alone, prompt, answer.tokens, truth)


# -- prompts of which a part is there already


@pytest.mark.parametrize("n_draft", [0, None])
@pytest.mark.parametrize("n_batch", [32, 512])
def test_the_same_prompt_again_gives_the_same_tokens(
    hybrid_pair: Pair, hybrid_alone: core.Target, n_batch: int, n_draft: int | None
) -> None:
    """After plain rounds or a last batch of one token no snapshot reaches back far enough."""
    with dflash2.load(
        *hybrid_pair, n_ctx=256, n_batch=n_batch, n_threads=1, spec_draft_n_max=7
    ) as engine:
        prompt = prompts(1, hybrid_alone.n_vocab)[0] * 40
        prompt = prompt[:65]
        truth = decode_alone(hybrid_alone, prompt, 8)
        for n in (8, 1, 2, 3, 8):
            params = SamplingParams(max_tokens=n)
            answer = engine.generate(prompt, params, spec_draft_n_max=n_draft)
            assert_same(hybrid_alone, prompt, answer.tokens, truth[:n])


def test_a_longer_prompt_takes_over_the_state(hybrid_pair: Pair, hybrid_alone: core.Target) -> None:
    with dflash2.load(*hybrid_pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        prompt = prompts(1, hybrid_alone.n_vocab, longest=40)[0]
        for turn in range(4):
            answer = engine.generate(prompt, SamplingParams(max_tokens=6))
            assert_same(hybrid_alone, prompt, answer.tokens, decode_alone(hybrid_alone, prompt, 6))
            assert (answer.stats.num_cached_tokens > 0) == (turn > 0)
            prompt = [*prompt, *answer.tokens, 50 + turn, 60]


# -- what cannot be rolled back


def test_a_target_without_snapshots_is_refused_by_name(hybrid_pair: Pair) -> None:
    target = open_hybrid(hybrid_pair, n_rollback=0)
    with pytest.raises(IncompatibleModelsError, match=r"target\.gguf.*cannot be rolled back"):
        dflash2.Engine(target, Known(target, [], RIGHT["wrong"]))
    answer = dflash2.Engine(target).generate([9, 8], SamplingParams(max_tokens=4))
    assert len(answer.tokens) == 4


def test_fewer_snapshots_than_the_block_shorten_the_draft(
    hybrid_pair: Pair, hybrid_alone: core.Target
) -> None:
    target = open_hybrid(hybrid_pair, n_rollback=2)
    drafter = Known(target, [], RIGHT["half right"])
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)
    assert engine.spec_draft_n_max == 2
    prompt = [40, 41, 42]
    truth = decode_alone(hybrid_alone, prompt, N_TOKENS)
    drafter.tokens = prompt + truth
    answer = engine.generate(prompt, SamplingParams(max_tokens=N_TOKENS))
    assert_same(hybrid_alone, prompt, answer.tokens, truth)
