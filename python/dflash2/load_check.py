"""Whether libllama loads a file. In a process of its own: it aborts on some malformed ones."""

from __future__ import annotations

import logging
import os
import subprocess
import sys


def load_error(path: str | os.PathLike[str]) -> str:
    """Why libllama does not load a file, "" when it does. No tensor data is read."""
    command = [sys.executable, "-m", __name__, os.fspath(path)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return ""
    lines = done.stdout.splitlines()
    return lines[0] if lines else "it aborts"


def _main(path: str) -> int:
    from dflash2._native import core, llama_cpp

    core.drain_log()
    params = llama_cpp.llama_model_default_params()
    params.no_alloc = True
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    params.n_gpu_layers = 0
    if llama_cpp.llama_model_load_from_file(os.fsencode(path), params) is not None:
        return 0
    errors = [text.strip() for level, text in core.drain_log() if level >= logging.ERROR]
    sys.stdout.write(errors[0] if errors else "no reason given")
    return 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
