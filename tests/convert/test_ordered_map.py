"""Chunks are worked on side by side, results come in order and never pile up."""

from __future__ import annotations

import threading

import pytest
from ordered_map import ordered_map


def test_results_keep_the_order_of_the_items_whatever_ends_first() -> None:
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_done.wait(30)
        elif item == 1:
            second_done.set()
        return 10 * item

    assert list(ordered_map(work, range(20), 2)) == [10 * i for i in range(20)]


def test_items_are_begun_only_as_results_are_taken() -> None:
    begun: list[int] = []
    results = ordered_map(begun.append, range(100), 2)
    for n_taken in range(1, 50):
        next(results)
        assert len(begun) <= n_taken + 4
    results.close()
    assert len(begun) < 60


def test_an_error_comes_in_place_of_its_result() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("the fourth")
        return item

    results = ordered_map(work, range(10), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the fourth"):
        next(results)
