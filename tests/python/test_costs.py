"""Cost tables: what they predict, and that they are measured and kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from dflash2.costs import CostTable, measure_costs
from dflash2.errors import DFlash2Error
from dflash2.loader import open_models

TABLE = CostTable(
    contexts=(100, 300),
    plain_ms=(10.0, 20.0),
    pass_ms=((10.0, 12.0, 30.0, 16.0), (20.0, 22.0, 40.0, 26.0)),
    draft_ms=((2.0, 3.0), (2.0, 3.0)),
)


def test_a_round_costs_its_draft_and_the_cheapest_pass() -> None:
    assert TABLE.n_draft == 2
    assert TABLE.round_ms(0, 100) == 10.0
    assert TABLE.round_ms(1, 100) == 2 + 12
    assert TABLE.round_ms(2, 100) == 3 + 16  # three rows padded to four
    assert TABLE.round_ms(2, 200) == 3 + 21  # between two contexts
    assert TABLE.round_ms(2, 9000) == TABLE.round_ms(2, 300)


def test_the_best_length_is_the_fastest() -> None:
    assert TABLE.speed_up((0.8, 0.6), 100) == pytest.approx((1.0, 10 * 1.8 / 14, 10 * 2.4 / 19))
    assert TABLE.best_length((0.8, 0.7), 100) == 2
    assert TABLE.best_length((0.8, 0.1), 100) == 1
    assert TABLE.best_length((0.3, 0.1), 100) == 0
    assert TABLE.tokens_per_second(0, 1.0, 300) == 50.0
    with pytest.raises(ValueError, match="the table has 2 tokens, got 3"):
        TABLE.best_length((0.5, 0.5, 0.5), 100)


def test_what_rounds_take_in_practice_scales_the_table() -> None:
    costs = TABLE.scaled(100, step_ms=11.0, round_ms=3 * (3 + 30))
    assert costs.round_ms(0, 100) == pytest.approx(11.0)
    assert costs.round_ms(2, 100, padded=False) == pytest.approx(99.0)
    assert costs.round_ms(1, 100) == pytest.approx((1.1 + 3) / 2 * 14)  # half-way
    assert costs.round_ms(0, 300) == pytest.approx(22.0)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == TABLE
    (tmp_path / "tune.json").write_text(json.dumps({"costs": TABLE.as_json(), "classes": []}))
    assert CostTable.load(tmp_path / "tune.json") == TABLE


@pytest.mark.parametrize(
    "change",
    [
        {"format": "dflash2 costs 0"},
        {"contexts": [100]},
        {"plain_ms": ["x", 1.0]},
        {"plain_ms": [1.0, float("nan")]},
        {"draft_ms": [[1.0], [1.0, 2.0]]},
        {"pass_ms": [[1.0, 2.0], [1.0, 2.0]]},
        {"pass_ms": None},
    ],
)
def test_a_broken_table_is_named(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**TABLE.as_json(), **change}))
    with pytest.raises(DFlash2Error, match=r"costs\.json: expected a cost table"):
        CostTable.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"costs": 3}'])
def test_a_file_of_something_else_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(DFlash2Error, match=r"costs\.json: expected"):
        CostTable.load(tmp_path / "costs.json")


def test_costs_are_measured_at_every_width_and_context(pair: tuple[Path, Path]) -> None:
    target, drafter = open_models(*pair, n_ctx=512, n_threads=1)
    assert drafter is not None
    calls = []
    table = measure_costs(
        target,
        drafter,
        target.tokenize("the cat sat on a mat"),
        contexts=(300, 20),
        repetitions=2,
        on_pass=lambda: calls.append(1),
    )
    assert table.contexts == (20, 300)
    assert len(calls) == 2 * (2 + 2)
    assert {len(row) for row in table.pass_ms} == {9}  # a padded pass may be cheaper
    assert table.n_draft == drafter.max_draft()
    for rows in (*table.pass_ms, *table.draft_ms, table.plain_ms):
        assert all(ms > 0 for ms in rows)
    # The models are left as they were found: the next text starts from nothing.
    target.decode([1, 2], 0)


def test_a_table_without_a_pass_for_its_longest_draft_is_refused() -> None:
    with pytest.raises(ValueError, match="more than m rows"):
        dataclasses.replace(TABLE, pass_ms=((1.0, 2.0), (1.0, 2.0)))
