"""The shipped sample of traffic."""

from __future__ import annotations

from pathlib import Path

from dflash2.measure.traffic import Line, read_traffic

EXAMPLE = Path(__file__).parents[2] / "python" / "examples" / "traffic.jsonl"


def test_the_shipped_example_is_good() -> None:
    lines = [line for line in read_traffic(EXAMPLE) if isinstance(line, Line)]
    assert len(lines) > 30
    assert {line.labels["task"] for line in lines} == {"code", "chat", "maths", "lists"}
    assert any(line.completion for line in lines)
