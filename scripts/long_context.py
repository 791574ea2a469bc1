#!/usr/bin/env python3
"""What a draft costs at 1k, 8k, 16k and 32k positions of a tiny pair with a window of 64, and why.

    python scripts/long_context.py [--drafts 200]

Times, in CPU time of the thread, the same graph (one row injected, seven tokens drafted) in the
engine's rounds, and by itself: after a target pass over the context, right after another draft,
and after a read of 32 MiB. Exit status 1: the draft's cache depends on the context.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))

import numpy as np
from dflash2 import SamplingParams
from dflash2._native import core
from make_tiny_models import make_tiny_pair
from soak import SIZES

N_DRAFT = 7
BEFORE = ("a target pass", "a draft", "32 MiB")


def prompt(n: int) -> list[int]:
    return [6 + i % 500 for i in range(n)]


def in_rounds(engine: core.Engine, position: int, n_drafts: int) -> float:
    """Median milliseconds of a draft after a prompt that ends at a position."""
    request = SamplingParams(max_tokens=10_000, ignore_eos=True).to_request(prompt(position), 0, -1)
    id = engine.submit(request)
    engine.step()
    times, before = [], engine.request_stats(id).ms_draft
    for _ in range(n_drafts):
        engine.step()
        now = engine.request_stats(id).ms_draft
        times.append(now - before)
        before = now
    engine.cancel(id)
    return statistics.median(times)


def by_itself(
    target: core.Target, drafter: core.GraphDrafter, position: int, n_drafts: int
) -> dict[str, float]:
    """Median milliseconds of a draft, by what the core did before it."""
    target.truncate(0)
    drafter.truncate(0, 0)
    tokens = prompt(position)
    for begin in range(0, position, target.n_batch):
        target.decode(tokens[begin : begin + target.n_batch], begin)
        drafter.inject(0, target.tapped(), begin)
    row, other = target.tapped()[-1:], np.ones(1 << 23, np.float32)
    end = position

    def draft() -> float:
        nonlocal end
        drafter.inject(0, row, end)
        end += 1
        started = time.thread_time()
        drafter.draft([(0, 9, end)], N_DRAFT)
        return 1000 * (time.thread_time() - started)

    times: dict[str, list[float]] = {name: [] for name in BEFORE}
    for _ in range(n_drafts):
        target.decode([9] * (N_DRAFT + 1), position)
        target.truncate(position)
        times["a target pass"].append(draft())
        times["a draft"].append(draft())
        other.sum()
        times["32 MiB"].append(draft())
    return {name: statistics.median(ms) for name, ms in times.items()}


def check_long_context(
    n_ctx: int = 32768, *, n_drafts: int = 40, say: Callable[[str], None]
) -> list[str]:
    """A window of 64 in a context of n_ctx. Returns what was wrong; times are only told."""
    with tempfile.TemporaryDirectory() as folder:
        files = make_tiny_pair(folder, n_ctx=n_ctx, sliding_window=64, **SIZES)
        model = core.DraftModel(str(files[1]))
        sizes = {}
        for size in (1024, n_ctx):
            target = core.Target(str(files[0]), n_ctx=size, n_threads=1)
            drafter = core.GraphDrafter(model, target)
            sizes[size] = drafter.cache_bytes
        say(f"draft cache: {sizes[n_ctx] / 1024:.0f} KiB with a context of {n_ctx}")
        say(f"ms of a draft at a position: in rounds, after {', after '.join(BEFORE)}")
        engine = core.Engine(target, drafter, n_draft_max=N_DRAFT)
        for position in (1000, 8000, 16000, 32000):
            if position < n_ctx:
                rounds = in_rounds(engine, position, n_drafts)
                alone = by_itself(target, drafter, position, n_drafts)
                say(f"{position:5}  " + "  ".join(f"{ms:.2f}" for ms in (rounds, *alone.values())))
    if len(set(sizes.values())) > 1:
        return [f"the draft cache depends on the context: {sizes}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafts", type=int, default=200, help="of each kind (default: 200)")
    args = parser.parse_args()
    faults = check_long_context(n_drafts=args.drafts, say=lambda line: print(line, flush=True))
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
