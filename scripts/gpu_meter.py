"""What a GPU could do at best, and how busy it was."""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from dflash2.gguf_raw import Tensor, read_header

GATHERED = ("token_embd.weight", "selector_predecessor.weight", "selector_successor.weight")
HEAD = "output.weight"


@dataclass(frozen=True)
class Floor:
    """Bytes that a round reads at least once; its results and activations are not counted.

    target, draft: weights of a pass; the draft's with the head it shares. position: K and V of one
    position of the target, in F16.
    """

    target: int
    draft: int
    position: int
    bandwidth: float  # bytes per second

    def round_ms(self, n_context: int, *, drafts: bool) -> float:
        n_bytes = self.target + n_context * self.position + (self.draft if drafts else 0)
        return 1000.0 * n_bytes / self.bandwidth


def floor_of(target: Path, draft: Path, bandwidth: float) -> Floor:
    """Of a dense target with an own head and its drafter."""
    tensors = read_header(target).tensors
    kv = [t for name, t in tensors.items() if name.endswith(("attn_k.weight", "attn_v.weight"))]
    return Floor(
        target=_read_bytes(tensors.values()),
        draft=_read_bytes(read_header(draft).tensors.values()) + _read_bytes([tensors[HEAD]]),
        position=sum(2 * t.shape[1] for t in kv),
        bandwidth=bandwidth,
    )


def _read_bytes(tensors: Iterable[Tensor]) -> int:
    total = 0
    for tensor in tensors:
        if tensor.name not in GATHERED:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type_id)]
            n = 1
            for dimension in tensor.shape:
                n *= dimension
            total += n // block * size
    return total


class GpuBusy:
    """utilization.gpu of the first GPU in percent, every 20 ms: the share of nvidia-smi's sampling
    period in which some kernel ran. Nothing where there is no nvidia-smi."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> GpuBusy:
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            self._child = subprocess.Popen(
                ["nvidia-smi", "-i", "0", *query, "-lms", "20"], stdout=subprocess.PIPE, text=True
            )
        except FileNotFoundError:
            return self
        threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait()

    def _read(self, lines: Any) -> None:
        for line in lines:
            if line.strip().isdigit():
                self._samples.append((time.monotonic(), float(line)))

    def mean(self, spans: Sequence[tuple[float, float]]) -> float | None:
        """Over spans of time.monotonic(); their first 0.2 s still show what was before."""
        inside = [v for t, v in self._samples if any(a + 0.2 <= t <= b for a, b in spans)]
        return statistics.fmean(inside) if inside else None
