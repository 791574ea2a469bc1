#!/usr/bin/env python3
"""Breaks the engine's C++ at one place at a time and runs the law tests: each fault must be caught.

    python scripts/mutate.py [--only NAME ..] [--work build/mutate] [--jobs 2]

Patches a copy of the sources, builds the extension there and runs tests/engine/test_laws.py on it.
Prints for each fault how many laws are found wrong, and the least p. Exit status 1: a fault was not
caught, or the tests fail without one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("CMakeLists.txt", "ggml_dflash2", "python")
SUFFIXES = {".txt", ".cmake", ".cpp", ".h", ".py", ".jsonl", ".j2"}
TESTS = "tests/engine/test_laws.py"

WALK = "ggml_dflash2/src/core/walk.cpp"
VERIFY = "ggml_dflash2/src/core/verify.cpp"
SEQUENCE = "ggml_dflash2/src/engine/sequence.cpp"
ROUND = "ggml_dflash2/src/engine/round.cpp"


@dataclass(frozen=True)
class Mutation:
    """old: occurs in the file once."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "q is reported without temperature",
        WALK,
        "path.q.push_back(std::move(q));",
        "path.q.push_back(softmax(to, 1.0));",
    ),
    Mutation(
        "drafts are drawn without temperature",
        WALK,
        "draw(q, random.uniform(",
        "draw(softmax(to, 1.0), random.uniform(",
    ),
    Mutation(
        "u = 0 accepts p = 0",  # u with 6 bits on [0, 1)
        VERIFY,
        "if (px > 0.0 && random.uniform(random_stream::accept, at) * qx <= px) {",
        "if (int(64 * random.uniform(random_stream::accept, at)) / 64.0 * qx <= px) {",
    ),
    Mutation(
        "the correction is drawn from p", VERIFY, "pi.draw_residual(qi, random", "pi.draw(random"
    ),
    Mutation(
        "draft and accept share a stream",
        VERIFY,
        "random_stream::accept, at)",
        "random_stream::draft, at)",
    ),
    Mutation(
        "accept and residual share a stream",
        VERIFY,
        "random_stream::accept, at)",
        "random_stream::residual, at)",
    ),
    Mutation(
        "draft and residual share a stream",
        VERIFY,
        "random_stream::residual, at)",
        "random_stream::draft, at)",
    ),
    Mutation(
        "drafts end before a token that was drawn against the odds",
        ROUND,
        "t.shorten(t.s->seq()->room());",
        "t.shorten(t.s->seq()->room());\n"
        "    const draft_path & path = t.path;\n"
        "    while (!path.token.empty() && prob_of(path.q.back(), path.token.back()) < 0.2f) {\n"
        "        t.shorten(int32_t(path.token.size()) - 1);\n"
        "    }",
    ),
    Mutation(
        "penalties and grammar do not see drafted tokens",
        SEQUENCE,
        "sampler_.accept(path.token[row - 1]);",
        "",
    ),
)


def broken(mutation: Mutation) -> str:
    """The file with the fault in it.

    Raises:
        ValueError: the file has changed, so that the mutation has to be written again.
    """
    text = (ROOT / mutation.file).read_text()
    if (n := text.count(mutation.old)) != 1:
        raise ValueError(
            f"{mutation.file}: expected {mutation.old!r} once for the fault {mutation.name!r}, "
            f"found it {n} times; adapt scripts/mutate.py"
        )
    return text.replace(mutation.old, mutation.new)


def write(path: Path, content: bytes) -> None:
    """Leaves a file that is the same already as old as it is, for the sake of ninja."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def copy_sources(work: Path) -> None:
    for name in COPIED:
        for path in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            if path.is_file() and path.suffix in SUFFIXES:
                write(work / path.relative_to(ROOT), path.read_bytes())


def build(work: Path, jobs: int) -> None:
    """Raises subprocess.CalledProcessError."""
    import pybind11

    site, scripts = sysconfig.get_path("purelib"), sysconfig.get_path("scripts")
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    options = {
        "DFLASH2_PYTHON": "ON",
        "DFLASH2_LLAMA_ROOT": site,
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11.get_cmake_dir(),
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": f"{work}/python/dflash2",
    }
    configure = ["cmake", "-G", "Ninja", "-S", str(work), "-B", f"{work}/build"]
    for command in (
        [*configure, *(f"-D{key}={value}" for key, value in options.items())],
        ["cmake", "--build", f"{work}/build", "-j", str(jobs)],
    ):
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)


def run_laws(work: Path) -> tuple[bool, list[float]]:
    """Whether the law tests pass with the extension in `work`, and p of those where it is small.

    Raises:
        RuntimeError: pytest itself failed.
    """
    path = f"{work}/python{os.pathsep}{sysconfig.get_path('purelib')}"
    # -S: an editable install would put its own dflash2 first
    command = [sys.executable, "-S", "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, TESTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "1000"},
        text=True,
        capture_output=True,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    small = re.findall(r"^FAILED .* - .*assert (\S+) > 0\.0001", done.stdout, re.M)
    return done.returncode == 0, [float(p) for p in small]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutate")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    args = parser.parse_args()
    work = args.work.resolve()
    names = [mutation.name for mutation in MUTATIONS]
    if unknown := sorted(set(args.only or ()) - set(names)):
        parser.error(f"--only: expected some of {', '.join(names)}, got {', '.join(unknown)}")

    copy_sources(work)
    build(work, args.jobs)
    sound, _ = run_laws(work)
    print(f"without a fault: {'no test fails' if sound else 'tests fail'}", flush=True)
    caught = sound
    for mutation in MUTATIONS:
        if args.only and mutation.name not in args.only:
            continue
        source = work / mutation.file
        original = source.read_bytes()
        try:
            write(source, broken(mutation).encode())
            build(work, args.jobs)
            _, small = run_laws(work)
        finally:
            write(source, original)
        told = f"{len(small)} laws are wrong, least p {min(small):.2g}" if small else "MISSED"
        print(f"{mutation.name}: {told}", flush=True)
        caught &= bool(small)
    return 0 if caught else 1


if __name__ == "__main__":
    sys.exit(main())
