"""Faults that a file's own values give away."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dflash2._native import core
from dflash2.doctor.finding import Finding, fault, note
from dflash2.doctor.gguf_file import Floats, GgufFile
from dflash2.doctor.variants import PREDECESSOR, SUCCESSOR

DEAD = 0.5  # share of rows of a codebook that are zero
MAX_SHOWN = 3


def static_checks(
    file: GgufFile, hparams: core._HParams, rope_base_of_target: float | None = None
) -> list[Finding]:
    """rope_base_of_target: None: not known."""
    return [
        *_values(file),
        *_codebooks(file),
        *_conv(file, hparams["conv_kernel_size"]),
        *_window(hparams),
        *_rope(hparams, rope_base_of_target),
    ]


def _values(file: GgufFile) -> Iterator[Finding]:
    """Not finite, all zeros, norms that were never trained."""
    bad, zero, ones = [], [], []
    for name in file.names:
        if file.type_name(name).startswith("I"):
            continue
        x = file.scales(name)
        if not np.isfinite(x).all():
            bad.append(f"{name} ({file.type_name(name)})")
        elif not x.any():
            zero.append(name)
        elif name.endswith("norm.weight") and (x == 1).all():
            ones.append(name)
    if bad:
        yield fault(
            "overflow",
            "weights are not finite: they overflowed when the file was written; "
            "convert it again to a type of wider range, such as bf16",
            _listed(bad),
        )
    for layer, names in _by_layer(zero).items():
        what = f"layer {layer}" if layer else "the drafter"
        yield fault("layers", f"tensors of {what} are all zeros: they were not written", names)
    for name in ones:
        stage = "hidden_norm" if name.startswith("enc.") else "norms"
        known = " (hidden_norm)" if stage == "hidden_norm" else ""
        yield fault(stage, f"{name}{known} is all ones: the trained values were not written")


def _codebooks(file: GgufFile) -> Iterator[Finding]:
    if np.array_equal(file.data(PREDECESSOR).rows, file.data(SUCCESSOR).rows):
        yield fault("selector", "the two codebooks of the selector are identical")
    for name in (PREDECESSOR, SUCCESSOR):
        dead = float((~file.scales(name).any(axis=1)).mean())
        if DEAD < dead < 1:
            yield fault("selector", f"{name}: most rows are zero", f"{dead:.0%} of the rows")


def _conv(file: GgufFile, n_kernel: int) -> Iterator[Finding]:
    """Trained kernels stay near the identity that they start from: 1 at tap 0, 0 elsewhere."""
    if n_kernel < 2:
        return
    names = [name for name in file.names if name.endswith("_conv_base")]
    sides = np.array([_tap_means(file.floats(name), n_kernel) for name in names])
    means = sides.mean(axis=(0, 1))
    if np.isfinite(means).all() and means.argmax() != 0 and means.max() > 0.5:
        yield fault(
            "conv",
            f"the taps of the convolutions are in the wrong order: the identity is at tap "
            f"{means.argmax()}, expected at tap 0",
            "mean weight by tap " + ", ".join(f"{m:.2f}" for m in means),
        )


def _tap_means(base: Floats, n_kernel: int) -> Floats:
    """(side, tap) of rows that are side-major."""
    return np.asarray(base.reshape(2, n_kernel, -1).mean(axis=2))


def _window(hparams: core._HParams) -> Iterator[Finding]:
    if not hparams["sliding_window"]:
        yield note(
            "window",
            "no layer has a sliding window, but published DFlash 2 drafters do: compare with "
            "sliding_window and layer_types in the checkpoint's config.json",
        )


def _rope(hparams: core._HParams, of_target: float | None) -> Iterator[Finding]:
    now = hparams["rope_freq_base"]
    if of_target is not None and not math.isclose(now, of_target, rel_tol=1e-5):
        yield note(
            "rope",
            f"the RoPE base is {now:g}, the target's {of_target:g}; published drafters have their "
            "target's: compare with rope_theta in the checkpoint's config.json",
        )


def _by_layer(names: list[str]) -> dict[str, str]:
    """Layer ("" for the rest) to the names, shortened."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        found.setdefault(parts[1] if parts[0] == "blk" else "", []).append(name)
    return {layer: _listed(of_layer) for layer, of_layer in found.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
