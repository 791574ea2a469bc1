"""Named nodes of the draft graph can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dflash2._native import core


def test_watched_nodes_are_those_of_the_last_draft(pair: tuple[Path, Path]) -> None:
    target = core.Target(str(pair[0]), n_ctx=128, n_threads=1)
    drafter = core.GraphDrafter(core.DraftModel(str(pair[1])), target)
    n_taps = len(drafter.target_layers())
    features = np.random.default_rng(1).normal(size=(6, n_taps, target.n_embd)).astype(np.float32)
    drafter.inject(0, features, 0)
    [before] = drafter.draft([(0, 7, 6)], 3)
    assert drafter.watched() == {}

    drafter.watch(["fc_out", "fused", "attn_out-0", "layer_out-0", "hidden", "no such node"])
    [after] = drafter.draft([(0, 7, 6)], 3)
    nodes = drafter.watched()
    assert np.array_equal(before.cand, after.cand)
    assert np.array_equal(nodes["hidden"].reshape(3, -1), drafter.last_hidden())
    assert nodes["layer_out-0"].shape == nodes["attn_out-0"].shape == (1, 1, 4, target.n_embd)
    assert nodes["fused"].shape == nodes["fc_out"].shape
    assert nodes["no such node"].size == 0

    drafter.watch([])
    drafter.draft([(0, 7, 6)], 3)
    assert drafter.watched() == {}
