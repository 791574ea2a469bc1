"""`dflash2 doctor`: is a drafter what it should be, and if not, what is wrong with it?

The target writes text, or goes on with pieces of yours; the drafter drafts everywhere in it; so do
copies of the drafter that differ in one thing. When such a copy drafts better, the file is wrong
there. Exit status 0: healthy; 1: not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from dflash2.cli.options import positive
from dflash2.doctor.examination import Doctor, Settings
from dflash2.doctor.report import as_json, as_text

HELP = "find out what is wrong with a drafter"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", metavar="FILE", type=Path, required=True, help="target")
    parser.add_argument(
        "-md",
        "--model-draft",
        "--draft-model",
        metavar="FILE",
        type=Path,
        required=True,
        help="drafter",
    )
    parser.add_argument(
        "--text", metavar="FILE", type=Path, help="the target goes on with pieces of it"
    )
    parser.add_argument(
        "--reference",
        metavar="DIR",
        type=Path,
        help="checkpoint that the drafter was converted from: compares every value",
    )
    parser.add_argument(
        "-t", "--threads", metavar="N", type=positive, help="(default: half of the logical cores)"
    )
    parser.add_argument(
        "-ngl", "--n-gpu-layers", metavar="N", type=int, default=0, help="(default: 0; -1: all)"
    )
    parser.add_argument(
        "-devd", "--device-draft", metavar="NAME", help="(default: the first GPU with -ngl)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """1 when the drafter is not healthy."""
    text = None if args.text is None else read_text(args.text)
    settings = Settings(
        n_threads=args.threads, n_gpu_layers=args.n_gpu_layers, draft_device=args.device_draft
    )
    hidden = args.quiet or not sys.stderr.isatty()
    with tqdm(total=100, disable=hidden, leave=False, bar_format="{bar:30} {desc}") as bar:

        def progress(what: str, share: float) -> None:
            bar.set_description(what, refresh=False)
            bar.update(100 * share - bar.n)

        doctor = Doctor(
            args.model, args.model_draft, text=text, settings=settings, progress=progress
        )
        found = doctor.examine(args.model_draft, reference=args.reference, progress=progress)
    print(json.dumps(as_json(found)) if args.json else as_text(found))
    return 0 if found.healthy else 1


def read_text(path: Path) -> str:
    """Raises OSError, and ValueError for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"{path}: expected UTF-8 text: {e}") from e
