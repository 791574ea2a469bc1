"""A training run: waves, steps, progress lines and saves that a later run can go on from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch

from training.graph import captured
from training.head_counts import token_counts
from training.trainer import Statistics, Trainer, statistics
from training.training_error import TrainingError
from training.wave import Wave

SAVE_EVERY = 60.0  # seconds


class Source(Protocol):
    def write(self) -> Wave: ...


@dataclass(frozen=True)
class Budget:
    """Ends a run after so many minutes, text included, or so many steps: one of the two.
    The learning rate follows it. n_pass: how often a wave is gone through."""

    minutes: float | None
    steps: int | None
    n_pass: int = 6
    n_row: int = 32  # rows of a step

    def progress(self, step: int, seconds: float) -> float:
        if self.steps is not None:
            return step / self.steps
        return seconds / (60.0 * self.minutes) if self.minutes else 1.0


class Run:
    """Steps until the budget is spent. `log` takes a line of progress."""

    def __init__(
        self,
        trainer: Trainer,
        source: Source,
        budget: Budget,
        out: Path,
        log: Callable[[str], None],
    ) -> None:
        self.trainer, self.source, self.budget = trainer, source, budget
        self.out, self.log = out, log
        self.step = 0
        self.n_token = 0
        self.seconds = 0.0
        self._wave: Wave | None = None
        self._replay: Callable[[], None] | None = None
        self.counts = torch.zeros(trainer.drafter.config.n_vocab, dtype=torch.long)
        self._settings = {
            "drafter": json.loads(json.dumps(asdict(trainer.drafter.config))),
            "recipe": asdict(trainer.recipe),
        }

    @property
    def state_file(self) -> Path:
        return self.out / "state.pt"

    def resume(self) -> None:
        """Goes on from the last save, if there is one.

        Raises:
            TrainingError: the save is of other settings.
        """
        if not self.state_file.exists():
            return
        state = torch.load(self.state_file, map_location="cpu", weights_only=True)
        if state["settings"] != self._settings:
            raise TrainingError(
                f"{self.out}: holds a run with other settings; repeat them or give another folder"
            )
        self.trainer.load_state_dict(state["trainer"])
        self.step, self.n_token = state["step"], state["n_token"]
        self.seconds, self.counts = state["seconds"], state["counts"]
        torch.manual_seed(state["seed"])
        self.log(f"resumed at step {self.step}")

    def save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        seed = int(torch.randint(2**31, (1,)))
        torch.manual_seed(seed)
        state = {
            "settings": self._settings,
            "trainer": self.trainer.state_dict(),
            "step": self.step,
            "n_token": self.n_token,
            "seconds": self.seconds,
            "counts": self.counts,
            "seed": seed,
        }
        partial = self.state_file.with_suffix(".part")
        torch.save(state, partial)
        partial.replace(self.state_file)

    def train(self, *, save: bool = True) -> list[Statistics]:
        """The statistics of each wave at its first pass."""
        curve: list[Statistics] = []
        saved = started = time.monotonic()
        before = self.seconds
        while self.budget.progress(self.step, self.seconds) < 1.0:
            wave = self.source.write()
            self.n_token += wave.tokens.numel()
            self.counts += token_counts(wave, len(self.counts))
            if self._wave is None:
                self._wave = wave
            elif wave is not self._wave:
                self._wave.copy_(wave)  # a captured step reads these buffers
            if self.step == 0:
                self._standardise(wave)
            for n_pass in range(self.budget.n_pass):
                numbers = []
                for rows in self._batches(self._wave):
                    self.seconds = before + time.monotonic() - started
                    progress = self.budget.progress(self.step, self.seconds)
                    if progress >= 1.0:
                        break
                    self.trainer.set_progress(progress)
                    numbers.append(self._train_on(self._wave, rows))
                    self.step += 1
                if n_pass == 0 and numbers:  # text that the drafter has not seen
                    curve.append(self._report(torch.stack(numbers)))
            self.seconds = before + time.monotonic() - started
            if save and time.monotonic() - saved > SAVE_EVERY:
                self.save()
                saved = time.monotonic()
        if save:
            self.save()
        return curve

    def _standardise(self, wave: Wave) -> None:
        """Channels of the features differ in size a hundredfold; divide by their RMS."""
        sample = wave.features[:32].float()
        rms = sample.pow(2).mean((0, 1)).sqrt().clamp(min=1e-6)
        drafter = self.trainer.drafter
        drafter.feature_scale.copy_(1 / rms)
        with torch.no_grad():  # the start was for features as they are
            drafter.fc.weight.mul_(rms / rms[-drafter.config.n_embd :].mean())

    def _batches(self, wave: Wave) -> Iterable[torch.Tensor]:
        n, size = len(wave.tokens), min(len(wave.tokens), self.budget.n_row)
        return torch.randperm(n, device=wave.tokens.device)[: n - n % size].split(size)

    def _train_on(self, wave: Wave, rows: torch.Tensor) -> torch.Tensor:
        if not rows.is_cuda:
            return self.trainer.step(wave, rows)
        if self._replay is None:
            self._rows = rows.clone()
            self._replay = captured(lambda: self._step(wave))
        self._rows.copy_(rows)
        self._replay()
        return self._numbers.clone()

    def _step(self, wave: Wave) -> None:
        self._numbers = self.trainer.step(wave, self._rows)

    def _report(self, numbers: torch.Tensor) -> Statistics:
        s = statistics(numbers, self.trainer.drafter.config.block_size - 1)
        cold, warm = (" ".join(f"{x:.2f}".lstrip("0") for x in rates[:3]) for rates in s.picked)
        self.log(
            f"step {self.step:6} {self.seconds / 60:5.2f} min {self.n_token / 1e6:6.1f} M tokens"
            f"  loss {s.loss:.3f} hard {s.hard:.3f} selector {s.selector:.3f}"
            f" | T=0 {cold} length {s.length[0]:.2f} (unary {s.unary_length[0]:.2f})"
            f" recall {s.recall[0][0]:.2f}..{s.recall[0][-1]:.2f}"
            f" | T>0 {warm} length {s.length[1]:.2f}"
        )
        return s
