"""`dflash2 bench` on the pair that ships with the project: plain, ours, and upstream's server.

The target as shipped (q4_1) and wholly in Q4_0 as in the demo (q4_0), for which a CPU's kernels
for several rows are faster. Further arguments go to `dflash2 bench`, such as --server PATH instead
of the server in xllamacpp.

    python scripts/bench_engines.py -n 64 -r 2 -o json
    python scripts/bench_engines.py --targets q4_0 --outtype q4_0 --head-rows 8192
"""

from __future__ import annotations

import argparse
import sys

import smollm2
from dflash2.cli.main import main as dflash2

PRESET = ["--server", "xllamacpp", "--spec-draft-n-max", "auto,1,3,7", "-t", "1", "-c", "1024"]
TARGETS = {"q4_1": smollm2.target_path, "q4_0": smollm2.q4_0_target_path}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--outtype", default="q4_k_m", help="of our drafter (default: q4_k_m)")
    parser.add_argument("--head-rows", type=int, help="of a reduced head (default: the target's)")
    args, more = parser.parse_known_args()
    draft = smollm2.draft_path(args.outtype, TARGETS[args.targets[0]](), args.head_rows)
    for name in args.targets:
        target = TARGETS[name]()
        status = dflash2(["bench", "-m", str(target), "-md", str(draft), *PRESET, *more])
        if status:
            return status
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
