"""_core.pyi describes the compiled module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Classes of pybind11 have its metaclass; those without constructors take anything and refuse it.
EXPECTED = re.compile(
    r"^dflash2\._core\.\w+ is inconsistent, metaclass differs$"
    r"|^dflash2\._core\.(MemoryUse|Progress|Stats|Token)\.__init__ is inconsistent, "
)


def test_stub_matches_the_module() -> None:
    pytest.importorskip("mypy", reason="belongs to the group lint")
    run = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "dflash2._core"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "python")},
        timeout=120,
    )
    lines = run.stdout.splitlines()
    assert any("metaclass differs" in line for line in lines), run.stdout + run.stderr
    assert [line for line in lines if not EXPECTED.match(line)] == []
