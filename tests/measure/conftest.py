"""Fixtures of the measurement's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import smollm2
from dflash2_to_gguf import convert
from make_tiny_models import make_tiny_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny random target and a tiny random drafter that fits it."""
    directory = tmp_path_factory.mktemp("pair")
    return make_tiny_pair(directory, hidden=64, heads=2, kv_heads=1, head_dim=64, ff=128, top_k=7)


@pytest.fixture(scope="session")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """SmolLM2-135M-Instruct and the drafter that is trained for it."""
    target = smollm2.target_path()
    draft = tmp_path_factory.mktemp("real") / "draft.gguf"
    convert(smollm2.CHECKPOINT, target, outfile=draft, outtype="q8_0", threads=1)
    return target, draft
