"""The examples run."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("generate.py", r"mean accept length 1\.\d\d"),
        ("stream.py", r"\d+ tokens, \d+ of them drafted"),
        ("chat.py", "> What is a cache?"),
        ("bench.py", "drafted/round"),
    ],
)
def test_example_runs(
    name: str,
    line: str,
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, pair)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search(line, capsys.readouterr().out)


def test_examples_are_all_run_and_short() -> None:
    files = {path.name: path for path in EXAMPLES.glob("*.py")}
    assert set(files) == {"generate.py", "stream.py", "chat.py", "bench.py"}
    assert max(len(path.read_text().splitlines()) for path in files.values()) < 40
