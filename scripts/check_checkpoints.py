#!/usr/bin/env python3
"""Converts a synthetic checkpoint of every layout and loads the file wherever it must load.

Files that our engine runs draft in it and fit their target as `dflash2 inspect` judges; all files
load and draft in upstream's llama-server (PyPI xllamacpp).

    python scripts/check_checkpoints.py [--layout NAME] [--outtype q4_k_m] [--no-server]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import dflash2
from dflash2.cli.inspect import pair_problems
from dflash2.gguf_info import GgufInfo
from dflash2.upstream.command import XLLAMACPP, server_flags
from dflash2.upstream.process import ServerProcess
from make_checkpoints import LAYOUTS, make_checkpoint, make_target

PROMPT = list(range(20, 52))
MAX_TOKENS = 8


def check(name: str, directory: Path, target: Path, *, outtype: str, server: bool) -> str:
    """What was shown for a layout, in words. Raises when the file does not load somewhere."""
    from dflash2_to_gguf import convert

    source = make_checkpoint(name, directory)
    draft = convert(
        source, target, outtype=outtype, outfile=directory / f"{name}.gguf", threads=1
    ).outfile
    info = GgufInfo(draft)
    shown = [f"{info.family}, {len(info.tensors)} tensors, inspected"]
    if LAYOUTS[name]().engine:
        if problems := pair_problems(info, GgufInfo(target)):
            raise RuntimeError(problems[0])
        with dflash2.load(target, draft, n_ctx=128, n_threads=1, spec_draft_n_max=7) as engine:
            params = dflash2.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
            engine.generate(PROMPT, params)
        shown.append("drafts in dflash2")
    if server:
        if not drafts_in_server(target, draft):
            raise RuntimeError("upstream's server did not draft")
        shown.append("drafts in llama-server")
    return ", ".join(shown)


def drafts_in_server(target: Path, draft: Path) -> bool:
    flags = server_flags(target, draft, n_draft_max=7, n_ctx=128, n_threads=1)
    with ServerProcess(XLLAMACPP, flags) as server:
        server.complete(PROMPT, MAX_TOKENS, temperature=0.0)
        return server.counters().num_draft_tokens > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="(default: all)")
    parser.add_argument("--outtype", default="q4_k_m", help="(default: q4_k_m)")
    parser.add_argument("--no-server", action="store_true", help="leave upstream's server out")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        target = make_target(directory)
        for name in args.layout or LAYOUTS:
            try:
                shown = check(
                    name, directory, target, outtype=args.outtype, server=not args.no_server
                )
            except (RuntimeError, ValueError, OSError) as e:
                failed += 1
                shown = f"FAILED: {e}"
            print(f"{name:25} {shown}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))
    sys.exit(main())
