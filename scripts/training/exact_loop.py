"""Accept lengths by the exact loop, in F32, on prompts that the drafter was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from training.checkpoint import load_checkpoint, save_checkpoint
from training.drafter import Drafter
from training.held_out import held_out_prompts
from training.report import accept_length, table
from training.speculate import Speculation, speculate
from training.target import Target
from training.target_weights import TargetWeights
from training.vocabulary import Vocabulary

SCALES = (0.0, 0.6, 0.8, 1.0)
SCALE_TOKENS = 128  # of the answers on which the scale is chosen


class ExactLoop:
    """log takes lines of progress."""

    def __init__(
        self,
        weights: TargetWeights,
        vocabulary: Vocabulary,
        device: torch.device,
        log: Callable[[str], None],
    ) -> None:
        self.weights, self.vocabulary, self.device, self.log = weights, vocabulary, device, log
        self._target: Target | None = None

    def run(
        self,
        drafter: Drafter,
        prompts: Sequence[str],
        temperature: float,
        max_tokens: int,
        scales: Sequence[float] = (1.0,),
        seed: int = 0,
    ) -> list[Speculation]:
        """As `speculate`, for chat prompts with the template's own system prompt."""
        taps = drafter.config.taps
        if self._target is None or self._target.taps != taps:
            self._target = Target(self.weights, taps, self.device, torch.float32)
        chat = self.vocabulary.chat
        texts = [chat.before_user + prompt + chat.before_answer for prompt in prompts]
        torch.manual_seed(seed)
        return speculate(
            *(self._target, drafter.to(self.device).eval(), self.vocabulary.encode_all(texts)),
            *(temperature, max_tokens, self.vocabulary.eog, scales),
        )

    def report(
        self, drafter: Drafter, temperatures: Sequence[float], max_tokens: int
    ) -> dict[str, float]:
        """Logs a table for each temperature, with and without the selector."""
        labels, prompts = zip(*held_out_prompts(), strict=True)
        results = {}
        for temperature in temperatures:
            runs = self.run(drafter, prompts, temperature, max_tokens, (1.0, 0.0))
            for name, run in zip(("", " no selector"), runs, strict=True):
                self.log(table(f"T={temperature:g}{name}", run, labels))
                results[f"T={temperature:g}{name}"] = quiet_length(run)
        return results

    def choose_scale(
        self, drafter: Drafter, prompts: Sequence[str], directory: Path
    ) -> dict[float, list[float]]:
        """A trained selector is too sure of itself: saves the checkpoint with the multiple of its
        scores that accepts most at temperatures 0 and 1 together. Returns the lengths of each."""
        save_checkpoint(drafter, directory)
        saved = load_checkpoint(directory)
        runs = [self.run(saved, prompts, t, SCALE_TOKENS, SCALES) for t in (0.0, 1.0)]
        lengths = {
            scale: [quiet_length(run) for run in pair]
            for scale, pair in zip(SCALES, zip(*runs, strict=True), strict=True)
        }
        for scale, (cold, warm) in lengths.items():
            self.log(f"selector scale {scale}: T=0 {cold:.3f}, T=1 {warm:.3f}")
        save_checkpoint(drafter, directory, max(lengths, key=lambda scale: sum(lengths[scale])))
        return lengths


def quiet_length(run: Speculation) -> float:
    """The mean accept length of the outputs that do not loop."""
    rows = [i for i in range(len(run.outputs)) if not run.looped[i]]
    return accept_length(run, rows).mean
