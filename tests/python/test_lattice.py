"""The pure logic through its bindings, against plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from dflash2._native import core
from numpy.typing import NDArray
from scipy.stats import chi2

N_POS, TOP_K = 3, 4


def make_lattice(seed: int) -> tuple[core.Lattice, NDArray[np.int32], NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    cand = np.stack([random.choice(50, TOP_K, replace=False) for _ in range(N_POS)])
    score = random.normal(0, 2, (N_POS, TOP_K, TOP_K)).astype(np.float32)
    return core.Lattice(cand.astype(np.int32), score), cand.astype(np.int32), score


def softmax(x: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    e = np.exp((x.astype(np.float64) - x.max()) / temperature)
    return np.asarray(e / e.sum())


def test_a_lattice_keeps_its_arrays_and_shares_no_memory() -> None:
    lattice, cand, score = make_lattice(0)
    assert (lattice.cand == cand).all()
    assert (lattice.score == score).all()
    lattice.cand[:] = 0
    assert (lattice.cand == cand).all()


@pytest.mark.parametrize("seed", range(5))
def test_greedy_walk_follows_the_best_edges(seed: int) -> None:
    lattice, cand, score = make_lattice(seed)
    tokens, q = core.walk_greedy(lattice)
    at = 0
    for pos in range(N_POS):
        at = int(score[pos, at].argmax())
        assert tokens[pos] == cand[pos, at]
        assert q[pos] == [(tokens[pos], 1.0)]


def test_p_min_ends_a_greedy_walk() -> None:
    lattice, _, score = make_lattice(1)
    p_first = softmax(score[0, 0], 1.0).max()
    assert core.walk_greedy(lattice, p_min=p_first + 0.01) == ([], [])
    assert len(core.walk_greedy(lattice, p_min=p_first - 0.01)[0]) >= 1


def test_sampled_walk_reports_the_law_it_drew_from() -> None:
    lattice, cand, score = make_lattice(2)
    counts: Counter[int] = Counter()
    n = 3000
    for seed in range(n):
        tokens, q = core.walk_sample(lattice, 1.5, seed, 0, position=9)
        at = 0
        for pos in range(N_POS):
            law = dict(q[pos])
            expected = softmax(score[pos, at], 1.5)
            assert [law[int(c)] for c in cand[pos]] == pytest.approx(expected, abs=1e-6)
            at = cand[pos].tolist().index(tokens[pos])
        counts[tokens[0]] += 1
    p = dict(zip(cand[0].tolist(), softmax(score[0, 0], 1.5), strict=True))
    statistic = sum((counts[t] - n * x) ** 2 / (n * x) for t, x in p.items())
    assert chi2.sf(statistic, TOP_K - 1) > 1e-4


def test_verify_rejection_emits_the_targets_law() -> None:
    p = [(1, 0.5), (2, 0.3), (3, 0.2)]
    q = [(1, 0.1), (2, 0.2), (9, 0.7)]
    counts: Counter[int] = Counter()
    n = 4000
    for seed in range(n):
        token = core.draw(q, core.uniform(seed, 0, "draft", 1))
        rows: list[int] = []

        def law_at(row: int, rows: list[int] = rows) -> list[tuple[int, float]]:
            rows.append(row)
            return p

        n_accept, next_ = core.verify_rejection([token], [q], law_at, seed, 0, 0)
        assert rows == ([0, 1] if n_accept else [0])
        counts[token if n_accept else next_] += 1
    statistic = sum((counts[t] - n * x) ** 2 / (n * x) for t, x in p)
    assert set(counts) == {1, 2, 3}
    assert chi2.sf(statistic, 2) > 1e-4


def test_residual_is_what_the_draft_left_over() -> None:
    left = dict(core.residual([(1, 0.5), (2, 0.3), (3, 0.2)], [(1, 0.1), (2, 0.2), (9, 0.7)]))
    assert left == pytest.approx({1: 4 / 7, 2: 1 / 7, 3: 2 / 7}, abs=1e-6)


def test_errors_of_python_callbacks_arrive() -> None:
    with pytest.raises(ZeroDivisionError):
        core.verify_rejection([1], [[(1, 1.0)]], lambda row: [(1, 1 / 0)], 0, 0, 0)


def test_text_is_released_in_whole_characters_before_a_stop() -> None:
    stream = core.TextStream(["END"])
    pieces = ["a\u00e9".encode()[:2], "\u00e9".encode()[1:], b"E", b"N", b"x", b"EN", b"Dmore"]
    assert [stream.push(piece) for piece in pieces] == ["a", "\u00e9", "", "", "ENx", "", ""]
    assert stream.stopped
    assert stream.finish() == ""
