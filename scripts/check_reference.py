#!/usr/bin/env python3
"""Compare the draft graph with the torch reference on a real drafter, with features of real text.

    python scripts/check_reference.py [TARGET.gguf DRAFT_DIR] [--blocks 200] [--threads 1]

Needs the dependency group `reference` (torch). Without paths: SmolLM2-135M-Instruct and models/.
The first row of the table must match within the tolerances of reference_cases.py, else the exit
status is 1: there the drafter carries the target's embedding and head in F32, as the reference
uses them. The other rows share the target's quantized tensors, as users do, and show what that
costs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
from dflash2._native import core
from dflash2.chat import ChatTemplate
from prompts import PROMPTS
from reference_cases import Block, Difference, Floats, Round
from reference_oracle import Oracle
from smollm2 import CHECKPOINT, CONVERT, target_path

sys.path.insert(0, str(CONVERT.parent))

from dflash2_to_gguf import convert

MAX_TOKENS = 192  # of an answer
OUTTYPES = ("f32", "q8_0", "q4_k_m")


@dataclass
class Trial:
    """One round, what the reference drafts in it, and what the target says."""

    first: bool  # of its text
    round: Round
    ref: Block
    truth: list[int]  # the target's greedy tokens after the anchor


@dataclass
class Score:
    """How good the drafts of one drafter are."""

    n_accepted: int = 0
    n_rounds: int = 0
    hits: list[list[bool]] = field(default_factory=list)  # [block][position]

    def add(self, cand: np.ndarray, path: list[int], truth: list[int]) -> None:
        self.n_rounds += 1
        self.n_accepted += n_match(path, truth)
        self.hits.append([token in row for token, row in zip(truth, cand, strict=True)])

    def __str__(self) -> str:
        recall = np.mean(self.hits, axis=0)
        return f"{1 + self.n_accepted / self.n_rounds:8.3f}  " + " ".join(
            f"{r:.2f}".lstrip("0") for r in recall
        )


def n_match(path: list[int], truth: list[int]) -> int:
    n = 0
    while n < len(path) and path[n] == truth[n]:
        n += 1
    return n


def answers(target: core.Target, width: int) -> Iterator[tuple[list[int], Floats, int]]:
    """Greedy answers: tokens, features (n_tokens - 1, n_taps * n_embd), tokens of the prompt."""
    chat = ChatTemplate(target)
    for prompt in PROMPTS:
        text = chat.render([{"role": "user", "content": prompt}])
        tokens = target.tokenize(text, add_special=False, parse_special=True)
        n_prompt = len(tokens)
        target.truncate(0)
        target.decode(tokens, 0)
        rows = [target.tapped().reshape(-1, width)]
        next_ = int(target.logits(len(tokens) - 1).argmax())
        while len(tokens) < n_prompt + MAX_TOKENS and not target.is_eog(next_):
            tokens.append(next_)
            target.decode([next_], len(tokens) - 1)
            rows.append(target.tapped().reshape(-1, width))
            next_ = int(target.logits(0).argmax())
        yield [*tokens, next_], np.concatenate(rows), n_prompt


def collect(target: core.Target, oracle: Oracle, width: int, n_blocks: int) -> list[Trial]:
    """Rounds as decoding goes: each begins where the reference's draft stopped being right."""
    block_size = oracle.model.block_size
    trials: list[Trial] = []
    for tokens, features, n_prompt in answers(target, width):
        oracle.reset()
        done, position = 0, n_prompt
        while position + block_size <= len(tokens) and len(trials) < n_blocks:
            round = Round(features[done:position], tokens[position], position, block_size - 1)
            truth = tokens[position + 1 : position + block_size]
            ref = oracle.draft(round)
            trials.append(Trial(done == 0, round, ref, truth))
            done = position
            position += 1 + n_match(ref.path.tolist(), truth)
        if sys.stderr.isatty():
            print(f"\rreference: {len(trials)} of {n_blocks} blocks", end="", file=sys.stderr)
        if len(trials) == n_blocks:
            break
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return trials


def run(draft: Path, target: core.Target, trials: list[Trial]) -> tuple[Difference, Score]:
    drafter = core.GraphDrafter(
        core.DraftModel(str(draft)), target, n_threads=target.n_threads, kv_f32=True
    )
    difference, score = Difference(), Score()
    for trial in trials:
        round = trial.round
        if trial.first:
            drafter.truncate(0, 0)
        n_rows = len(round.features)
        features = round.features.reshape(n_rows, -1, target.n_embd)
        drafter.inject(0, features, round.position - n_rows)
        [lattice] = drafter.draft([(0, round.anchor, round.position)], round.n_draft)
        path = core.walk_greedy(lattice)[0]
        difference.add(
            trial.ref,
            hidden=drafter.last_hidden(),
            cand=lattice.cand,
            score=lattice.score,
            path=np.array(path),
        )
        score.add(lattice.cand, path, trial.truth)
    return difference, score


def dequantized(path: Path) -> tuple[Floats, Floats]:
    """The target's embedding and head, (n_vocab, n_embd) each."""
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    embedding = tensors["token_embd.weight"]
    head = tensors.get("output.weight", embedding)
    return tuple(gguf.quants.dequantize(t.data, t.tensor_type) for t in (embedding, head))


def add_tensors(source: Path, out: Path, tensors: dict[str, Floats]) -> None:
    """Copies a GGUF with more F32 tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "dflash")
    for key, item in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, item.contents(), *item.types[:1], sub_type=item.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the draft graph with torch.")
    parser.add_argument("target", type=Path, nargs="?", help="(default: SmolLM2)")
    parser.add_argument("draft", type=Path, nargs="?", default=CHECKPOINT, help="(default: ours)")
    parser.add_argument("--blocks", type=int, default=200, help="(default: 200)")
    parser.add_argument("--threads", type=int, default=1, help="(default: 1)")
    args = parser.parse_args()
    target_file = args.target or target_path()
    torch.set_num_threads(args.threads)

    embedding, head = dequantized(target_file)
    oracle = Oracle(args.draft, embedding, head)
    target = core.Target(str(target_file), n_ctx=2048, n_threads=args.threads)
    layers = [layer + 1 for layer in oracle.model.target_layer_ids]
    target.set_taps(layers)
    trials = collect(target, oracle, len(layers) * target.n_embd, args.blocks)

    with tempfile.TemporaryDirectory() as directory:
        drafts = {}
        for outtype in OUTTYPES:
            drafts[outtype] = Path(directory) / f"{outtype}.gguf"
            convert(args.draft, target_file, outfile=drafts[outtype], outtype=outtype)
        exact = Path(directory) / "exact.gguf"
        own = {"token_embd.weight": embedding, "output.weight": head}
        add_tensors(drafts["f32"], exact, own)

        score = Score()
        for trial in trials:
            k = trial.ref.score.shape[1]
            score.add(trial.ref.ids[:, :k], trial.ref.path.tolist(), trial.truth)
        print(
            f"{len(trials)} blocks      hidden   same sets      edge  same paths  accepted"
            f"  recall@{k} by position"
        )
        print(f"{'torch, F32':42}{'':16}{score}")
        for name, path in {"f32, F32 head": exact, **drafts}.items():
            d, score = run(path, target, trials)
            print(
                f"{name:14} {d.hidden:9.1e}  {d.n_same_set / d.n_pos:9.2%}  {d.edge:9.1e}"
                f"  {d.n_same_path / d.n_blocks:9.2%}  {score}"
            )
            if path == exact:
                faults = d.faults()
    for fault in faults:
        print(f"error: the F32 graph differs from the reference: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
