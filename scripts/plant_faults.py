#!/usr/bin/env python3
"""Plants faults in a drafter, one at a time, and asks `dflash2 doctor` what is wrong.

    python scripts/plant_faults.py [--target T.gguf --draft D.gguf] [--only NAME ..] [--json FILE]
    python scripts/plant_faults.py --texts scripts/doctor_texts/*.txt

Prints a table: fault, what doctor said, whether it was right. Exit status 1: fewer than 10 right,
or the drafter itself is not called healthy. With --texts nothing is planted: the drafter must be
called healthy with each of these texts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np
import smollm2
from dflash2._native import core
from dflash2.doctor import variants as v
from dflash2.doctor.examination import Doctor, Examination, Settings
from dflash2.doctor.gguf_file import Edit, GgufFile, TensorData
from dflash2.gguf_raw import f32, i32_array, u32
from numpy.typing import NDArray

WANTED = 10
NONE = "none"
Rows = NDArray[np.uint8]


@dataclass(frozen=True)
class Fault:
    """stages: findings that name it."""

    name: str
    stages: tuple[str, ...]
    edit: Edit


def plant(file: GgufFile, hp: core._HParams) -> list[Fault]:
    taps = hp["target_layers"]
    swapped = list(taps)
    swapped[1], swapped[3] = swapped[3], swapped[1]
    n_kernel, head_dim = hp["conv_kernel_size"], hp["head_dim"]

    def rows_of(ends: tuple[str, ...], change: Callable[[Rows], Rows]) -> Edit:
        names = [name for name in file.names if name.endswith(ends)]
        data = {name: file.data(name) for name in names}
        return Edit(tensors={n: TensorData(d.type_id, change(d.rows)) for n, d in data.items()})

    def conv(change: Callable[[Rows], Rows]) -> Edit:
        """change: of (side, tap, ..)."""
        ends = ("_conv_base", "_conv_proj.weight")
        return rows_of(
            ends, lambda r: change(r.reshape(2, n_kernel, -1, r.shape[1])).reshape(r.shape)
        )

    def pairs(rows: Rows) -> Rows:
        """Rows of each head from split halves to interleaved pairs."""
        heads = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
        return heads.swapaxes(1, 2).reshape(rows.shape)

    def pairs_of_norm(rows: Rows) -> Rows:
        return pairs(rows.reshape(head_dim, 4)).reshape(rows.shape)

    def ones(rows: Rows) -> Rows:
        return np.ones((1, rows.size // 4), np.float32).view(np.uint8)

    qk = rows_of(("attn_q.weight", "attn_k.weight"), pairs)
    qk_norms = rows_of(("attn_q_norm.weight", "attn_k_norm.weight"), pairs_of_norm)
    codebooks = {
        v.PREDECESSOR: file.data(v.SUCCESSOR),
        v.SUCCESSOR: file.data(v.PREDECESSOR),
    }
    return [
        Fault("taps +1", ("taps",), Edit({v.TAPS: i32_array(tuple(t + 1 for t in taps))})),
        Fault("taps permuted", ("taps",), Edit({v.TAPS: i32_array(tuple(swapped))})),
        Fault("hidden_norm all ones", ("hidden_norm",), rows_of((v.HIDDEN_NORM,), ones)),
        Fault("conv taps swapped", ("conv",), conv(lambda x: x[:, ::-1])),
        Fault("conv before and after swapped", ("conv",), conv(lambda x: x[::-1])),
        Fault("codebooks swapped", ("selector",), Edit(tensors=codebooks)),
        Fault("mask id wrong", ("mask",), Edit({v.MASK: u32(0)})),
        Fault("RoPE base wrong", ("rope",), Edit({v.ROPE_BASE: f32(hp["rope_freq_base"] * 10)})),
        Fault("window dropped", ("window",), Edit({v.WINDOW: None, v.PATTERN: None})),
        Fault(
            "q/k in interleaved pairs", ("rope",), Edit(tensors={**qk.tensors, **qk_norms.tensors})
        ),
        Fault("layer 2 all zeros", ("layers",), rows_of_layer(file, 2)),
        Fault("logit scale wrong", ("logit scale",), Edit({v.LOGIT_SCALE: f32(0.2)})),
        Fault("F16 overflow", ("overflow",), overflowed(file)),
    ]


def rows_of_layer(file: GgufFile, layer: int) -> Edit:
    names = [name for name in file.names if name.startswith(f"blk.{layer}.")]
    data = {name: file.data(name) for name in names}
    return Edit(tensors={n: TensorData(d.type_id, np.zeros_like(d.rows)) for n, d in data.items()})


def overflowed(file: GgufFile) -> Edit:
    """fc in F16 after a scale that was folded into it: its largest values become infinite."""
    x = file.floats("fc.weight")
    scaled = x * np.float32(1.02 * 65504 / np.abs(x).max())
    with np.errstate(over="ignore"):
        rows = scaled.astype(np.float16).view(np.uint8)
    return Edit(tensors={"fc.weight": TensorData(gguf.GGMLQuantizationType.F16, rows)})


@dataclass(frozen=True)
class Row:
    """cpu_s: of the examination; with texts also of loading and writing."""

    name: str
    said: list[str]
    right: bool
    accept_length: float
    cpu_s: float


def judge(fault: Fault, found: Examination, cpu_s: float) -> Row:
    faults = [f for f in found.findings if f.severity == "fault"]
    named = any(f.stage in fault.stages for f in faults)
    said = [f"{f.stage}: {f.text}" for f in faults] or ["healthy"]
    right = named if fault.stages else found.healthy
    return Row(fault.name, said, right, round(found.trial.accept_length, 2), round(cpu_s, 1))


def planted(args: argparse.Namespace, settings: Settings) -> Iterator[Row]:
    file, hp = GgufFile(args.draft), core.DraftModel(str(args.draft)).hparams
    doctor = Doctor(args.target, args.draft, settings=settings)
    taps = {t + shift for t in hp["target_layers"] for shift in (-1, 0, 1, 2)}
    doctor.benches(sorted(t for t in taps if 0 <= t < doctor.target.n_layer))  # once for all
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planted.gguf"
        for fault in (Fault(NONE, (), Edit()), *plant(file, hp)):
            if not args.only or fault.name in args.only:
                started = time.process_time()
                file.write_copy(path, fault.edit)
                yield judge(fault, doctor.examine(path), time.process_time() - started)


def on_texts(args: argparse.Namespace, settings: Settings) -> Iterator[Row]:
    for file in args.texts:
        started = time.process_time()
        text = file.read_text(encoding="utf-8")
        doctor = Doctor(args.target, args.draft, text=text, settings=settings)
        found = doctor.examine(args.draft)
        yield judge(Fault(file.stem, (), Edit()), found, time.process_time() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="(default: SmolLM2-135M)")
    parser.add_argument("--draft", type=Path, help="(default: ours in Q4_K_M)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults")
    parser.add_argument("--texts", nargs="+", metavar="FILE", type=Path, help="no faults, texts")
    parser.add_argument("--threads", type=int, default=1, help="(default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    args = parser.parse_args()
    args.target = args.target or smollm2.target_path()
    args.draft = args.draft or smollm2.draft_path("q4_k_m", args.target)
    settings = Settings(n_lossless=3 if args.texts else 0, n_threads=args.threads)

    rows = []
    for row in on_texts(args, settings) if args.texts else planted(args, settings):
        rows.append(row)
        mark = "right" if row.right else "WRONG"
        print(f"{mark}  {row.name:30} {row.accept_length:.2f}  {'; '.join(row.said)}", flush=True)
        if args.json:
            args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    n_right = sum(row.right for row in rows)
    print(f"{n_right} of {len(rows)} right")
    healthy = all(row.right for row in rows if args.texts or row.name == NONE)
    enough = args.only or args.texts or n_right - 1 >= WANTED
    return 0 if healthy and enough else 1


if __name__ == "__main__":
    sys.exit(main())
