"""`dflash2 bench` on the pair that ships with the project: plain, ours, and upstream's server.

The target as shipped (Q4_1) and requantized to Q4_0, whose kernels for several rows are faster.
Further arguments go to `dflash2 bench`, such as --server PATH instead of the server in xllamacpp.

    python scripts/bench_engines.py -n 64 -r 2 -o json
"""

from __future__ import annotations

import argparse
import sys

import smollm2
from dflash2.cli.main import main as dflash2

PRESET = ["--server", "xllamacpp", "--spec-draft-n-max", "auto,1,3,7", "-t", "1", "-c", "1024"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outtype", default="q4_k_m", help="of our drafter (default: q4_k_m)")
    args, more = parser.parse_known_args()
    shipped = smollm2.target_path()
    draft = smollm2.draft_path(args.outtype, shipped)
    for target in (shipped, smollm2.q4_0_target_path()):
        status = dflash2(["bench", "-m", str(target), "-md", str(draft), *PRESET, *more])
        if status:
            return status
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
