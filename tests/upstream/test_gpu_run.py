"""scripts/gpu_run.sh, with tiny models on the CPU; the stages that build are not run here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRY = "--unforced --contexts 40 -n 8 -r 1 -t 1 -ngl 0 --temperatures 0 --accept-lengths 4 --n-max 3"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / "gpu_run.sh"), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )


def test_a_failed_stage_leaves_the_results_of_the_others(tmp_path: Path) -> None:
    places = ["-l", str(tmp_path / "llama"), "-d", str(tmp_path / "work"), "-o", str(tmp_path)]
    models = ["-p", str(tmp_path / "none.gguf"), "-t", "q4_k:tiny", "-v", "xllamacpp"]
    done = run(*places, *models, "-b", DRY, "pair", "shapes", "bench")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert done.returncode == 1, done.stderr
    assert [line.split()[:2] for line in lines] == [
        ["pair", "FAILED"],
        ["shapes", "done"],
        ["bench", "done"],
    ], done.stdout
    assert "none.gguf: expected a target GGUF file" in (tmp_path / "pair.log").read_text()
    table = json.loads((tmp_path / "bench-q4_k-tiny-block8.json").read_text())
    names = [row["name"] for row in table["rows"]]
    assert names[:3] == ["plain", "ours auto", "llama-server plain"]
    assert "llama-server 3" in names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "expected -l DIR"), (["-l", "x", "shape"], "expected stages of"), (["-q"], "option")],
)
def test_usage_errors_exit_with_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run("-d", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
