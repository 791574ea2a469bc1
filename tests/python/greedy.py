"""Greedy decoding without the engine, and what may differ from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash2._native import core

# Logits of a batch and of single tokens differ by up to 0.02 in the tiny target, whose K/V are F16.
NEAR_TIE = 0.05


def open_target(path: Path, n_ctx: int = 256) -> core.Target:
    return core.Target(str(path), n_ctx=n_ctx, n_threads=1)


def decode_alone(target: core.Target, prompt: list[int], n: int) -> list[int]:
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
    target: core.Target, prompt: list[int], tokens: Sequence[int], expected: Sequence[int]
) -> None:
    """Equal, or different from a token on where the target itself is undecided."""
    tokens, expected = list(tokens), list(expected)
    if tokens == expected:
        return
    pairs = list(zip(tokens, expected, strict=False))
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    assert first is not None, f"{len(tokens)} tokens instead of {len(expected)}"
    target.truncate(0)
    target.decode(prompt + expected[:first], 0)
    logits = target.logits(len(prompt) + first - 1)
    gap = abs(float(logits[tokens[first]] - logits[expected[first]]))
    assert gap < NEAR_TIE, f"token {first}: {pairs[first]}, logits differ by {gap}"
