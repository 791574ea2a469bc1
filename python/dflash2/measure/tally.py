"""Counts of draft rounds, as one request contributes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

THINK, END_THINK = b"<think>", b"</think>"

Key = tuple[str, int]  # part, context


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Rounds of one part of an answer in one range of contexts.

    Args:
        part: "thinking", the text inside <think>...</think>, or "answer".
        context: the rounds started behind context..2 * context - 1 tokens (0: fewer than 128).
        rounds: expected number of them; whole at temperature 0.
        survivors: (n_draft,): of these, how many kept at least 1, 2, .. drafted tokens.
    """

    part: str
    context: int
    rounds: float
    survivors: tuple[float, ...]


class TallyBook:
    """Sums rounds into tallies."""

    def __init__(self, n_draft: int) -> None:
        self._n_draft = n_draft
        self._sums: dict[Key, list[float]] = {}  # [rounds, *survivors]

    def add(self, key: Key, rounds: float, survival: Sequence[float]) -> None:
        """survival: (up to n_draft,): shares of these rounds that kept 1, 2, .. tokens."""
        sums = self._sums.setdefault(key, [0.0] * (self._n_draft + 1))
        sums[0] += rounds
        for k, share in enumerate(survival, start=1):
            sums[k] += rounds * share

    def tallies(self) -> tuple[Tally, ...]:
        return tuple(
            Tally(part=part, context=context, rounds=sums[0], survivors=tuple(sums[1:]))
            for (part, context), sums in sorted(self._sums.items())
        )


def context_range(n_tokens: int) -> int:
    """Least number of tokens of the range: 0, then powers of two from 128."""
    return 0 if n_tokens < 128 else 1 << (n_tokens.bit_length() - 1)


def parts(prompt: Iterable[bytes], answer: Iterable[bytes]) -> list[str]:
    """Which part each token of the answer belongs to. Templates may open the tag in the prompt.

    Args:
        prompt, answer: pieces of the tokens, special ones written out.
    """
    found = []
    thinking = False
    seen = b""
    for is_answer, pieces in ((False, prompt), (True, answer)):
        for piece in pieces:
            before = thinking
            seen += piece
            if THINK in seen:
                thinking, seen = True, seen.rpartition(THINK)[2]
            if END_THINK in seen:
                thinking, seen = False, seen.rpartition(END_THINK)[2]
            seen = seen[-len(END_THINK) :]
            if is_answer:
                found.append("thinking" if before or thinking else "answer")
    return found
