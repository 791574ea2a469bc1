"""`dflash2 inspect`: what a GGUF file is, and whether a drafter fits a target."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from dflash2._native import core
from dflash2.cli.options import add_size_options
from dflash2.errors import ModelFormatError
from dflash2.gguf_info import GgufInfo
from dflash2.load_check import load_error
from dflash2.loader import plan_memory
from dflash2.migrate import find_mends
from dflash2.pairing import mismatches

HELP = "say what a GGUF file is, and whether a pair fits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="any GGUF file")
    parser.add_argument(
        "-m", "--target", metavar="TARGET", type=Path, help="say whether the drafter FILE fits it"
    )
    parser.add_argument("--no-tensors", action="store_true", help="leave the tensor list out")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group = parser.add_argument_group("memory plan")
    add_size_options(group, "default: 4096")
    group.add_argument(
        "-np", "--parallel", metavar="N", type=int, default=1, help="requests at once (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    """1 when the pair does not fit."""
    for name in ("ctx_size", "parallel", "batch_size"):
        if not 0 < getattr(args, name) < 2**31:
            args.usage_error(f"--{name.replace('_', '-')}: expected 1 or more")
    info = GgufInfo(args.file)
    target = GgufInfo(args.target) if args.target is not None else None
    result = describe(info, tensors=not args.no_tensors)
    if target is not None:
        reasons = pair_problems(info, target)
        result["pair"] = {"target": str(args.target), "fits": not reasons, "reasons": reasons}
        if info.family and not target.family:
            result["era"] = era(info, target)
    if info.family == "DFlash 2" and result.get("pair", {}).get("fits", True):
        result["memory"] = memory(args)
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
        "llama_cpp": info.llama_cpp,
        "dflash2": info.family in ("", "DFlash 2"),
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
    if target.family:
        return [f"{target.path} is no target: {target.kind}"]
    if draft.family == "fork":
        return [f"{draft.path}: {draft.kind}; dflash2 migrate mends it if metadata alone is wrong"]
    if not draft.family:
        return [f"{draft.path} is no drafter: {draft.kind}"]
    try:
        if draft.family == "DFlash 2":
            core.DraftModel(os.fsencode(draft.path), plan_only=True)
    except ModelFormatError as e:
        return [str(e)]
    if reason := load_error(draft.path):
        return [f"{draft.path}: llama.cpp does not load it: {reason}"]
    return mismatches(draft.draft_facts(), target.target_facts())


def era(draft: GgufInfo, target: GgufInfo) -> dict[str, Any]:
    """Whether the metadata is what today's converters write for this target."""
    try:
        mends = find_mends(draft, target).changes
    except ModelFormatError as e:
        return {"current": False, "migrate": [], "beyond": str(e)}
    return {"current": not mends, "migrate": list(mends), "beyond": ""}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """The plan for a pair. Without a target that libllama loads: of the drafter but its graphs."""
    sizes = {"n_ctx": args.ctx_size, "n_parallel": args.parallel}
    if args.target is None or load_error(args.target):
        model = core.DraftModel(os.fsencode(args.file), args.device_draft or "", plan_only=True)
        uses = core.GraphDrafter(model, n_ctx=args.ctx_size, n_seq=args.parallel).memory
    else:
        sizes["n_batch"] = args.batch_size
        uses = plan_memory(
            args.target,
            args.file,
            n_gpu_layers=args.n_gpu_layers,
            draft_device=args.device_draft,
            **sizes,
        )
    names = ("what", "device", "bytes", "mapped")
    devices = sorted({use.device for use in uses})
    return {
        **sizes,
        "uses": [{name: getattr(use, name) for name in names} for use in uses if use.bytes],
        "by_device": {d: sum(use.bytes for use in uses if use.device == d) for d in devices},
        "free": {d: core.free_memory(d) for d in devices},
    }


def as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['file']}: {result['kind']}",
        f"name      {result['name'] or '-'}",
        f"size      {readable(result['bytes'])}",
        *([f"loads in  {result['llama_cpp']}"] if result["llama_cpp"] else []),
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
    if "memory" in result:
        lines += ["", *memory_lines(result["memory"])]
    if "era" in result:
        of = result["era"]
        verdict = "current" if of["current"] else of["beyond"] or "old; dflash2 migrate mends it:"
        lines += ["", f"metadata  {verdict}", *(f"  {change}" for change in of["migrate"])]
    if "pair" in result:
        pair = result["pair"]
        lines += ["", f"target    {pair['target']}: {'fits' if pair['fits'] else 'does not fit'}"]
        lines += [f"  {reason}" for reason in pair["reasons"]]
    return "\n".join(lines)


def memory_lines(plan: dict[str, Any]) -> list[str]:
    batch = f", batch {plan['n_batch']}" if "n_batch" in plan else ""
    lines = [f"memory    context {plan['n_ctx']}, {plan['n_parallel']} at once{batch}"]
    for use in plan["uses"]:
        where = f"{use['device']}{', mapped' if use['mapped'] else ''}"
        lines.append(f"  {use['what']:16}{readable(use['bytes']):>9}  {where}")
    for device, n_bytes in plan["by_device"].items():
        free = f" of {readable(plan['free'][device])}" if plan["free"][device] else ""
        lines.append(f"  {'in all':16}{readable(n_bytes):>9}{free}  {device}")
    return lines


def readable(n_bytes: float) -> str:
    """ "1.23 MB"."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.4g} GB"
