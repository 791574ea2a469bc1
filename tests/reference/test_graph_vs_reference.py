"""The draft graph against the published torch implementation, through vectors in tests/data.

scripts/dump_reference.py wrote the vectors; the models are made again here from their seeds.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2._native import core
from make_tiny_models import make_tiny_pair
from reference_cases import CASES, Block, Case, Difference

DATA = Path(__file__).parents[1] / "data"


def load_case(case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The recipe and the arrays of a case; a stale file fails here, with what to run."""
    path = DATA / f"reference-{case.name}.npz"
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    recipe = json.loads(str(arrays.pop("recipe")))
    assert recipe["case"] == json.loads(json.dumps(asdict(case))), (
        f"{path.name}: written for another recipe; run scripts/dump_reference.py"
    )
    return recipe, arrays


def test_reference_data_covers_every_case() -> None:
    paths = [load_case(case)[1]["path"] for case in CASES]
    assert sum(len(path) for path in paths) >= 200
    assert {p.name for p in DATA.glob("reference-*.npz")} == {
        f"reference-{case.name}.npz" for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graph_matches_reference(case: Case, tmp_path: Path) -> None:
    recipe, arrays = load_case(case)
    target_path, draft_path = make_tiny_pair(tmp_path, seed=case.seed, **case.checkpoint)
    weights = (tmp_path / "draft" / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == recipe["sha256"], "the weights are not the same"

    target = core.Target(str(target_path), n_ctx=64, n_threads=1)
    drafter = core.GraphDrafter(
        core.DraftModel(str(draft_path)), target, n_ctx=4096, n_threads=1, kv_f32=True
    )
    difference = Difference()
    for i, round in enumerate(case.rounds()):
        n_rows = len(round.features)
        features = round.features.reshape(n_rows, -1, target.n_embd)
        drafter.inject(features, round.position - n_rows)
        lattice = drafter.draft(round.anchor, round.position, round.n_draft)
        path = np.array(core.walk_greedy(lattice)[0])
        if f"{i}.hidden" not in arrays:
            difference.add_path(arrays["path"][i], path)
            continue
        ref = Block(
            path=arrays["path"][i],
            **{name: arrays[f"{i}.{name}"] for name in ("hidden", "ids", "logits", "score")},
        )
        difference.add(
            ref, hidden=drafter.last_hidden(), cand=lattice.cand, score=lattice.score, path=path
        )
    assert not difference.faults(), f"{'; '.join(difference.faults())}\nall: {difference}"
