"""`dflash2 inspect`: what a GGUF file is, and whether a drafter fits a target."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from dflash2._native import core
from dflash2.errors import ModelFormatError
from dflash2.gguf_info import GgufInfo
from dflash2.pairing import mismatches

HELP = "say what a GGUF file is, and whether a pair fits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="any GGUF file")
    parser.add_argument(
        "-m", "--target", metavar="TARGET", type=Path, help="say whether the drafter FILE fits it"
    )
    parser.add_argument("--no-tensors", action="store_true", help="leave the tensor list out")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """1 when the pair does not fit."""
    info = GgufInfo(args.file)
    result = describe(info, tensors=not args.no_tensors)
    if args.target is not None:
        reasons = pair_problems(info, GgufInfo(args.target))
        result["pair"] = {"target": str(args.target), "fits": not reasons, "reasons": reasons}
    if args.json:
        print(json.dumps(result, ensure_ascii=False, indent=1))
    else:
        print(as_text(result))
    return 0 if result.get("pair", {}).get("fits", True) else 1


def describe(info: GgufInfo, *, tensors: bool) -> dict[str, Any]:
    result = {
        "file": info.path,
        "bytes": Path(info.path).stat().st_size,
        "kind": info.kind,
        "name": info.metadata.get("general.name"),
        "hparams": info.hparams(),
        "types": {name: {"tensors": n, "bytes": size} for name, (n, size) in info.types().items()},
    }
    if tensors:
        result["tensors"] = [
            {"name": t.name, "shape": list(t.shape), "type": t.type, "bytes": t.n_bytes}
            for t in info.tensors
        ]
    return result


def pair_problems(draft: GgufInfo, target: GgufInfo) -> list[str]:
    if not draft.is_drafter:
        return [f"{draft.path} is no drafter: {draft.kind}"]
    if target.is_drafter:
        return [f"{target.path} is no target: {target.kind}"]
    try:
        core.DraftModel(os.fsencode(draft.path))
    except ModelFormatError as e:
        return [str(e)]
    found = mismatches(draft.draft_facts(), target.target_facts())
    sections = "rope.dimension_sections"
    if f"{target.architecture}.{sections}" in target.metadata and (
        f"dflash.{sections}" not in draft.metadata
    ):
        found.append(f"key dflash.{sections}: missing, made before 27 Aug 2026; convert it again")
    return found


def as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['file']}: {result['kind']}",
        f"name      {result['name'] or '-'}",
        f"size      {readable(result['bytes'])}",
        "",
        *(f"{key} = {value}" for key, value in result["hparams"].items()),
        "",
    ]
    for name, of_type in result["types"].items():
        lines.append(f"{name:8} {of_type['tensors']:5} tensors {readable(of_type['bytes']):>9}")
    if "tensors" in result:
        width = max((len(t["name"]) for t in result["tensors"]), default=0)
        lines.append("")
        for t in result["tensors"]:
            shape = " x ".join(map(str, t["shape"]))
            lines.append(f"{t['name']:{width}}  {t['type']:8} {readable(t['bytes']):>9}  {shape}")
    if "pair" in result:
        pair = result["pair"]
        lines += ["", f"target    {pair['target']}: {'fits' if pair['fits'] else 'does not fit'}"]
        lines += [f"  {reason}" for reason in pair["reasons"]]
    return "\n".join(lines)


def readable(n_bytes: float) -> str:
    """ "1.23 MB"."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.4g} GB"
