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
from reference_cases import CASES, FULL, N_ROUNDS, SLIDING, Block, Case, Difference

DATA = Path(__file__).parents[1] / "data"
BY_NAME = {case.name: case for case in CASES}


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


def stored_block(arrays: dict[str, np.ndarray], i: int) -> Block | None:
    """What the reference drafted in round i; None where only the path is stored."""
    if f"{i}.hidden" not in arrays:
        return None
    whole = {name: arrays[f"{i}.{name}"] for name in ("hidden", "ids", "logits", "score")}
    return Block(path=arrays["path"][i], **whole)


def run_graph(case: Case, arrays: dict[str, np.ndarray], target: Path, draft: Path) -> Difference:
    tgt = core.Target(str(target), n_ctx=64, n_threads=1)
    drafter = core.GraphDrafter(
        core.DraftModel(str(draft)), tgt, n_ctx=4096, n_threads=1, kv_f32=True
    )
    difference = Difference()
    for i, round in enumerate(case.rounds()):
        n_rows = len(round.features)
        features = round.features.reshape(n_rows, -1, tgt.n_embd)
        drafter.inject(0, features, round.position - n_rows)
        [lattice] = drafter.draft([(0, round.anchor, round.position)], round.n_draft)
        path = np.array(core.walk_greedy(lattice)[0])
        ref = stored_block(arrays, i)
        if ref is None:
            difference.add_path(arrays["path"][i], path)
        else:
            hidden = drafter.last_hidden()
            difference.add(ref, hidden=hidden, cand=lattice.cand, score=lattice.score, path=path)
    return difference


def test_reference_data_covers_every_case() -> None:
    blocks = [len(load_case(case)[1]["path"]) for case in CASES]
    assert blocks == [N_ROUNDS] * len(CASES)
    assert sum(blocks) >= 200
    assert {p.name for p in DATA.glob("reference-*.npz")} == {
        f"reference-{case.name}.npz" for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graph_matches_reference(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    device = request.config.getoption("--device")
    if device and case.checkpoint.get("head_dim") == 32:
        pytest.skip("CUDA's attention has no heads of 32")
    recipe, arrays = load_case(case)
    target, draft = make_tiny_pair(tmp_path, seed=case.seed, **case.checkpoint)
    weights = (tmp_path / "draft" / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == recipe["sha256"], "the weights are not the same"
    difference = run_graph(case, arrays, target, draft)
    faults = difference.faults(coarse=device is not None)
    assert not faults, f"{'; '.join(faults)}\nall: {difference}"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sliding-short-context", {"sliding_window": 33}),
        ("sliding-long-context", {"sliding_window": 23}),
        ("mixed-layers", {"layer_types": [SLIDING] * 3}),
        ("mixed-layers", {"layer_types": [FULL] * 3}),
        ("causal-block", {"is_causal": False}),
        ("full", {"is_causal": True}),
        ("full", {"mask_token_id": 6}),
        ("logit-scale-and-softcap", {"output_multiplier": 1.7}),
        ("logit-scale-and-softcap", {"softcap": None}),
        ("embedding-scale", {"embedding_scale": None}),
    ],
)
def test_one_wrong_hyperparameter_is_noticed(
    name: str, wrong: dict[str, Any], tmp_path: Path
) -> None:
    """The vectors and tolerances can tell: same weights, one number of config.json changed."""
    case = BY_NAME[name]
    _, arrays = load_case(case)
    target, draft = make_tiny_pair(tmp_path, seed=case.seed, **case.checkpoint | wrong)
    assert run_graph(case, arrays, target, draft).faults()


def drafted(block: Block) -> dict[str, np.ndarray]:
    """The block as a graph that copies the reference would return it."""
    k = block.score.shape[1]
    return {
        "hidden": block.hidden.copy(),
        "cand": block.ids[:, :k].copy(),
        "score": block.score.copy(),
        "path": block.path.copy(),
    }


def faults_after(change: str) -> list[str]:
    ref = stored_block(load_case(BY_NAME["full"])[1], 0)
    assert ref is not None
    ours = drafted(ref)
    if change == "order":
        order = np.random.default_rng(0).permutation(ours["cand"].shape[1])
        ours["cand"] = ours["cand"][:, order]
        ours["score"][1:] = ours["score"][1:][:, order][:, :, order]
        ours["score"][0] = ours["score"][0][:, order]
    elif change == "hidden":
        ours["hidden"][3, 7] += 2e-4 * np.sqrt(np.mean(ref.hidden[3] ** 2))
    elif change == "nan":
        ours["hidden"][3, 7] = np.nan
    elif change == "candidate":
        ours["cand"][2, 0] = ref.ids[2, -1]
    elif change == "repeated candidate":
        ours["cand"][2, 0] = ours["cand"][2, 1]
    elif change == "edge":
        ours["score"][4, 5, 6] += 2e-3
    elif change == "path":
        ours["path"][-1] += 1
    difference = Difference()
    difference.add(ref, **ours)
    return difference.faults()


def test_candidate_order_does_not_matter() -> None:
    assert faults_after("order") == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("hidden", "hidden"),
        ("nan", "hidden"),
        ("candidate", "candidates"),
        ("repeated candidate", "candidates"),
        ("edge", "edge scores"),
        ("path", "greedy paths"),
    ],
)
def test_comparison_names_what_differs(change: str, named: str) -> None:
    assert named in "; ".join(faults_after(change))
