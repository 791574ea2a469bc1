"""Loads libllama, then the compiled module. The only importer of `_core`.

`import llama_cpp` loads the copy of libllama that `_core` is linked to; importing `_core` first
would let the dynamic linker choose, and two copies in one process do not share their state.
A module that was built with DFLASH2_LLAMA_ROOT tells llama_cpp to load that one.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import metadata
from pathlib import Path

from dflash2._llama_root import LLAMA_ROOT

LLAMA_CPP_PYTHON = "0.3.36"

logger = logging.getLogger("dflash2")
logger.addHandler(logging.NullHandler())


def _check_version() -> None:
    """Parameter structs of libllama pass by value, so any other release may corrupt memory.

    Raises:
        ImportError: llama-cpp-python is missing or another version.
    """
    fix = f"pip install llama-cpp-python=={LLAMA_CPP_PYTHON}"
    try:
        found = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        raise ImportError(f"llama-cpp-python is not installed; run: {fix}") from None
    if found != LLAMA_CPP_PYTHON:
        raise ImportError(
            f"llama-cpp-python: expected version {LLAMA_CPP_PYTHON}, got {found}; run: {fix}"
        )


def _choose_libllama(folder: str) -> None:
    """Makes llama_cpp load its library from a folder.

    Raises:
        ImportError: it has loaded another one already.
    """
    variable = "LLAMA_CPP_LIB_PATH"
    if "llama_cpp" in sys.modules and os.environ.get(variable) != folder:
        raise ImportError(f"llama_cpp: expected libllama of {folder}; import dflash2 before it")
    os.environ[variable] = folder


_check_version()
if LLAMA_ROOT:
    _choose_libllama(str(Path(LLAMA_ROOT, "lib")))

import llama_cpp  # noqa: E402

from dflash2 import _core as core  # noqa: E402


def drain_log() -> None:
    """Hands the queued log lines of libllama and ggml to the logger `dflash2`."""
    for level, text in core.drain_log():
        for line in text.splitlines():
            logger.log(level, "%s", line)


__all__ = ["LLAMA_CPP_PYTHON", "core", "drain_log", "llama_cpp", "logger"]
