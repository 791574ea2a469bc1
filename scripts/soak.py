"""Thousands of mixed requests on a tiny pair: no token lost or doubled, no growth of memory.

    python scripts/soak.py [--requests 2000] [--seed 0] [--target llama|hybrid|markov]
    python scripts/soak.py --laws 200000      continuations per sampler chain against the exact law

Exits with 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))

import dflash2
from dflash2 import ContextFullError, SamplingParams, Token
from dflash2._native import core
from exact_laws import CHAINS, PROMPT, ExactLaws, count_continuations, law_target, p_value
from fake_drafters import Bigram, Scattered
from fake_machine import FakeMachine
from make_tiny_models import make_tiny_pair, make_tiny_target

SIZES: dict[str, Any] = {
    "hidden": 64,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 64,
    "ff": 128,
    "top_k": 7,
}
N_CTX = 256
STOPS = ((), (), "e", ("at", "th"), "\u20ac")
MAX_GROWTH = 64 << 20  # bytes; draft graphs of up to a dozen shapes are kept as they come up


def resident() -> int:
    """Bytes of this process in memory; 0 where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.3, 0.7, 1.0, 1.5]),
        top_k=rng.choice([0, 0, 1, 10, 40]),
        top_p=rng.choice([1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        typical_p=rng.choice([1.0, 1.0, 0.7]),
        repeat_penalty=rng.choice([1.0, 1.0, 1.3]),
        grammar=rng.choice(["", "", "", "", "root ::= [a-z ]+"]),
        seed=rng.getrandbits(32),
        max_tokens=rng.choice([1, 2, 7, 20, 45, None]),
        stop=rng.choice(STOPS),
        ignore_eos=rng.random() < 0.2,
    )


@dataclass
class Soak:
    engine: dflash2.Engine
    rng: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    n_tokens: int = 0
    faults: list[str] = field(default_factory=list)

    def prompt(self) -> list[int]:
        """Often the beginning of an earlier one."""
        n = self.rng.choice([1, 3, 10, 40, 90, 200, N_CTX - 2, N_CTX + 40])
        family = random.Random(self.rng.randrange(6))
        tokens = [family.randrange(6, 512) for _ in range(n)]
        cut = self.rng.randrange(n)
        return tokens if self.rng.random() < 0.6 else [*tokens[:cut], self.rng.randrange(6, 512)]

    def check(self, tokens: list[Token], params: SamplingParams, whole: bool) -> None:
        """What a stream has yielded against the tokens' own text."""
        self.n_tokens += len(tokens)
        text = "".join(token.text for token in tokens)
        full = self.engine.detokenize([token.token for token in tokens])
        stops = [full.index(stop) for stop in params.stop if stop in full]
        most = params.max_tokens or N_CTX
        reason = tokens[-1].finish_reason if tokens else None

        def require(ok: bool, what: str) -> None:
            if not ok:
                self.faults.append(f"{what}: {params}: {text!r}, tokens say {full!r}")

        require(len(tokens) <= most, "more than max_tokens")
        require(all(token.finish_reason is None for token in tokens[:-1]), "a token past the end")
        if whole:
            require(reason is not None, "no finish_reason")
            require(len(tokens) == most or reason != "length", "length before max_tokens")
            require(text == (full[: min(stops)] if stops else full), "another text")
        else:
            require(full.startswith(text.rstrip("\ufffd")), "another text")
        if stops:
            require(reason == "stop" or not whole, "went on after a stop string")
        self.ended[reason or "aborted"] += 1

    def n_draft(self) -> int | None:
        return self.rng.choice([None, None, 7, 7, 0, 2])

    def one(self) -> None:
        """A request, drained or left in the middle."""
        params, prompt = random_params(self.rng), self.prompt()
        try:
            stream = self.engine.stream(prompt, params, spec_draft_n_max=self.n_draft())
        except ContextFullError:
            self.ended["refused"] += 1
            return
        leave = self.rng.randrange(1, 12) if self.rng.random() < 0.25 else None
        tokens: list[Token] = []
        for token in stream:
            tokens.append(token)
            if len(tokens) == leave:
                break
        self.check(tokens, params, leave is None or tokens[-1].finish_reason is not None)

    def several(self) -> None:
        """Streams that take turns, some left in the middle, and a list at the end."""
        open_streams = []
        for _ in range(self.rng.randrange(2, 4)):
            params = random_params(self.rng)
            prompt = self.prompt()[: N_CTX // 2]
            stream = self.engine.stream(prompt, params, spec_draft_n_max=self.n_draft())
            open_streams.append((stream, params, list[Token]()))
        while open_streams:
            index = self.rng.randrange(len(open_streams))
            stream, params, tokens = open_streams[index]
            token = next(stream, None)
            if token is not None:
                tokens.append(token)
            if token is None or self.rng.random() < 0.02:
                self.check(tokens, params, token is None or token.finish_reason is not None)
                stream.close()  # type: ignore[attr-defined]
                del open_streams[index]

    def batch(self) -> None:
        n = self.rng.randrange(2, 9)
        params = [random_params(self.rng) for _ in range(n)]
        prompts = [self.prompt()[: N_CTX // 2] for _ in range(n)]
        before = self.engine.total_stats.num_generated_tokens
        answers = self.engine.generate(prompts, params, spec_draft_n_max=self.n_draft())
        made = sum(len(answer.tokens) for answer in answers)
        counted = self.engine.total_stats.num_generated_tokens - before
        if made != counted:
            self.faults.append(f"{made} tokens in the answers, {counted} counted")
        for answer, its in zip(answers, params, strict=True):
            last = len(answer.tokens) - 1
            texts = [answer.text, *[""] * last]
            reasons = [*[None] * last, answer.finish_reason]
            items = zip(answer.tokens, texts, reasons, strict=True)
            self.check([Token(t, text, False, why) for t, text, why in items], its, True)


def open_engine(kind: str, folder: str) -> dflash2.Engine:
    """kind: "llama" or "hybrid" with the draft graph; "markov": a target that a drafter knows."""
    if kind != "markov":
        files = make_tiny_pair(folder, hybrid=kind == "hybrid", **SIZES)
        return dflash2.load(*files, n_ctx=N_CTX, n_parallel=3, n_threads=1)
    path = str(make_tiny_target(Path(folder) / "target.gguf", n_embd=64, attention=0.05))
    target = core.Target(path, n_ctx=N_CTX, n_seq=3, n_threads=1)
    return dflash2.Engine(target, Bigram(target, core.Target(path, n_ctx=N_CTX, n_threads=1)))


def soak(n: int, *, seed: int = 0, kind: str = "llama", say: Callable[[str], None]) -> list[str]:
    """Runs about n requests. Returns what was wrong."""
    with tempfile.TemporaryDirectory() as folder, open_engine(kind, folder) as engine:
        run = Soak(engine, random.Random(seed))
        started = time.monotonic()
        peaks = [0, 0]  # of the halves: libllama frees and takes buffers when taps are switched
        while (done := run.ended.total()) < n and len(run.faults) < 10:
            run.rng.choice([run.one, run.one, run.several, run.batch])()
            half = 2 * done // n
            peaks[half] = max(peaks[half], resident())
        growth = peaks[1] - peaks[0]
        total = engine.total_stats
    if run.n_tokens > total.num_generated_tokens:
        run.faults.append(f"{run.n_tokens} tokens shown, {total.num_generated_tokens} made")
    if growth > MAX_GROWTH:
        run.faults.append(f"memory grew by {growth / 2**20:.1f} MiB in the second half")
    say(
        f"{run.ended.total()} requests in {time.monotonic() - started:.0f} s: "
        + ", ".join(f"{count} {why}" for why, count in sorted(run.ended.items()))
    )
    say(
        f"{run.n_tokens} tokens, {total.num_drafts} drafts, mean accept length "
        f"{total.mean_accept_length:.2f}, memory {growth / 2**20:+.1f} MiB in the second half"
    )
    return run.faults


def check_laws(n: int, *, say: Callable[[str], None]) -> list[str]:
    """n continuations per chain against the exact law. Returns what was wrong."""
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(law_target(Path(folder) / "target.gguf"))
        rules = [(chain, "rejection") for chain in CHAINS] + [("temperature", "match")]
        runs = [(*rule, n_draft_max) for rule in rules for n_draft_max in (4, -1)]
        for chain, rule, n_draft_max in runs:
            started = time.monotonic()
            target = core.Target(path, n_ctx=64, n_seq=4 if n_draft_max > 0 else 1, n_threads=1)
            drafter = Scattered(target)
            machine = FakeMachine(target, drafter, lambda rows: 1 + 0.1 * rows, lambda width: 0.02)
            engine = core.Engine(
                target, drafter, n_draft_max=n_draft_max, accept_rule=rule, clock=machine
            )
            params = CHAINS[chain]

            def request(seed: int, params: dict[str, object] = params) -> core.Request:
                return SamplingParams(max_tokens=4, **params).to_request(PROMPT, seed, -1)  # type: ignore[arg-type]

            counts = count_continuations(engine, request, n)
            alone = core.Target(path, n_ctx=64, n_threads=1)
            law = ExactLaws(alone, params).continuations()
            p = p_value(counts, law)
            say(
                f"{chain:24} {rule:10} {'fixed' if n_draft_max > 0 else 'adaptive':8} "
                f"{len(law):6} outcomes  p = {p:.3g}  accept length "
                f"{engine.total_stats.mean_accept_length:.2f}  {time.monotonic() - started:.0f} s"
            )
            if p <= 1e-4:
                faults.append(f"{chain}, {rule}, n_draft_max {n_draft_max}: p = {p}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Mixed requests on a tiny pair, for long.")
    parser.add_argument("--requests", type=int, default=2000, help="(default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    kinds = ["llama", "hybrid", "markov"]
    parser.add_argument("--target", choices=kinds, default="markov", help="(default: markov)")
    parser.add_argument("--laws", type=int, metavar="N", help="test laws with N continuations each")
    args = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    if args.laws:
        faults = check_laws(args.laws, say=say)
    else:
        faults = soak(args.requests, seed=args.seed, kind=args.target, say=say)
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
