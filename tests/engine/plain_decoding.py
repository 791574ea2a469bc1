"""The target without the engine, and how far the engine may be from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dflash2._native import core

# Logits of a batch and of single tokens differ by up to 2e-3: K/V of the tiny targets are F16.
NEAR_TIE = 0.01


def prompts(n: int, n_vocab: int, *, longest: int = 60, seed: int = 7) -> list[list[int]]:
    """Random token ids; special tokens are left out."""
    random = np.random.default_rng(seed)
    return [random.integers(6, n_vocab, random.integers(1, longest)).tolist() for _ in range(n)]


def decode_alone(target: core.Target, prompt: Sequence[int], n: int) -> list[int]:
    """One token at a time, the argmax of the logits, until n tokens or the end of generation."""
    target.truncate(0)
    target.decode(prompt, 0)
    tokens: list[int] = []
    row = len(prompt) - 1
    while len(tokens) < n:
        tokens.append(int(target.logits(row).argmax()))
        if target.is_eog(tokens[-1]):
            break
        target.decode(tokens[-1:], len(prompt) + len(tokens) - 1)
        row = 0
    return tokens


def assert_same(
    target: core.Target, prompt: Sequence[int], tokens: Sequence[int], expected: Sequence[int]
) -> None:
    """Equal, or different from a token on where the target itself is undecided."""
    tokens, expected = list(tokens), list(expected)
    if tokens == expected:
        return
    both = list(zip(tokens, expected, strict=False))
    first = next((i for i, (a, b) in enumerate(both) if a != b), None)
    assert first is not None, f"{len(tokens)} tokens instead of {len(expected)}"
    target.truncate(0)
    target.decode([*prompt, *expected[:first]], 0)
    logits = target.logits(len(prompt) + first - 1)
    gap = abs(float(logits[tokens[first]] - logits[expected[first]]))
    assert gap < NEAR_TIE, f"token {first}: {both[first]}, logits differ by {gap}"
