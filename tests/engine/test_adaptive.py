"""Lengths chosen in each round, on machines that the tests make up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dflash2
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from fake_drafters import Known, Scattered
from fake_machine import FakeMachine
from plain_decoding import assert_same, decode_alone, prompts

N_TOKENS = 60

Pair = tuple[Path, Path]
Cost = Callable[[int], float]


def flat(rows: int) -> float:
    return 20.0 + 0.1 * rows


def dear(rows: int) -> float:
    return 20.0 * rows


def cliff(rows: int) -> float:
    return 10.0 + 5.0 * rows if rows < 9 else 12.0


def run(engine: core.Engine, request: core.Request) -> list[int]:
    engine.submit(request)
    tokens: list[int] = []
    while not engine.idle:
        for progress in engine.step():
            tokens += [token.id for token in progress.tokens]
    return tokens


class Rig:
    """A drafter that is right, wrong or in between, on a machine of given costs."""

    def __init__(
        self,
        pair: Pair,
        alone: core.Target,
        pass_ms: Cost,
        draft_ms: float,
        right: Callable[[int], bool] = lambda at: True,
        *,
        n_rollback: int = 0,
    ) -> None:
        self.alone = alone
        self.target = core.Target(str(pair[0]), n_ctx=256, n_rollback=n_rollback, n_threads=1)
        self.drafter = Known(self.target, [], right)
        self.machine = FakeMachine(self.target, self.drafter, pass_ms, lambda width: draft_ms)
        self.engine = core.Engine(self.target, self.drafter, clock=self.machine)
        self.n_requests = 0

    def answer(self, prompt: list[int], n: int = N_TOKENS) -> core.Stats:
        """Checks the tokens."""
        truth = decode_alone(self.alone, prompt, n)
        self.drafter.tokens = prompt + truth
        self.n_requests += 1
        tokens = run(self.engine, SamplingParams(max_tokens=n).to_request(prompt, 0, -1))
        assert_same(self.alone, prompt, tokens, truth)
        return self.engine.request_stats(self.n_requests)


@pytest.mark.rounding
def test_drafts_become_long_where_they_pay(pair: Pair, alone: core.Target) -> None:
    rig = Rig(pair, alone, flat, 2.0)
    for prompt in prompts(4, 512):
        stats = rig.answer(prompt)
    assert stats.n_rounds <= 10, "8 tokens a round"
    assert stats.n_verified > 0.9 * stats.n_drafted


@pytest.mark.parametrize("pass_ms", [flat, dear], ids=["drafts are wrong", "rows are dear"])
def test_drafts_are_rare_where_they_do_not_pay(
    pair: Pair, alone: core.Target, pass_ms: Cost
) -> None:
    right = pass_ms is dear
    rig = Rig(pair, alone, pass_ms, 10.0, lambda at: right)
    for prompt in prompts(12, 512):  # the first trials cost three rounds
        rig.answer(prompt)
    total = rig.engine.total_stats
    assert 0 < total.n_drafts < 0.05 * total.n_rounds
    n_tokens = total.n_generated - rig.n_requests  # the first of each comes from its prompt
    assert rig.machine.ms < 1.02 * pass_ms(1) * n_tokens, "plain decoding's time"


def test_a_pass_is_padded_where_more_rows_cost_less(pair: Pair, alone: core.Target) -> None:
    """Padding is computed and forgotten: tokens stay right, also at the end of the context."""
    rig = Rig(pair, alone, cliff, 1.0)
    for prompt in prompts(6, 512):
        rig.answer(prompt)
    assert rig.machine.rows.count(9) > 10
    assert max(rig.drafter.widths) == 7, "8 rows would do"
    n_room = rig.target.n_ctx - 200
    assert len(run(rig.engine, SamplingParams().to_request([9] * 200, 0, -1))) == n_room + 1


def test_a_pass_is_not_padded_beyond_what_can_be_rolled_back(
    hybrid_pair: Pair, hybrid_alone: core.Target
) -> None:
    rig = Rig(hybrid_pair, hybrid_alone, cliff, 1.0, lambda at: at % 16 > 0, n_rollback=7)
    for prompt in prompts(4, 512):
        rig.answer(prompt)
    assert rig.engine.total_stats.n_accepted > 0
    assert max(rig.machine.rows) == 8


@pytest.mark.parametrize("window", [0, 8])
def test_rows_of_plain_rounds_reach_the_drafter_before_its_next_draft(
    pair: Pair, window: int
) -> None:
    """The fake drafter checks that none is missing, also when a prompt takes over the memory."""
    target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
    drafter = Known(target, [], lambda at: False)
    drafter.window = window
    machine = FakeMachine(target, drafter, flat, lambda width: 10.0)
    engine = core.Engine(target, drafter, clock=machine)
    prompt = prompts(1, 512)[0]
    for n in (100, 1, 30, 60):
        tokens = run(engine, SamplingParams(max_tokens=n).to_request(prompt, 0, -1))
        prompt = [*prompt, *tokens, 9][-150:]
        before = drafter.n_calls
        run(engine, SamplingParams(max_tokens=4).to_request(prompt, 0, 2))
        assert drafter.n_calls > before
    assert engine.total_stats.n_rounds > 2 * engine.total_stats.n_drafts


def test_the_same_timings_repeat_a_sampled_answer(pair: Pair, alone: core.Target) -> None:
    def answer() -> tuple[list[int], list[int]]:
        rig = Rig(pair, alone, flat, 2.0)
        params = SamplingParams(temperature=0.7, top_k=4, max_tokens=N_TOKENS)
        return run(rig.engine, params.to_request([9, 8, 7], 5, -1)), rig.drafter.widths

    first = answer()
    assert first[1], "it drafts"
    assert answer() == first


def test_requests_side_by_side_share_a_width(pair: Pair, alone: core.Target) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_seq=3, n_threads=1)
    drafter = core.GraphDrafter(core.DraftModel(str(pair[1])), target)
    engine = dflash2.Engine(target, drafter)
    given = prompts(5, 512)
    for _ in range(3):
        answers = engine.generate(given, SamplingParams(max_tokens=N_TOKENS))
        for prompt, answer in zip(given, answers, strict=True):
            assert_same(alone, prompt, answer.tokens, decode_alone(alone, prompt, N_TOKENS))
    assert 0 < engine.total_stats.num_drafts < engine.total_stats.num_rounds


def test_drafts_are_rare_side_by_side_where_they_do_not_pay(pair: Pair, alone: core.Target) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_seq=2, n_threads=1)
    drafter = Known(target, [], lambda at: False)
    machine = FakeMachine(target, drafter, flat, lambda width: 10.0)
    engine = core.Engine(target, drafter, clock=machine)
    for prompt in prompts(6, 512):
        drafter.tokens = prompt + decode_alone(alone, prompt, N_TOKENS)
        for _ in range(2):
            engine.submit(SamplingParams(max_tokens=N_TOKENS).to_request(prompt, 0, -1))
        while not engine.idle:
            engine.step()
    total = engine.total_stats
    assert 0 < total.n_drafts < 0.1 * total.n_rounds


def test_a_fixed_length_is_kept(pair: Pair, alone: core.Target) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
    drafter = Scattered(target)
    drafter.target_layers = lambda: [1, 3]  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=20)
    for engine_n, request_n, expected in ((None, 2, {2}), (3, None, {3}), (3, 2, {2}), (3, 9, {3})):
        engine = dflash2.Engine(target, drafter, spec_draft_n_max=engine_n)
        drafter.widths.clear()
        answer = engine.generate([9, 8], params, spec_draft_n_max=request_n)
        assert set(drafter.widths) == expected
        assert answer.mode == "fixed"
        target.truncate(0)
        drafter.truncate(0, 0)


def test_an_answer_says_how_it_was_made(pair: Pair) -> None:
    def said(engine: dflash2.Engine, n: int | None = None, temperature: float = 0.0) -> object:
        params = SamplingParams(max_tokens=2, temperature=temperature)
        answer = engine.generate("x", params, spec_draft_n_max=n)
        assert (engine.mode, engine.accept_rule) == (answer.mode, answer.accept_rule)
        return answer.mode, answer.accept_rule

    with dflash2.load(*pair, n_ctx=64, n_threads=1) as engine:
        assert said(engine) == ("adaptive", "match")
        assert said(engine, temperature=1.0) == ("adaptive", "rejection")
        assert said(engine, 2, temperature=1.0) == ("fixed", "rejection")
        assert said(engine, 0) == ("plain", None)
    with dflash2.load(*pair, n_ctx=64, n_threads=1, accept_rule="match") as engine:
        assert said(engine, temperature=1.0) == ("adaptive", "match")
    with dflash2.load(*pair, n_ctx=64, n_threads=1, spec_draft_n_max=0) as engine:
        assert said(engine, 2) == ("plain", None)
    with dflash2.load(pair[0], n_ctx=64, n_threads=1) as engine:
        assert said(engine, 2) == ("plain", None)
