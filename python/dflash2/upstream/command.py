"""The arguments of llama-server for a target and a drafter."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

StrPath = str | os.PathLike[str]

# Upstream's server inside the package xllamacpp, as a program with llama-server's arguments.
XLLAMACPP = (sys.executable, str(Path(__file__).with_name("xllamacpp_server.py")))


def find_server(path: StrPath | None = None) -> str:
    """llama-server at `path`, or the one on PATH.

    Raises:
        FileNotFoundError: there is none, or it cannot be executed.
    """
    name = "llama-server" if path is None else os.fspath(path)
    found = shutil.which(name)
    if found is None:
        where = "on PATH" if path is None else "an executable file"
        raise FileNotFoundError(
            f"{name}: expected llama.cpp's server {where}, found none; "
            "install llama.cpp b10658 or later, or name it with --server PATH"
        )
    return found


def server_flags(
    target: StrPath,
    draft: StrPath | None = None,
    *,
    n_draft_max: int | None = None,
    n_ctx: int = 4096,
    n_parallel: int = 1,
    n_threads: int | None = None,
    n_gpu_layers: int = 0,
    draft_device: str | None = None,
) -> list[str]:
    """Arguments of llama-server (b10658 or later) that say what `dflash2.load` was told.

    Args:
        n_draft_max: None: as llama-server chooses, 3.
        n_ctx: of one request; llama-server divides its context among the parallel ones.
        n_threads, draft_device: None: as llama-server chooses.
    """
    flags = ["-m", os.fspath(target), "-c", str(n_ctx * n_parallel), "-np", str(n_parallel)]
    flags += ["-ngl", _layers(n_gpu_layers)]
    if n_threads is not None:
        flags += ["-t", str(n_threads)]
    if draft is None:
        return flags
    flags += ["-md", os.fspath(draft), "--spec-type", "draft-dflash"]
    if n_draft_max is not None:
        flags += ["--spec-draft-n-max", str(n_draft_max)]
    if draft_device is None:
        return [*flags, "-ngld", _layers(n_gpu_layers and -1)]
    device = "none" if draft_device.upper() == "CPU" else draft_device
    return [*flags, "-devd", device, "-ngld", "0" if device == "none" else "all"]


def _layers(n: int) -> str:
    return "all" if n < 0 else str(n)
