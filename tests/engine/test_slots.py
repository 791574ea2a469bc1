"""Requests side by side: each one gets what it would get alone."""

from __future__ import annotations

from pathlib import Path

import dflash2
import pytest
from dflash2 import ContextFullError, DFlash2Error, Response, SamplingParams
from dflash2._native import core
from fake_drafters import Scattered
from plain_decoding import assert_same, prompts

Pair = tuple[Path, Path]

N_VOCAB = 512
PROMPTS = prompts(8, N_VOCAB)
GREEDY = [SamplingParams(max_tokens=n) for n in (1, 30, 7, 16, 2, 25, 12, 9)]
SAMPLED = [
    SamplingParams(temperature=0.8, top_k=20, seed=3, max_tokens=12),
    SamplingParams(temperature=1.2, top_p=0.9, seed=4, max_tokens=20, stop=["e", "t"]),
    SamplingParams(seed=1, max_tokens=15),
    SamplingParams(temperature=0.5, seed=5, max_tokens=1),
    SamplingParams(temperature=0.7, repeat_penalty=1.3, seed=5, max_tokens=17),
    SamplingParams(temperature=1.0, min_p=0.1, seed=6, max_tokens=9),
    SamplingParams(temperature=2.0, top_k=40, seed=7, max_tokens=11, stop="a"),
    SamplingParams(temperature=0.3, seed=8, max_tokens=14),
]


def counters(answer: Response) -> dict[str, object]:
    """What does not depend on the clock."""
    stats = answer.stats
    names = ("prompt_tokens", "generated_tokens", "rounds", "drafts", "draft_tokens")
    return {name: getattr(stats, f"num_{name}") for name in names} | {
        "accepted": stats.accepted_per_pos
    }


def one_by_one(pair: Pair, params: list[SamplingParams]) -> list[Response]:
    """Each on an engine that holds nothing of the one before."""
    answers = []
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        for prompt, each in zip(PROMPTS, params, strict=True):
            answers.append(engine.generate(prompt, each))
            assert answers[-1].stats.num_cached_tokens == 0
    return answers


@pytest.fixture(scope="module")
def greedy_alone(pair: Pair) -> list[Response]:
    return one_by_one(pair, GREEDY)


@pytest.fixture(scope="module")
def sampled_alone(pair: Pair) -> list[Response]:
    return one_by_one(pair, SAMPLED)


@pytest.mark.parametrize("n_parallel", [1, 2, 3])
def test_greedy_answers_and_drafts_are_those_of_each_alone(
    pair: Pair, alone: core.Target, greedy_alone: list[Response], n_parallel: int
) -> None:
    with dflash2.load(
        *pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=n_parallel
    ) as engine:
        answers = engine.generate(PROMPTS, GREEDY)
    for prompt, answer, expected in zip(PROMPTS, answers, greedy_alone, strict=True):
        assert_same(alone, prompt, answer.tokens, expected.tokens)
        if answer.tokens == expected.tokens:
            assert counters(answer) == counters(expected)
            assert (answer.text, answer.finish_reason) == (expected.text, expected.finish_reason)


@pytest.mark.rounding
@pytest.mark.parametrize("n_parallel", [1, 2, 3])
def test_sampled_answers_are_the_same_draws(
    pair: Pair, sampled_alone: list[Response], n_parallel: int
) -> None:
    with dflash2.load(
        *pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=n_parallel
    ) as engine:
        answers = engine.generate(PROMPTS, SAMPLED)
    equal = [a.tokens == b.tokens for a, b in zip(answers, sampled_alone, strict=True)]
    # A draw may fall where rounding decides; neighbours that mix would change nearly all.
    assert sum(equal) >= 7
    for answer, expected, same in zip(answers, sampled_alone, equal, strict=True):
        assert answer.seed == expected.seed
        if same:
            assert counters(answer) == counters(expected)
            assert (answer.text, answer.finish_reason) == (expected.text, expected.finish_reason)


def test_one_seed_draws_the_same_in_every_slot(pair: Pair) -> None:
    params = SamplingParams(temperature=1.0, top_k=8, seed=11, max_tokens=12)
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=3) as engine:
        answers = engine.generate([PROMPTS[0]] * 3, params)
    assert len({answer.tokens for answer in answers}) == 1


def test_drafting_and_plain_requests_share_a_pass(pair: Pair, alone: core.Target) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_seq=2, n_threads=1)
    engine = core.Engine(
        target, core.GraphDrafter(core.DraftModel(str(pair[1])), target), n_draft_max=7
    )
    tokens: dict[int, list[int]] = {}
    for prompt, n_draft in ((PROMPTS[1], -1), (PROMPTS[1], 0)):
        request = SamplingParams(max_tokens=20).to_request(prompt, 0, n_draft)
        tokens[engine.submit(request)] = []
    drafting, plain = tokens
    while not engine.idle:
        for progress in engine.step():
            tokens[progress.id] += [token.id for token in progress.tokens]
    assert_same(alone, PROMPTS[1], tokens[drafting], tokens[plain])
    assert engine.request_stats(plain).n_drafts == 0
    assert engine.request_stats(drafting).n_drafts > 0


def test_a_free_slot_is_refilled_at_once(pair: Pair) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_seq=2, n_threads=1)
    drafter = Scattered(target)
    engine = core.Engine(target, drafter, n_draft_max=7)
    lengths = [40, 3, 3, 3, 3]
    for prompt, n in zip(PROMPTS, lengths, strict=False):
        engine.submit(SamplingParams(max_tokens=n).to_request(prompt, 0, 0))
    finished = []
    while not engine.idle:
        finished += [p.id for p in engine.step() if p.finish_reason is not None]
    assert finished == [2, 3, 4, 5, 1], "short requests pass beside the long one"
    assert engine.total_stats.n_generated == sum(lengths)


def test_a_list_longer_than_the_slots_keeps_its_order(engine: dflash2.Engine) -> None:
    answers = engine.generate(["a", "bb", "c"], SamplingParams(max_tokens=2))
    singles = [engine.generate(p, SamplingParams(max_tokens=2)) for p in ("a", "bb", "c")]
    assert [a.tokens for a in answers] == [s.tokens for s in singles]
    assert engine.generate([]) == []


# -- failures and early ends


def test_a_prompt_that_does_not_fit_disturbs_nobody(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=2) as engine:
        params = SamplingParams(max_tokens=12)
        expected = engine.generate(PROMPTS[0], params)
        stream = engine.stream(PROMPTS[0], params)
        tokens = [next(stream).token for _ in range(4)]
        with pytest.raises(ContextFullError, match="larger n_ctx or a shorter prompt"):
            engine.generate([9] * 300, params)
        with pytest.raises(ContextFullError):
            engine.generate([PROMPTS[1], [9] * 300], params)
        with pytest.raises(ValueError, match="outside the vocabulary"):
            engine.generate([N_VOCAB], params)
        tokens += [item.token for item in stream]
        assert tuple(tokens) == expected.tokens
        assert engine.generate(PROMPTS[0], params).tokens == expected.tokens


def test_streams_take_turns(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=3) as engine:
        expected = engine.generate(PROMPTS[:3], SamplingParams(max_tokens=18))
        streams = [engine.stream(p, SamplingParams(max_tokens=18)) for p in PROMPTS[:3]]
        tokens: list[list[int]] = [[], [], []]
        for _ in range(18):
            for mine, stream in zip(tokens, streams, strict=True):
                mine.append(next(stream).token)
        assert [tuple(mine) for mine in tokens] == [answer.tokens for answer in expected]
        assert [next(stream, None) for stream in streams] == [None] * 3


def test_leaving_a_stream_in_the_middle_leaves_the_others(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=2) as engine:
        params = SamplingParams(max_tokens=20)
        expected = engine.generate(PROMPTS[:3], params)
        first, second = (engine.stream(p, params) for p in PROMPTS[:2])
        tokens = [next(first).token for _ in range(3)]
        next(second)
        second.close()
        third = engine.stream(PROMPTS[2], params)
        assert tuple(item.token for item in third) == expected[2].tokens
        tokens += [item.token for item in first]
        assert tuple(tokens) == expected[0].tokens


def test_one_stream_more_than_slots_ends_the_oldest(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=2) as engine:
        params = SamplingParams(max_tokens=20)
        streams = [engine.stream(p, params) for p in PROMPTS[:3]]
        with pytest.raises(DFlash2Error, match="ended by a later request"):
            next(streams[0])
        for stream, prompt in zip(streams[1:], PROMPTS[1:3], strict=True):
            tokens = tuple(item.token for item in stream)
            assert tokens == engine.generate(prompt, params).tokens


def test_a_queued_request_can_be_cancelled(pair: Pair) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
    engine = core.Engine(target, Scattered(target), n_draft_max=7)
    for prompt in PROMPTS[:3]:
        engine.submit(SamplingParams(max_tokens=6).to_request(prompt, 0, -1))
    engine.step()
    engine.cancel(2)
    seen = set()
    while not engine.idle:
        seen |= {progress.id for progress in engine.step()}
    assert seen == {1, 3}
    with pytest.raises(ValueError, match="request 2: unknown"):
        engine.request_stats(2)


def test_streams_that_fit_do_not_end_each_other(pair: Pair) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    with dflash2.load(*pair, n_ctx=256, n_parallel=4, n_threads=1, spec_draft_n_max=7) as engine:
        streams = [engine.stream(prompt, params) for prompt in PROMPTS[:4]]
        assert [len(list(stream)) for stream in streams] == [6] * 4


def test_a_stream_dropped_before_its_first_token_frees_its_slot(pair: Pair) -> None:
    endless = SamplingParams(ignore_eos=True)
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        engine.stream(PROMPTS[0], endless)
        answers = engine.generate(PROMPTS[:2], SamplingParams(max_tokens=3))
        assert [len(answer.tokens) for answer in answers] == [3, 3]
        assert engine.total_stats.num_generated_tokens == 1 + 3 + 3
