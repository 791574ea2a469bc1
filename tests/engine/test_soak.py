"""Many mixed requests; `scripts/soak.py` runs thousands."""

from __future__ import annotations

import pytest
from long_context import check_long_context
from soak import soak


@pytest.mark.parametrize("kind", ["llama", "hybrid", "markov"])
def test_mixed_requests_lose_no_token(kind: str) -> None:
    lines: list[str] = []
    assert soak(100, seed=1, kind=kind, say=lines.append) == []
    assert "aborted" in lines[0]


def test_the_draft_cache_does_not_grow_with_the_context() -> None:
    lines: list[str] = []
    assert check_long_context(4096, n_drafts=5, say=lines.append) == []
    assert lines[-1].split()[0] == "1000"
