"""Fixtures of the engine's tests: tiny models, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dflash2
import pytest
import smollm2
from dflash2_to_gguf import convert
from make_tiny_models import make_tiny_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny random target and a tiny random drafter that fits it."""
    return make_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def shared_engine(pair: tuple[Path, Path]) -> Iterator[dflash2.Engine]:
    with dflash2.load(*pair, n_ctx=512, n_threads=1, spec_draft_n_max=7) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: dflash2.Engine) -> dflash2.Engine:
    """The tiny pair. Whatever a test does to it, the next one must be able to use it."""
    return shared_engine


@pytest.fixture(scope="session")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """SmolLM2-135M-Instruct and the drafter that is trained for it."""
    try:
        target = smollm2.target_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    draft = tmp_path_factory.mktemp("real") / "draft.gguf"
    convert(smollm2.CHECKPOINT, target, outfile=draft, outtype="q8_0", threads=1)
    return target, draft
