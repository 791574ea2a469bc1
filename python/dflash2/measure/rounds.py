"""Draft rounds that would have produced a known text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def expected_rounds(
    n_most: int, survival: Callable[[int, int], Sequence[float]]
) -> Iterator[tuple[int, float, Sequence[float]]]:
    """Yields (start, probability, survival) of the rounds that may start behind token `start`.

    Given the text, whether a round keeps one more token depends on that round alone: what was
    emitted as x was an accepted draft with probability min(p, q)(x) / p(x), whatever came before.
    So rounds are a Markov chain over the text, and its expectations are exact. At temperature 0
    every probability is 0 or 1.

    Args:
        n_most: tokens of the text that drafts may have given, and the first one, which comes from
            the prompt's pass.
        survival: (start, n) to the probabilities of keeping at least 1, 2, .. n tokens.
    """
    reach = [0.0] * (n_most + 1)
    reach[0] = 1.0
    for start in range(n_most - 1):
        if reach[start] == 0.0:
            continue
        shares = survival(start, n_most - 1 - start)
        yield start, reach[start], shares
        for n_kept, (now, then) in enumerate(zip((1.0, *shares), (*shares, 0.0), strict=True)):
            reach[start + n_kept + 1] += reach[start] * (now - then)
