"""`dflash2 migrate`: mends a drafter file whose metadata alone is wrong."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dflash2.migrate import migrate

HELP = "mend an old drafter file without its checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="OLD", type=Path, help="drafter GGUF")
    parser.add_argument(
        "--target", metavar="FILE", type=Path, required=True, help="its target GGUF"
    )
    parser.add_argument(
        "--outfile", metavar="FILE", type=Path, help="(default: OLD-migrated.gguf beside OLD)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE, which may be OLD")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    done = migrate(args.file, args.target, outfile=args.outfile, force=args.force)
    outfile = None if done.outfile is None else str(done.outfile)
    if args.json:
        result = {"changes": done.changes, "outfile": outfile, "sha256": done.sha256}
        print(json.dumps(result, ensure_ascii=False, indent=1))
        return 0
    if outfile is None:
        print(f"{args.file}: nothing to mend")
        return 0
    for change in done.changes:
        print(change)
    print(f"wrote and verified {outfile}; tensor data unchanged, SHA-256 {done.sha256}")
    return 0
