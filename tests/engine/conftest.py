"""Fixtures of the engine's tests: tiny pairs, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dflash2
import pytest
from dflash2._native import core
from make_tiny_models import make_tiny_pair

SIZES = {"hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "ff": 128, "top_k": 7}

Pair = tuple[Path, Path]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A llama target and its drafter, whose window is 32."""
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), **SIZES)


@pytest.fixture(scope="session")
def hybrid_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target with recurrent layers and M-RoPE, and its drafter."""
    return make_tiny_pair(tmp_path_factory.mktemp("hybrid"), hybrid=True, **SIZES)


@pytest.fixture(scope="session")
def shared_engine(pair: Pair) -> Iterator[dflash2.Engine]:
    with dflash2.load(*pair, n_ctx=512, n_threads=1, spec_draft_n_max=7) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: dflash2.Engine) -> dflash2.Engine:
    """The tiny pair. Whatever a test does to it, the next one must be able to use it."""
    return shared_engine


@pytest.fixture(scope="session")
def alone(pair: Pair) -> core.Target:
    """The tiny target by itself."""
    return core.Target(str(pair[0]), n_ctx=512, n_threads=1)


@pytest.fixture(scope="session")
def hybrid_alone(hybrid_pair: Pair) -> core.Target:
    return core.Target(str(hybrid_pair[0]), n_ctx=512, n_threads=1)
