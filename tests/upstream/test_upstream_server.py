"""Upstream's server (PyPI xllamacpp) reads our file and accepts as much per round as our engine.

A short run; `make compare` is the full proof over more than 2,000 tokens.
"""

import compare_upstream
import pytest
import smollm2


def test_upstream_drafts_with_our_file_and_accepts_as_much_as_our_engine() -> None:
    args = compare_upstream.arguments(["--prompts", "10", "--segments", "2"])
    target = smollm2.target_path()
    result = compare_upstream.compare(target, smollm2.draft_path("q4_k_m", target), args)
    for name in ("ours", "upstream"):
        run = result[name]
        assert run["num_tokens"] > 400, name
        assert run["num_draft_tokens"] > run["num_drafts"], name
        assert run["mean_accept_length"] > 2.0, name
    # Where a text parts at a near-tie the two count rounds of different texts: compare equal ones.
    assert result["identical"] >= 5
    ours, upstream = (result[name]["mean_accept_length_identical"] for name in ("ours", "upstream"))
    assert ours == pytest.approx(upstream, rel=args.tolerance)
