"""Tokens that could be the mask: those that stand for no text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dflash2._native import core
from dflash2.doctor.gguf_file import Floats, GgufFile

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # token types
EMBEDDING = "token_embd.weight"
MAX_TOKENS = 512
MAX_CANDIDATES = 16
ALIKE = 0.98  # cosine; untrained tokens often share one embedding and draft the same


def candidates(file: GgufFile, target: core.Target, now: int) -> Iterator[tuple[int, str, int]]:
    """(token, text, others embedded alike), one of each group that is not embedded as `now` is."""
    tokens = _special(file, target)
    source = file if EMBEDDING in file.names else GgufFile(target.path)
    if not tokens or EMBEDDING not in source.names:
        return
    rows = source.floats(EMBEDDING, [now, *tokens])
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    now_unit, unit = unit[0], unit[1:]
    left = [i for i in range(len(tokens)) if tokens[i] != now and unit[i] @ now_unit < ALIKE]
    for _ in range(MAX_CANDIDATES):
        if not left:
            return
        first, group = left[0], _alike(unit, left)
        text = target.piece(tokens[first], special=True).decode(errors="replace")
        yield tokens[first], text, len(group) - 1
        left = [i for i in left if i not in group]


def _alike(unit: Floats, left: list[int]) -> list[int]:
    return [i for i in left if i == left[0] or unit[i] @ unit[left[0]] >= ALIKE]


def _special(file: GgufFile, target: core.Target) -> list[int]:
    """Those named after masks first."""
    types = file.values.get("tokenizer.ggml.token_type")
    kinds = types.integers() if types else []
    found = [
        token
        for token, kind in enumerate(kinds[: target.n_vocab])
        if kind in (CONTROL, USER_DEFINED, UNUSED)
    ][:MAX_TOKENS]
    return sorted(found, key=lambda t: b"mask" not in target.piece(t, special=True).lower())
