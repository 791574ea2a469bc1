"""Texts that part are read again: rounding of the target is told from a fault of drafting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import dflash2
import numpy as np
import pytest
from dflash2._native import core
from dflash2.doctor.lossless import Divergence, Losslessness
from dflash2.doctor.rounding import NEAR_TIE, Reading, Rounding, measure_rounding


class TwoTokens:
    """Logits 1 and 0 of two tokens; in wide passes the second one is higher by the row's number."""

    n_batch = 3

    def truncate(self, n_keep: int) -> None:
        self.end = n_keep

    def decode(self, tokens: Sequence[int], position: int, *, all_logits: bool = False) -> None:
        assert position == self.end
        assert len(tokens) <= (8 if all_logits else self.n_batch)
        self.end += len(tokens)
        self.wide = len(tokens) > 1

    def logits(self, row: int) -> np.ndarray:
        return np.array([1.0, row if self.wide else 0.0], np.float32)


def test_each_text_is_read_as_wide_as_it_was_written() -> None:
    texts = [([0] * 5, [0] * 4)]
    found = measure_rounding(TwoTokens(), texts, texts)  # type: ignore[arg-type]
    assert found.plain == Reading(4, 0, 0.0)
    assert found.drafted == Reading(4, 2, 2.0)  # below the second token in rows 2 and 3


def test_tokens_are_judged_by_their_own_logits() -> None:
    texts = [([0] * 5, [0, 1, 0])]
    found = measure_rounding(TwoTokens(), texts, [])  # type: ignore[arg-type]
    assert found.plain == Reading(3, 1, 1.0)
    assert found.drafted == Reading(0, 0, 0.0)


@pytest.mark.rounding
def test_a_target_that_rounds_alike_agrees_with_its_own_text(pair: tuple[Path, Path]) -> None:
    prompt = [6, 7, 8]
    with dflash2.load(*pair, n_ctx=128, n_threads=1) as engine:
        answer = engine.generate(prompt, dflash2.SamplingParams(max_tokens=30)).tokens
    target = core.Target(str(pair[0]), n_ctx=128, n_threads=1)
    wrong = [*answer[:10], (answer[10] + 1) % target.n_vocab, *answer[11:]]
    found = measure_rounding(target, [(prompt, answer)], [(prompt, wrong)])
    assert found.plain.lower == 0
    assert found.plain.largest < NEAR_TIE
    assert found.drafted.lower >= 1
    assert not found.explains


@pytest.mark.parametrize(
    ("plain", "drafted", "explained"),
    [
        # figures of a Q4_1 target on a GPU
        (Reading(1144, 59, 1.666), Reading(1140, 55, 1.263), True),
        (Reading(1144, 0, 0.0), Reading(1140, 0, 0.05), True),
        (Reading(1144, 0, 0.0), Reading(1140, 1, 0.3), False),  # it never rounds that far
        (Reading(1144, 59, 1.666), Reading(1140, 55, 5.0), False),  # nor that one
        (Reading(1144, 59, 1.666), Reading(1140, 110, 1.263), False),  # too often
        (Reading(1144, 59, 1.666), Reading(286, 14, 1.263), True),
    ],
)
def test_rounding_explains_what_plain_text_shows_too(
    plain: Reading, drafted: Reading, explained: bool
) -> None:
    assert Rounding(plain, drafted).explains is explained


@pytest.mark.parametrize(
    ("gap", "lower", "severities"), [(0.04, 0, []), (0.9, 0, ["fault"]), (0.9, 50, ["note"])]
)
def test_only_what_rounding_does_not_explain_is_a_fault(
    gap: float, lower: int, severities: list[str]
) -> None:
    rounding = Rounding(Reading(1000, lower, 1.0 if lower else 0.0), Reading(1000, 50, 1.0))
    found = Losslessness(100, 3.0, [Divergence(0, 7, gap)], rounding)
    assert [finding.severity for finding in found.judge()] == severities
