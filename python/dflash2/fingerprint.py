"""What files and machines are known by."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from dflash2._native import core

N_SAMPLED_BYTES = 1 << 20


def file_fingerprint(path: str | os.PathLike[str]) -> str:
    """Of the size, the head and the tail: models are too large to be read for this.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(N_SAMPLED_BYTES)
        file.seek(max(0, size - N_SAMPLED_BYTES))
        return hashlib.sha256(b"%d %b" % (size, head) + file.read()).hexdigest()


def machine() -> dict[str, object]:
    """Devices as ggml names them, the CPU among them, and the number of cores."""
    return {
        "devices": {name: description for name, description, _ in core.list_devices()},
        "cores": os.cpu_count(),
    }


def fingerprint(*files: str | os.PathLike[str]) -> str:
    """Of files on this machine, for the name of a file. Errors as for `file_fingerprint`."""
    parts = [*map(file_fingerprint, files), machine()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
