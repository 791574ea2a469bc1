"""These tests need torch, which `make test` does not install: run `make test-training`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

MODULES = ("torch", "tokenizers", "transformers", "dflash")
MISSING = [name for name in MODULES if importlib.util.find_spec(name) is None]

collect_ignore_glob = ["tiny_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MISSING:
        skip = pytest.mark.skip(reason=f"needs {', '.join(MISSING)}: make test-training")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def target_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_bpe_target import tiny_target

    return tiny_target(tmp_path_factory.mktemp("target"))
