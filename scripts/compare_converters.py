#!/usr/bin/env python3
"""Our converter against llama.cpp's convert_hf_to_gguf.py, on synthetic checkpoints.

Same keys, value types, values, tensor names, types, shapes and bytes, for every layout that
llama.cpp takes. Left out: general.* and dflash2.* keys, and the tokenizer (tests compare it with
libllama); the mask token is compared. Prints one line per file; exit status 1 when one differs.

    python scripts/compare_converters.py LLAMA_CPP [--python PYTHON] [--outtype f32] [--layout NAME]

LLAMA_CPP: a checkout, or the sdist of llama-cpp-python unpacked (vendor/llama.cpp). Its converter
needs torch and transformers; PYTHON is the interpreter of an environment that has them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny_drafter
from make_checkpoints import LAYOUTS, N_EMBD, N_TARGET_LAYERS, N_VOCAB, make_checkpoint

OUTTYPES = ("f32", "bf16", "q8_0")
SKIPPED = ("GGUF.", "general.", "dflash2.", "tokenizer.")
# of no layer: ours leaves them out, because llama.cpp aborts on them
WINDOW = "dflash.attention.sliding_window"
PATTERN = "dflash.attention.sliding_window_pattern"
MASK = "tokenizer.ggml.mask_token_id"

# runs in the other interpreter, several command lines because torch loads for seconds; a synthetic
# vocabulary is none that llama.cpp knows by its hash
DRIVER = """
import json, runpy, sys
root, script = sys.argv[1], sys.argv[1] + "/convert_hf_to_gguf.py"
sys.path[:0] = [root + "/gguf-py", root]
from conversion import qwen
def set_vocab(self):
    self.gguf_writer.add_mask_token_id(self.hparams["dflash_config"]["mask_token_id"])
qwen.DFlashModel.set_vocab = set_vocab
for options in json.loads(sys.argv[2]):
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
"""


def write_hf_target(
    folder: Path,
    *,
    mrope: bool,
    n_embd: int = N_EMBD,
    n_layer: int = N_TARGET_LAYERS,
    n_vocab: int = N_VOCAB,
) -> Path:
    """What llama.cpp's converter reads of a target besides its tokenizer."""
    folder.mkdir()
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": n_embd,
        "num_hidden_layers": n_layer,
        "vocab_size": n_vocab,
    }
    if mrope:
        config["rope_parameters"] = {"mrope_section": [11, 11, 10], "rope_type": "default"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(type and value by key, type, shape and bytes by tensor)."""
    reader = gguf.GGUFReader(path)
    values = {
        key: (list(field.types), field.contents())
        for key, field in reader.fields.items()
        if key == MASK or not key.startswith(SKIPPED)
    }
    if not any(values.get(PATTERN, (None, [True]))[1]):
        for key in (PATTERN, WINDOW):
            del values[key]
    tensors = {
        t.name: (t.tensor_type.name, t.shape.tolist(), np.asarray(t.data).tobytes())
        for t in reader.tensors
    }
    return values, tensors


def differences(ours: Path, theirs: Path) -> list[str]:
    found = []
    for kind, one, other in zip(("key", "tensor"), read(ours), read(theirs), strict=True):
        for name in sorted(one.keys() | other.keys()):
            if name not in one or name not in other:
                found.append(f"{kind} {name}: only {'ours' if name in one else 'theirs'}")
            elif one[name] != other[name]:
                found.append(f"{kind} {name}: {one[name][:2]} ours, {other[name][:2]} theirs")
    return found


def upstream_command(
    python: str, llama_cpp: Path, source: Path, jobs: Sequence[tuple[Path, str, Path]]
) -> list[str]:
    """Runs llama.cpp's converter. jobs: (Hugging Face target, file type, file to write)."""
    options = [
        [
            *(str(source), "--target-model-dir", str(target)),
            *("--outtype", outtype, "--outfile", str(out)),
        ]
        for target, outtype, out in jobs
    ]
    return [python, "-c", DRIVER, str(llama_cpp), json.dumps(options)]


def compare(args: argparse.Namespace, name: str, directory: Path) -> bool:
    """Compares every file type of one layout, with and without M-RoPE in the target."""
    from dflash2_to_gguf import convert

    source = make_checkpoint(name, directory)
    outtypes = args.outtype or OUTTYPES
    hf_targets = [write_hf_target(directory / f"{name}-{m:d}", mrope=m) for m in (False, True)]
    jobs = [(t, o, directory / f"{t.name}-{o}.gguf") for t in hf_targets for o in outtypes]
    command = upstream_command(args.python, args.llama_cpp, source / LAYOUTS[name]().folder, jobs)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"llama.cpp's converter failed: {done.stderr.strip()[-300:]}")
    same = True
    for hf_target, outtype, theirs in jobs:
        mrope = hf_target is hf_targets[1]
        target = tiny_drafter.write_target(
            directory / "target.gguf",
            n_vocab=N_VOCAB,
            n_layer=N_TARGET_LAYERS,
            n_embd=N_EMBD,
            mrope=mrope,
        )
        ours = directory / "ours.gguf"
        convert(source, target, outtype=outtype, outfile=ours, force=True, threads=1)
        found = differences(ours, theirs)
        same = same and not found
        verdict = "same" if not found else "; ".join(found[:5])
        print(f"{name:25} {outtype:5} {'M-RoPE' if mrope else '':7} {verdict}", flush=True)
    return same


def main() -> int:
    supported = [name for name, make in LAYOUTS.items() if make().upstream]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("llama_cpp", type=Path, metavar="LLAMA_CPP")
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--outtype", choices=OUTTYPES, action="append", help="(default: all)")
    parser.add_argument("--layout", choices=supported, action="append", help="(default: all)")
    args = parser.parse_args()
    if not (args.llama_cpp / "convert_hf_to_gguf.py").is_file():
        parser.error(f"{args.llama_cpp}: expected convert_hf_to_gguf.py there, found none")
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(args, name, Path(folder)) for name in args.layout or supported]
    return int(not all(results))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "convert"))
    sys.exit(main())
