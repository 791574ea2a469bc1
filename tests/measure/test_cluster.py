"""A local Ray cluster gives what one process gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dflash2.cli.main import main

pytest.importorskip("ray", reason="the extra ray is not installed")


def test_ray_gives_the_same_summary(pair: tuple[Path, Path], tmp_path: Path) -> None:
    traffic = tmp_path / "t.jsonl"
    prompts = [json.dumps({"prompt": f"number {i}", "n": i % 2}) for i in range(10)]
    traffic.write_text("\n".join(prompts))
    models = ["-m", str(pair[0]), "-md", str(pair[1]), "-c", "256", "-t", "1"]
    args = ["measure", *models, "--traffic", str(traffic), "--label", "n", "-n", "12", "-q"]
    assert main([*args, "--out", str(tmp_path / "here")]) == 0
    assert main([*args, "--out", str(tmp_path / "ray"), "--ray"]) == 0
    here, there = (tmp_path / name / "summary.json" for name in ("here", "ray"))
    assert there.read_bytes() == here.read_bytes()
