"""Converts a DFlash drafter checkpoint (safetensors + config.json) to a checked GGUF file.

    python convert/dflash2_to_gguf.py DRAFTER_DIR --target TARGET.gguf --outtype q4_k_m

The file loads in llama.cpp (llama-server --spec-type draft-dflash) and in dflash2.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to undo while modules load

try:
    import dflash2  # noqa: F401
except ImportError as e:
    sys.exit(f"error: needs the dflash2 package ({e}); install it with `pip install .`")

from convert_error import ConvertError
from convert_report import print_report, to_json
from drafter_convert import ConversionResult, OnProgress, convert
from rich.console import Console
from tqdm import tqdm
from type_choice import FILE_TYPES, RECIPES

__all__ = ["ConversionResult", "ConvertError", "convert", "main"]


TABLE_WIDTH = 100  # whatever the terminal has: wrapped lines beat cut names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dflash2_to_gguf.py",
        description=(__doc__ or "").split("\n\n")[0],
        epilog="example: dflash2_to_gguf.py Qwen3.8-27B-DFlash2 --target Qwen3.8-27B-Q4_K_M.gguf",
    )
    parser.add_argument("drafter", help="folder with config.json and *.safetensors")
    parser.add_argument(
        "--target", required=True, help="the target's GGUF file or Hugging Face folder"
    )
    parser.add_argument("--pre-tokenizer", metavar="NAME", help="llama.cpp's name, if not found")
    parser.add_argument(
        "--outtype",
        type=str.lower,
        choices=FILE_TYPES,
        default="q4_k_m",
        help="file type (default: %(default)s)",
    )
    parser.add_argument("--outfile", help="file or folder (default: dflash-TARGET-TYPE.gguf here)")
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="REGEX=TYPE",
        help="another type for some tensors; may be repeated, the first match counts",
    )
    parser.add_argument("--recipe", choices=RECIPES, help="protect tensors that small types hurt")
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix (llama.cpp's GGUF)")
    parser.add_argument("--head-rows", type=int, metavar="N", help="keep the N likeliest head rows")
    parser.add_argument("--head-counts", metavar="FILE", help="token counts (.npy or text)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--threads", type=int, help="quantizer threads (default: all cores)")
    parser.add_argument("--json", action="store_true", help="print a JSON summary on stdout")
    return parser


def _progress_bars() -> OnProgress:
    bars: dict[str, Any] = {}

    def update(step: str, done: int, total: int) -> None:
        if step not in bars:
            bars[step] = tqdm(total=total, desc=f"{step:6}", unit="B", unit_scale=True)
        bars[step].update(done)
        if bars[step].n >= total:
            bars[step].close()

    return update


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code: 0, 1 on errors (2 on bad usage), 130 on Ctrl-C."""
    args = vars(_parser().parse_args(argv))
    as_json = args.pop("json")
    on_progress = _progress_bars() if sys.stderr.isatty() else None
    try:
        result = convert(args.pop("drafter"), args.pop("target"), **args, on_progress=on_progress)
        for warning in result.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if as_json:
            print(to_json(result))
        else:
            print_report(result, Console(width=TABLE_WIDTH))
        sys.stdout.flush()
    except (ConvertError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
