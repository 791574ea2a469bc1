#!/usr/bin/env python3
"""Time and memory of our converter against llama.cpp's convert_hf_to_gguf.py + llama-quantize.

On Qwen3.8-27B-DFlash2 in its real shapes (random weights). Every step is a process of its own and
gets all cores; llama.cpp's first step (to bf16) is run once and counted for every file type.

    python scripts/bench_conversion.py LLAMA_CPP [--python PYTHON] [--outtype q4_k_m] [--dir DIR]

LLAMA_CPP: a checkout, or the sdist of llama-cpp-python unpacked (vendor/llama.cpp). Its converter
needs torch and transformers; PYTHON is the interpreter of an environment that has them. It converts
no tokenizer here, ours copies the target's; its quantizer is the one inside llama-cpp-python.
Needs 10 GB of disk and 6 minutes of two cores for q4_k_m. Our memory includes Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare_converters import upstream_command, write_hf_target
from make_checkpoints import QWEN38_27B
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
CONVERTER = HERE.parent / "convert" / "dflash2_to_gguf.py"
OUTTYPES = ("q4_k_m", "bf16", "q8_0")

QUANTIZE = """
import os, sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.nthread, params.ftype = os.cpu_count(), int(sys.argv[3])
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


@dataclass(frozen=True)
class Cost:
    """wall, cpu: seconds. peak: resident bytes."""

    wall: float
    cpu: float
    peak: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu, max(self.peak, other.peak))


def measure(command: Sequence[str | Path]) -> Cost:
    """Runs a command. Raises RuntimeError with its last words when it fails."""
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            words = log.read()[-500:].decode(errors="replace")
            raise RuntimeError(f"{command[0]}: status {child.returncode}: {words}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


@dataclass(frozen=True)
class Bench:
    """The files and interpreters of one run."""

    llama_cpp: Path
    python: str
    directory: Path
    source: Path
    target: Path
    hf_target: Path

    def ours(self, *options: str) -> Cost:
        out = self.directory / "ours.gguf"
        files: list[str | Path] = [self.source, "--target", self.target, "--outfile", out]
        cost = measure([sys.executable, CONVERTER, *files, *options])
        out.unlink(missing_ok=True)
        return cost

    def upstream_convert(self, out: Path, outtype: str) -> Cost:
        """convert_hf_to_gguf.py."""
        job = (self.hf_target, outtype, out)
        return measure(upstream_command(self.python, self.llama_cpp, self.source, [job]))

    def upstream_quantize(self, source: Path, outtype: str) -> Cost:
        """llama-quantize."""
        from type_choice import FILE_TYPES

        out = self.directory / "theirs.gguf"
        number = str(int(FILE_TYPES[outtype]))
        cost = measure([sys.executable, "-c", QUANTIZE, source, out, number])
        out.unlink()
        return cost


def make_files(directory: Path) -> list[Path]:
    """[checkpoint, target], made in another process: a child's peak is at least its parent's."""
    made = subprocess.run(
        [sys.executable, HERE / "make_checkpoints.py", directory, "--real"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [Path(line) for line in made.stdout.splitlines()]


def add_row(table: Table, name: str, cost: Cost, base: Cost | None = None) -> None:
    ratio = f"{cost.wall / base.wall:.2f}" if base else ""
    peak = f"{cost.peak / 1e6:,.0f} MB"
    table.add_row(name, f"{cost.wall:.1f} s", f"{cost.cpu:.1f} s", peak, ratio)


def run(bench: Bench, outtypes: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("step", "wall", "CPU", "resident", "of both"):
        table.add_column(title, justify="left" if title == "step" else "right", no_wrap=True)
    add_row(table, "ours: --help", bench.ours("--help"))
    add_row(table, "ours: --dry-run", bench.ours("--dry-run"))
    middle = bench.directory / "bf16.gguf"
    first = bench.upstream_convert(middle, "bf16")
    add_row(table, "llama.cpp: convert_hf_to_gguf, bf16", first)
    for outtype in outtypes:
        second = bench.upstream_quantize(middle, outtype)
        add_row(table, f"llama.cpp: llama-quantize, {outtype}", second)
        add_row(table, f"ours: {outtype}", bench.ours("--outtype", outtype), first + second)
    middle.unlink()
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("llama_cpp", type=Path, metavar="LLAMA_CPP")
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--outtype", choices=OUTTYPES, action="append", help="(default: all)")
    parser.add_argument("--dir", type=Path, help="where the large files go (default: a temporary)")
    args = parser.parse_args()
    if not (args.llama_cpp / "convert_hf_to_gguf.py").is_file():
        parser.error(f"{args.llama_cpp}: expected convert_hf_to_gguf.py there, found none")
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        directory = Path(folder)
        source, target = make_files(directory)
        config = QWEN38_27B
        bench = Bench(
            llama_cpp=args.llama_cpp,
            python=args.python,
            directory=directory,
            source=source,
            target=target,
            hf_target=write_hf_target(
                directory / "hf-target",
                mrope=True,
                n_embd=config["hidden_size"],
                n_layer=config["num_target_layers"],
                n_vocab=config["vocab_size"],
            ),
        )
        Console(width=100).print(run(bench, args.outtype or OUTTYPES))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(CONVERTER.parent))
    sys.exit(main())
