"""What passes and drafts cost on this machine, and what drafting is expected to bring.

Symbols: m tokens drafted, r rows of a target pass (m + 1 to verify a draft), survival[i] the
probability that a round keeps at least i + 1 draft tokens.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash2._native import core
from dflash2.errors import DFlash2Error

FORMAT = "dflash2 costs 1"
N_ROWS = 9  # measured at least: GPU back ends take other kernels, and less time, from 9 rows on


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Milliseconds, by tokens in the context; linear in between, constant outside.

    Args:
        contexts: (n_contexts,), ascending.
        plain_ms: (n_contexts,) a step of plain decoding.
        pass_ms: (n_contexts, n_rows) a target pass over 1, 2, .. rows that a drafter reads.
        draft_ms: (n_contexts, n_draft) a draft of 1, 2, .. tokens.

    Raises:
        ValueError: sizes that do not fit together.
    """

    contexts: tuple[int, ...]
    plain_ms: tuple[float, ...]
    pass_ms: tuple[tuple[float, ...], ...]
    draft_ms: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        n = len(self.contexts)
        for name in ("plain_ms", "pass_ms", "draft_ms"):
            if len(getattr(self, name)) != n or n == 0:
                raise ValueError(f"{name}: expected a row for each of {n} contexts")
        widths = {len(row) for row in self.draft_ms}
        rows = {len(row) for row in self.pass_ms}
        if len(widths) != 1 or len(rows) != 1 or min(rows) <= min(widths):
            raise ValueError("expected m drafts, and more than m rows, the same in all contexts")

    @property
    def n_draft(self) -> int:
        """The longest draft."""
        return len(self.draft_ms[0])

    def verify_ms(self, n_draft: int, n_context: int, *, padded: bool = True) -> float:
        """A pass over a draft; padded: over more rows where that takes less time."""
        last = None if padded else n_draft + 1
        least = [min(row[n_draft:last]) for row in self.pass_ms]
        return float(np.interp(n_context, self.contexts, least))

    def round_ms(self, n_draft: int, n_context: int, *, padded: bool = True) -> float:
        """A round; n_draft = 0: a step of plain decoding."""
        if n_draft == 0:
            return float(np.interp(n_context, self.contexts, self.plain_ms))
        draft = [row[n_draft - 1] for row in self.draft_ms]
        draft_ms = float(np.interp(n_context, self.contexts, draft))
        return draft_ms + self.verify_ms(n_draft, n_context, padded=padded)

    def tokens_per_second(self, n_draft: int, tokens: float, n_context: int) -> float:
        """tokens: of a round on average, the target's own one included."""
        return 1000.0 * tokens / self.round_ms(n_draft, n_context)

    def scaled(self, n_context: int, step_ms: float, round_ms: float) -> CostTable:
        """With what steps and rounds take in practice.

        Sampling, text, and caches that the other model displaced come on top of passes and drafts.
        The table keeps its shape: factors in between are linear in the tokens drafted.

        Args:
            step_ms: of plain decoding with n_context tokens before.
            round_ms: of the longest drafts, likewise.
        """
        first = step_ms / self.round_ms(0, n_context)
        last = round_ms / self.round_ms(self.n_draft, n_context, padded=False)

        def factor(m: int) -> float:
            return first + (last - first) * min(m, self.n_draft) / self.n_draft

        return CostTable(
            contexts=self.contexts,
            plain_ms=tuple(ms * first for ms in self.plain_ms),
            pass_ms=tuple(
                tuple(ms * factor(m) for m, ms in enumerate(row)) for row in self.pass_ms
            ),
            draft_ms=tuple(
                tuple(ms * factor(m) for m, ms in enumerate(row, 1)) for row in self.draft_ms
            ),
        )

    def speed_up(self, survival: Sequence[float], n_context: int) -> tuple[float, ...]:
        """Over plain decoding when 0, 1, .. len(survival) tokens are drafted in every round.

        A shorter draft is taken to be the beginning of a longer one, and rounds to start where
        they would with the longest.

        Raises:
            ValueError: more positions than the table has.
        """
        if len(survival) > self.n_draft:
            raise ValueError(f"survival: the table has {self.n_draft} tokens, got {len(survival)}")
        plain = self.tokens_per_second(0, 1.0, n_context)
        return tuple(
            self.tokens_per_second(m, 1.0 + sum(survival[:m]), n_context) / plain
            for m in range(len(survival) + 1)
        )

    def best_length(self, survival: Sequence[float], n_context: int) -> int:
        """The fastest fixed length; 0: plain decoding is. Errors as for `speed_up`."""
        expected = self.speed_up(survival, n_context)
        return int(np.argmax(expected))

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, fields: Any, where: str) -> CostTable:
        """where: named in the error.

        Raises:
            DFlash2Error: not what `as_json` gives.
        """
        try:
            if fields["format"] != FORMAT:
                raise ValueError(f"expected the format {FORMAT!r}, got {fields['format']!r}")
            return cls(
                contexts=tuple(map(int, fields["contexts"])),
                plain_ms=_numbers(fields["plain_ms"]),
                pass_ms=tuple(map(_numbers, fields["pass_ms"])),
                draft_ms=tuple(map(_numbers, fields["draft_ms"])),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise DFlash2Error(
                f"{where}: expected a cost table of dflash2 tune: {e!r}; run dflash2 tune again"
            ) from e

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises OSError."""
        Path(path).write_text(json.dumps(self.as_json()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostTable:
        """A file of `save`, or a result that `dflash2 tune` saved.

        Raises:
            OSError: the file cannot be read.
            DFlash2Error: it holds no cost table.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as e:
            raise DFlash2Error(f"{os.fspath(path)}: expected JSON: {e}") from e
        if isinstance(fields, dict) and "costs" in fields:
            fields = fields["costs"]
        return cls.from_json(fields, os.fspath(path))


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(0 <= x < float("inf") for x in numbers):
        raise ValueError("expected times that are finite and not negative")
    return numbers


def measure_costs(
    target: core.Target,
    drafter: core.GraphDrafter,
    tokens: Sequence[int],
    *,
    contexts: Sequence[int] = (128,),
    repetitions: int = 9,
    on_pass: Callable[[], object] = lambda: None,
) -> CostTable:
    """Times passes and drafts of one sequence; medians, after a warm-up.

    Each width comes once before any comes again, so that a machine that slows down does so for
    all. Leaves the sequence empty.

    Args:
        tokens: of real text, repeated as needed: experts are chosen by it.
        contexts: tokens before the first pass; the passes add some to it.
        on_pass: called `n_passes(..)` times.

    Raises:
        ContextFullError: a context does not fit.
    """
    rows = min(max(N_ROWS, drafter.max_draft() + 1), target.n_rollback + 1)
    bench = _Bench(target, drafter, tokens, rows, repetitions, on_pass)
    measured = [bench.at(n) for n in sorted(contexts)]
    target.truncate(0)
    drafter.truncate(0, 0)
    return CostTable(
        contexts=tuple(sorted(contexts)),
        plain_ms=tuple(plain for plain, _, _ in measured),
        pass_ms=tuple(passes for _, passes, _ in measured),
        draft_ms=tuple(drafts for _, _, drafts in measured),
    )


class _Bench:
    def __init__(
        self,
        target: core.Target,
        drafter: core.GraphDrafter,
        tokens: Sequence[int],
        n_rows: int,
        repetitions: int,
        on_pass: Callable[[], object],
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._tokens = tokens
        self._n_rows = n_rows
        self._repetitions = repetitions
        self._on_pass = on_pass

    def at(self, n_context: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """Of plain decoding, of passes and of drafts, by width."""
        self._fill(n_context)
        passes: list[list[float]] = [[] for _ in range(self._n_rows)]
        drafts: list[list[float]] = [[] for _ in range(self._drafter.max_draft())]
        for _ in range(self._repetitions + 1):
            for i, times in enumerate(passes):
                times.append(self._pass_ms(i + 1))
            for i, times in enumerate(drafts):
                times.append(self._draft_ms(i + 1))
            self._on_pass()
        self._target.set_taps([])
        plain = [self._pass_ms(1) for _ in range(self._repetitions + 1)]
        self._on_pass()
        return _median(plain), tuple(map(_median, passes)), tuple(map(_median, drafts))

    def _fill(self, n_context: int) -> None:
        target, drafter = self._target, self._drafter
        target.truncate(0)
        drafter.truncate(0, 0)
        target.set_taps(drafter.target_layers())
        for begin in range(0, n_context, target.n_batch):
            target.decode(self._text(begin, min(target.n_batch, n_context - begin)), begin)
            self._features = target.tapped()
            drafter.inject(0, self._features, begin)
        self._end = self._draft_end = n_context

    def _pass_ms(self, n_rows: int) -> float:
        rows = self._text(self._end, n_rows)
        begin = time.perf_counter()
        self._target.decode(rows, self._end, all_logits=True)
        self._target.logits(n_rows - 1)  # waits for the device
        ms = 1000.0 * (time.perf_counter() - begin)
        self._end += 1  # hybrid targets cannot take the first row back
        self._target.truncate(self._end)
        return ms

    def _draft_ms(self, n_draft: int) -> float:
        """With the rows that half a draft before it left to inject."""
        self._drafter.truncate(0, self._draft_end)
        rows = self._features[-(1 + n_draft // 2) :]
        job = (0, self._text(self._draft_end, 1)[0], self._draft_end + len(rows))
        begin = time.perf_counter()
        self._drafter.inject(0, rows, self._draft_end)
        self._drafter.draft([job], n_draft)
        return 1000.0 * (time.perf_counter() - begin)

    def _text(self, position: int, n: int) -> list[int]:
        return [self._tokens[i % len(self._tokens)] for i in range(position, position + n)]


def _median(times: Sequence[float]) -> float:
    """Without the first one, the warm-up."""
    return statistics.median(times[1:])


def n_passes(contexts: Sequence[int], repetitions: int) -> int:
    return len(contexts) * (repetitions + 2)
