#!/usr/bin/env python3
"""Write what the torch reference drafts to tests/data/.

    python scripts/dump_reference.py [--out tests/data] [--case NAME]

Needs the dependency group `reference` (torch). The same versions write the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from make_tiny_models import make_tiny_checkpoint, make_tiny_target
from reference_cases import CASES, HIDDEN_TOLERANCE, N_ROUNDS, Block, Case, Floats
from reference_oracle import Oracle

STORED = (0, 2, 7, N_ROUNDS - 1)  # rounds kept whole; of the others the greedy path is kept


def target_tensor(path: Path, name: str) -> Floats:
    """An F32 matrix of a GGUF as (rows, columns)."""
    (tensor,) = (t for t in GGUFReader(path).tensors if t.name == name)
    return np.array(tensor.data, dtype=np.float32)


def draft_case(case: Case, directory: Path) -> tuple[list[Block], str]:
    """Returns the blocks and the SHA-256 of the weights they come from."""
    checkpoint = make_tiny_checkpoint(directory / "draft", seed=case.seed, **case.checkpoint)
    target = make_tiny_target(
        directory / "target.gguf", n_embd=case.checkpoint.get("hidden", 320), seed=case.seed
    )
    oracle = Oracle(
        checkpoint,
        target_tensor(target, "token_embd.weight"),
        target_tensor(target, "output.weight"),
    )
    blocks: list[Block] = []
    context: list[Floats] = []
    for round in case.rounds():
        block = oracle.draft(round)
        context.append(round.features)
        whole = replace(round, features=np.concatenate(context))
        error = np.abs(block.hidden - oracle.hidden_from_scratch(whole)).max()
        if error > HIDDEN_TOLERANCE:
            raise AssertionError(f"{case.name}: the reference's cache changes its output: {error}")
        blocks.append(block)
    digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    return blocks, digest


def write_case(case: Case, blocks: list[Block], digest: str, directory: Path) -> Path:
    packages = ("torch", "transformers", "dflash", "numpy")
    recipe = {
        "case": asdict(case),
        "sha256": digest,  # of model.safetensors
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }
    arrays: dict[str, Any] = {
        "recipe": np.array(json.dumps(recipe)),
        "path": np.stack([block.path for block in blocks]),  # (n_rounds, n_pos)
    }
    for i in STORED:
        for name in ("hidden", "ids", "logits", "score"):
            arrays[f"{i}.{name}"] = getattr(blocks[i], name)
    path = directory / f"reference-{case.name}.npz"
    np.savez_compressed(path, **arrays)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the reference data of tests/reference.")
    default = Path(__file__).resolve().parents[1] / "tests" / "data"
    parser.add_argument("--out", type=Path, default=default, help="(default: tests/data)")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if args.case in (None, case.name):
            with tempfile.TemporaryDirectory() as directory:
                blocks, digest = draft_case(case, Path(directory))
            path = write_case(case, blocks, digest, args.out)
            print(f"{path.name:45} {len(blocks)} blocks  {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
