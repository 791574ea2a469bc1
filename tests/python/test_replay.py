"""Teacher-forced drafts say what generation does."""

from __future__ import annotations

import itertools
from pathlib import Path

import dflash2
import numpy as np
import pytest
from dflash2._native import core
from dflash2.replay import Block, Law, read, replay

N_CTX = 512


class Pair:
    def __init__(self, target: Path, draft: Path, n_seq: int = 1) -> None:
        self.target = core.Target(str(target), n_ctx=N_CTX, n_seq=n_seq, n_threads=1)
        self.drafter = core.GraphDrafter(core.DraftModel(str(draft)), self.target)
        self.layers = self.drafter.target_layers()


def greedy(target: core.Target, prompt: list[int], n: int) -> list[int]:
    target.truncate(0)
    target.decode(prompt, 0)
    tokens, row = list(prompt), len(prompt) - 1
    for _ in range(n):
        tokens.append(int(target.logits(row).argmax()))
        target.decode(tokens[-1:], len(tokens) - 1)
        row = 0
    return tokens


@pytest.mark.rounding
def test_a_replay_of_greedy_text_accepts_what_generation_accepted(
    real_pair: tuple[Path, Path],
) -> None:
    params = dflash2.SamplingParams(max_tokens=40, ignore_eos=True)
    with dflash2.load(*real_pair, n_ctx=N_CTX, n_threads=1, spec_draft_n_max=7) as engine:
        prompt = engine.tokenize("Here is a list of fruits:\n1.")
        response = engine.generate(prompt, params)
    pair = Pair(*real_pair)
    tokens = [*prompt, *response.tokens]
    reading = read(pair.target, tokens, pair.layers, start=len(prompt))
    assert reading.argmax[:-1].tolist() == list(response.tokens[1:])

    lengths = {b.position: b.accept_length for b in replay([reading], pair.drafter)}
    position, n_accepted = len(prompt), []
    while position in lengths:
        n_accepted.append(lengths[position] - 1)
        position += lengths[position]
    of_engine = response.stats.accepted_per_pos
    of_replay = [sum(n > i for n in n_accepted) for i in range(len(of_engine))]
    rounds_left = response.stats.num_drafts - len(n_accepted)
    differences = np.subtract(of_engine, of_replay)
    assert differences.min() >= 0
    assert differences.max() <= rounds_left <= 3


@pytest.mark.rounding
def test_texts_side_by_side_are_drafted_as_alone(pair: tuple[Path, Path]) -> None:
    one, three = Pair(*pair), Pair(*pair, n_seq=3)
    texts = [greedy(one.target, [7 + i, 8, 9], 20 + 3 * i) for i in range(4)]
    readings = [read(one.target, text, one.layers, start=2) for text in texts]
    alone = {
        (i, b.position): b
        for i, reading in enumerate(readings)
        for b in replay([reading], one.drafter, stride=3)
    }
    together = {(b.reading, b.position): b for b in replay(readings, three.drafter, stride=3)}
    assert len(alone) > 16
    assert together.keys() == alone.keys()
    for key, block in together.items():
        assert np.array_equal(np.sort(block.cand), np.sort(alone[key].cand))
        assert np.array_equal(block.path, alone[key].path)


def test_context_before_the_window_is_not_kept_and_not_missed(pair: tuple[Path, Path]) -> None:
    p = Pair(*pair)
    text = greedy(p.target, [7, 8, 9], 60)
    whole = read(p.target, text, p.layers, start=50)
    cut = read(p.target, text, p.layers, start=50, window=p.drafter.context_window())
    assert len(whole.features) == 63
    assert len(cut.features) == min(63, 13 + (p.drafter.context_window() or 50))
    [a, *_], [b, *_] = list(replay([whole], p.drafter)), list(replay([cut], p.drafter))
    assert np.array_equal(a.path, b.path)


@pytest.mark.rounding
def test_the_laws_of_a_reading_are_the_targets(pair: tuple[Path, Path]) -> None:
    p = Pair(*pair)
    text = greedy(p.target, [7, 8, 9], 20)
    reading = read(p.target, text, p.layers, start=3, temperature=0.7)
    p.target.truncate(0)
    p.target.decode(text[:10], 0)
    logits = p.target.logits(9).astype(float) / 0.7
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    every = np.arange(len(logits), dtype=np.int32)
    assert reading.laws[9 - 3](every) == pytest.approx(expected, abs=2e-6)
    assert len(reading.laws) == len(reading.argmax) == len(text) - 3


def test_expected_survival_is_unbiased() -> None:
    """Over all texts, weighted by p, it is the sum over drafted paths of prod min(p, q)."""
    rng = np.random.default_rng(1)
    n_vocab, k, n_draft = 4, 3, 3
    cand = np.array([rng.permutation(n_vocab)[:k] for _ in range(n_draft)], np.int32)
    score = rng.normal(size=(n_draft, k, k)).astype(np.float32)
    p_first = rng.dirichlet(np.ones(n_vocab))
    p_next = rng.dirichlet(np.ones(n_vocab), size=n_vocab)  # depends on the token before
    every = np.arange(n_vocab, dtype=np.int32)

    def block(text: tuple[int, ...]) -> Block:
        rows = [p_first, *(p_next[x] for x in text[:-1])]
        return Block(
            reading=0,
            position=0,
            text=np.array(text, np.int32),
            argmax=np.zeros(n_draft, np.int32),
            laws=[Law(every, row.astype(np.float32)) for row in rows],
            cand=cand,
            score=score,
            path=np.zeros(n_draft, np.int32),
            temperature=1.0,
        )

    mean = np.zeros(n_draft)
    exact = np.zeros(n_draft)
    for text in itertools.product(range(n_vocab), repeat=n_draft):
        b = block(text)
        p = np.array([law(np.int32(x)) for law, x in zip(b.laws, text, strict=True)])
        mean += p.prod() * b.expected_survival
        reached = np.cumprod(np.minimum(p, b.q_text))
        for i in range(n_draft):  # a prefix of i + 1 tokens is met once per ending
            exact[i] += reached[i] / n_vocab ** (n_draft - 1 - i)
    assert mean == pytest.approx(exact, abs=1e-6)


def test_a_text_without_an_anchor_is_refused(pair: tuple[Path, Path]) -> None:
    p = Pair(*pair)
    with pytest.raises(ValueError, match="expected more than 1 tokens, got 1"):
        read(p.target, [5], p.layers)
    with pytest.raises(dflash2.ContextFullError):
        read(p.target, [5] * (N_CTX + 1), p.layers)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        read(p.target, [5, 10**6], p.layers)
