"""Prompts that share a beginning with what the engine holds: less is decoded, nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dflash2
import pytest
from dflash2 import Response, SamplingParams
from dflash2._native import core
from fake_drafters import FakeDrafter, Scattered
from plain_decoding import assert_same, prompts

Pair = tuple[Path, Path]

WINDOW = 32
BASE = prompts(1, 512, longest=2, seed=1)[0] + prompts(40, 512, seed=2)[3][:59] * 2
assert len(BASE) > 2 * WINDOW

SECOND = {
    "diverges at once": [11, 12, *BASE[2:]],
    "diverges early": [*BASE[:9], 11, *BASE[9:50]],
    "diverges late": [*BASE[:-2], 11, 12],
    "is a beginning": BASE[: WINDOW + 9],
    "is a short beginning": BASE[:5],
    "is the same": BASE,
    "goes on": [*BASE, 60, 61, 62],
    "goes on for long": [*BASE, *BASE[::-1]],
}


@pytest.fixture(scope="module")
def fresh(pair: Pair) -> Iterator[dflash2.Engine]:
    """Never reuses: see `answer_fresh`."""
    with dflash2.load(*pair, n_ctx=512, n_threads=1, spec_draft_n_max=7) as engine:
        yield engine


def answer_fresh(engine: dflash2.Engine, prompt: list[int], params: SamplingParams) -> Response:
    engine.generate([prompt[0] ^ 1], SamplingParams(max_tokens=1))  # takes the sequence over
    answer = engine.generate(prompt, params)
    assert answer.stats.num_cached_tokens == 0
    return answer


def same(target: core.Target, prompt: list[int], answer: Response, expected: Response) -> None:
    assert_same(target, prompt, answer.tokens, expected.tokens)
    if answer.tokens == expected.tokens:
        assert answer.text == expected.text
        assert answer.stats.accepted_per_pos == expected.stats.accepted_per_pos
        assert answer.stats.num_drafts == expected.stats.num_drafts


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("how", SECOND)
def test_the_second_prompt_gets_the_tokens_and_drafts_of_a_fresh_engine(
    engine: dflash2.Engine,
    fresh: dflash2.Engine,
    alone: core.Target,
    how: str,
    temperature: float,
) -> None:
    params = SamplingParams(max_tokens=20, temperature=temperature, top_k=10, seed=5)
    prompt = SECOND[how]
    engine.generate([7, 7], SamplingParams(max_tokens=1))
    engine.generate(BASE, params)
    answer = engine.generate(prompt, params)
    same(alone, prompt, answer, answer_fresh(fresh, prompt, params))
    cached = answer.stats.num_cached_tokens
    if how == "diverges at once":
        assert cached == 0
    if how in ("goes on", "diverges late", "is the same"):
        assert cached >= len(BASE) - 3 - WINDOW - 20
    assert cached < len(prompt), "the last token is always decoded"


def test_drafts_are_the_same_lattices(pair: Pair) -> None:
    """Not only as many accepted: what the graph returns."""

    class Recorder(FakeDrafter):
        def __init__(self, target: core.Target, graph: core.GraphDrafter) -> None:
            super().__init__(target)
            self.graph = graph
            self.seen: list[list[int]] = []

        def truncate(self, seq: int, n_keep: int) -> bool:
            return self.graph.truncate(seq, n_keep)

        def inject(self, seq: int, features, position: int) -> None:  # type: ignore[no-untyped-def]
            self.graph.inject(seq, features, position)

        def draft(self, jobs, n_draft: int) -> list[core.Lattice]:  # type: ignore[no-untyped-def]
            lattices = self.graph.draft(jobs, n_draft)
            self.seen += [core.walk_greedy(lattice)[0] for lattice in lattices]
            return lattices

        def max_draft(self) -> int:
            return self.graph.max_draft()

        def context_window(self) -> int:
            return self.graph.context_window()

        def target_layers(self) -> list[int]:
            return self.graph.target_layers()

    def run(before: list[list[int]]) -> list[list[int]]:
        target = core.Target(str(pair[0]), n_ctx=512, n_threads=1)
        model = core.DraftModel(str(pair[1]))
        recorder = Recorder(target, core.GraphDrafter(model, target, kv_f32=True))
        engine = dflash2.Engine(target, recorder, spec_draft_n_max=7)
        for prompt in before:
            engine.generate(prompt, SamplingParams(max_tokens=8))
        recorder.seen.clear()
        engine.generate(SECOND["goes on"], SamplingParams(max_tokens=8))
        return recorder.seen

    expected = run([])
    assert len(expected) > 2
    for before in (BASE, SECOND["goes on for long"], SECOND["is the same"][:40]):
        assert run([before]) == expected


def test_a_conversation_is_decoded_once(
    engine: dflash2.Engine, fresh: dflash2.Engine, alone: core.Target
) -> None:
    params = SamplingParams(max_tokens=24)
    messages: list[dict[str, str]] = []
    total = cached = 0
    engine.generate([7, 7], SamplingParams(max_tokens=1))
    for turn in range(4):
        messages.append({"role": "user", "content": f"the cat said {turn}"})
        prompt = engine.tokenize_chat(messages)
        answer = engine.chat(messages, params)
        same(alone, prompt, answer, answer_fresh(fresh, prompt, params))
        assert (answer.stats.num_cached_tokens > 0) == (turn > 0)
        total += answer.stats.num_prompt_tokens
        cached += answer.stats.num_cached_tokens
        messages.append({"role": "assistant", "content": "then it left"})
    assert cached > total / 2


def test_a_plain_request_between_two_drafted_ones(
    engine: dflash2.Engine, fresh: dflash2.Engine, alone: core.Target
) -> None:
    """The drafter saw nothing of it, and holds what it had seen before."""
    params = SamplingParams(max_tokens=20)
    prompt = SECOND["goes on"]
    engine.generate([7, 7], SamplingParams(max_tokens=1))
    engine.generate(BASE, params)
    engine.generate(BASE, params, spec_draft_n_max=0)
    answer = engine.generate(prompt, params)
    same(alone, prompt, answer, answer_fresh(fresh, prompt, params))
    assert answer.stats.num_cached_tokens == len(BASE) - 1


def test_a_plain_request_reuses_all_of_a_drafted_one(engine: dflash2.Engine) -> None:
    engine.generate([7, 7], SamplingParams(max_tokens=1))
    held = [*BASE, *engine.generate(BASE, SamplingParams(max_tokens=9)).tokens[:-1]]
    plain = engine.generate([*held, 9], SamplingParams(max_tokens=1), spec_draft_n_max=0)
    assert plain.stats.num_cached_tokens == len(held)


@pytest.mark.parametrize(
    ("window", "n_shared", "n_plain", "cached"),
    [
        pytest.param(0, 40, 60, 40, id="what the drafter missed is decoded again"),
        pytest.param(0, 20, 50, 20, id="the plain request parted before that"),
        pytest.param(8, 40, 45, 40, id="what the drafter missed of its window"),
        pytest.param(8, 40, 60, 52, id="the drafter's window"),
    ],
)
def test_a_plain_request_does_not_cost_the_drafter_its_context(
    pair: Pair, window: int, n_shared: int, n_plain: int, cached: int
) -> None:
    target = core.Target(str(pair[0]), n_ctx=512, n_threads=1)
    drafter = Scattered(target)
    drafter.window = window
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=3)
    one = SamplingParams(max_tokens=1)
    prompt = [*BASE[:n_shared], *BASE[::-1][: n_plain - n_shared]]
    engine.generate(BASE[:40], one)
    plain = engine.generate(prompt, one, spec_draft_n_max=0)
    assert plain.stats.num_cached_tokens == n_shared
    answer = engine.generate([*prompt, 9], SamplingParams(max_tokens=9))
    assert answer.stats.num_cached_tokens == cached
    assert answer.stats.num_drafts > 0


def test_a_recurrent_target_is_not_rewound_to_where_the_drafter_was(
    hybrid_pair: Pair, hybrid_alone: core.Target
) -> None:
    """It keeps a few snapshots only: all is decoded again, and drafts are those of a new engine."""
    params = SamplingParams(max_tokens=12)
    prompt = BASE[:60]
    with dflash2.load(*hybrid_pair, n_ctx=512, n_threads=1, spec_draft_n_max=3) as engine:
        expected = engine.generate(prompt, params)
        engine.generate(BASE[:40], SamplingParams(max_tokens=1))
        plain = engine.generate(prompt[:-1], SamplingParams(max_tokens=1), spec_draft_n_max=0)
        answer = engine.generate(prompt, params)
    assert plain.stats.num_cached_tokens == 40
    assert answer.stats.num_cached_tokens == 0
    same(hybrid_alone, prompt, answer, expected)


def test_a_cut_behind_the_window_rebuilds_the_drafter(
    engine: dflash2.Engine, fresh: dflash2.Engine, alone: core.Target
) -> None:
    """The rings hold only the end of the long prompt."""
    params = SamplingParams(max_tokens=20)
    long = SECOND["goes on for long"]
    prompt = [*long[: len(long) // 2], 70, 71]
    engine.generate([7, 7], SamplingParams(max_tokens=1))
    engine.generate(long, params)
    answer = engine.generate(prompt, params)
    same(alone, prompt, answer, answer_fresh(fresh, prompt, params))
    assert answer.stats.num_cached_tokens > 0


@pytest.mark.parametrize("window", [0, 8])
def test_the_drafter_gets_every_row_of_its_window(pair: Pair, window: int) -> None:
    """The fake drafter checks that; this goes through cuts of all sizes."""
    target = core.Target(str(pair[0]), n_ctx=512, n_threads=1)
    drafter = Scattered(target)
    drafter.window = window
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)
    for cut in (60, 59, 30, 31, 4, 1, 50):
        engine.generate([*BASE[:cut], 400 + cut, 9], SamplingParams(max_tokens=cut % 7 + 1))
    assert drafter.n_calls > 10


def test_the_best_slot_is_taken_over(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7, n_parallel=2) as engine:
        params = SamplingParams(max_tokens=4)
        one, two = BASE[:40], BASE[40:80]
        engine.generate([one, two], params)
        for prompt in (two, one, two):
            answer = engine.generate([*prompt, 9], params)
            assert answer.stats.num_cached_tokens > 0
