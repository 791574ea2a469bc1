"""Expected speed by draft length and kind of work, and what follows from it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs

from dflash2.costs import CostTable
from dflash2.errors import DFlash2Error
from dflash2.fingerprint import fingerprint
from dflash2.tune.workload import Answer

FORMAT = "dflash2 tune 1"
WORTH = 1.03  # a smaller speed-up is within the error of the estimate


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Of one kind of work.

    Args:
        tokens_per_round: (1 + n_draft,) when 0, 1, .. tokens are drafted in every round.
        tokens_per_second: (1 + n_draft,) likewise, with passes over no more rows than needed.
        server_tokens_per_second: the same by llama-server's rule.
    """

    label: str
    prompts: int
    n_context: int
    tokens_per_round: tuple[float, ...]
    tokens_per_second: tuple[float, ...]
    server_tokens_per_second: tuple[float, ...]

    @property
    def best(self) -> int:
        """The fastest length; 0: plain decoding."""
        return _best(self.tokens_per_second)

    @property
    def server_best(self) -> int:
        return _best(self.server_tokens_per_second)

    @property
    def speed_up(self) -> float:
        """Of the best length that drafts."""
        return max(self.tokens_per_second[1:]) / self.tokens_per_second[0]


def _best(rates: Sequence[float]) -> int:
    best = max(range(len(rates)), key=lambda m: rates[m])
    return best if rates[best] >= WORTH * rates[0] else 0


def expect(label: str, answers: Sequence[Answer], costs: CostTable) -> Expected:
    """Of answers that are not none."""
    n_tokens = sum(a.n_tokens for a in answers)
    n_context = round(sum(a.n_context * a.n_tokens for a in answers) / n_tokens)
    lengths = range(costs.n_draft + 1)
    rounds = [sum(a.rounds[m] for a in answers) for m in lengths]
    match = [sum(a.rounds_match[m] for a in answers) for m in lengths]
    round_ms = [costs.round_ms(m, n_context, padded=False) for m in lengths]
    return Expected(
        label=label,
        prompts=len(answers),
        n_context=n_context,
        tokens_per_round=tuple(n_tokens / r for r in rounds),
        tokens_per_second=tuple(1000.0 * n_tokens / (rounds[m] * round_ms[m]) for m in lengths),
        server_tokens_per_second=tuple(
            1000.0 * n_tokens / (match[m] * round_ms[m]) for m in lengths
        ),
    )


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What `dflash2 tune` found.

    Args:
        settings: of the measurement, named as options of `dflash2.load`, and temperature.
        classes: by label.
    """

    target: str
    draft: str
    settings: dict[str, Any]
    costs: CostTable
    overall: Expected
    classes: tuple[Expected, ...]

    @property
    def reason(self) -> str:
        """In words, why drafting pays or does not."""
        m = max(range(1, self.costs.n_draft + 1), key=lambda m: self.overall.tokens_per_second[m])
        at, costs = self.overall.n_context, self.costs
        step = costs.round_ms(0, at)
        whole = costs.round_ms(m, at, padded=False) / step
        verify = costs.verify_ms(m, at, padded=False) / step
        return (
            f"drafting {m} a round costs {whole:.2f} plain steps "
            f"({verify:.2f} to verify, {whole - verify:.2f} to draft) "
            f"and brings {self.overall.tokens_per_round[m]:.2f} tokens: "
            f"{self.overall.speed_up:.2f}x"
        )

    def as_json(self) -> dict[str, Any]:
        def fields(of: Expected) -> dict[str, Any]:
            best = {"best": of.best, "server_best": of.server_best, "speed_up": of.speed_up}
            return {**asdict(of), **best}

        return {
            "format": FORMAT,
            "target": self.target,
            "draft": self.draft,
            "settings": self.settings,
            "overall": fields(self.overall),
            "classes": [fields(of) for of in self.classes],
            "reason": self.reason,
            "costs": self.costs.as_json(),
        }

    def save(self, path: Path) -> None:
        """Whole or not at all. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            partial.write_text(json.dumps(self.as_json(), indent=1), encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What `dflash2 serve` takes from a saved result.

    Args:
        n_draft_max: for llama-server; 0: it should not draft.
    """

    n_draft_max: int
    settings: dict[str, Any]
    reason: str

    @classmethod
    def load(cls, path: Path) -> Saved | None:
        """None: there is no such file.

        Raises:
            DFlash2Error: it is not what `TuneResult.save` writes.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise ValueError(f"expected the format {FORMAT!r}, got {fields['format']!r}")
            return cls(
                n_draft_max=int(fields["overall"]["server_best"]),
                settings=dict(fields["settings"]),
                reason=str(fields["reason"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as e:
            raise DFlash2Error(
                f"{path}: expected a result of dflash2 tune: {e!r}; run dflash2 tune again"
            ) from e


def saved_path(target: str, draft: str) -> Path:
    """Where results for these files on this machine are. Raises OSError: a file is missing."""
    return platformdirs.user_cache_path("dflash2") / f"tune-{fingerprint(target, draft)}.json"
